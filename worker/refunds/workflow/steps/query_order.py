"""query_order: the order's facts from the channel's directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from worker.refunds.rows import OrderFacts
from worker.refunds.workflow.context import RunContext, StepResult, to_person
from worker.refunds.workflow.directories import Found, NoDirectoryAnswer, OrderDirectory, UnknownOrder
from worker.refunds.workflow.escalations import Escalation
from worker.refunds.workflow.graph import StepName, next_step
from worker.refunds.workflow.routes import MAY_BE_UNKNOWN

_NEXT = next_step(StepName.QUERY_ORDER)


class QueryOrder:
    """Asks each channel's directory once for all of its rows."""

    name = StepName.QUERY_ORDER

    def __init__(self, directories: Mapping[str, OrderDirectory]) -> None:
        self._directories = directories

    def prepare(self, contexts: Sequence[RunContext]) -> None:
        """Look the orders up."""
        for channel, directory in self._directories.items():
            here = [context for context in contexts if context.row.channel == channel]
            if not here:
                continue
            found: list[Found] = [NoDirectoryAnswer("not ready")] * len(here)
            if directory.is_ready():
                found = directory.find([(context.row, context.facts) for context in here])
            for context, one in zip(here, found, strict=True):
                context.lookup = one

    def run(self, context: RunContext) -> StepResult:
        """On with the order; to a person without one, where the channel needs it."""
        row, found = context.row, context.lookup
        if row.channel not in self._directories:
            return StepResult({"order": "no directory of this channel"}, _NEXT)
        tool = self._directories[row.channel].name
        if isinstance(found, OrderFacts):
            context.order = found
            if found.account_ref and row.account_ref and found.account_ref != row.account_ref:
                return to_person(context, Escalation.ACCOUNT_MISMATCH, _NEXT)
            return StepResult({"order_ref": found.order_ref}, _NEXT, tool_used=tool)
        if isinstance(found, UnknownOrder):
            if row.channel in MAY_BE_UNKNOWN:
                return StepResult({"order": "unknown"}, _NEXT, tool_used=tool)
            return to_person(context, Escalation.ORDER_UNKNOWN, _NEXT, order_ref=row.order_ref)
        return to_person(context, Escalation.ORDER_DIRECTORY_UNAVAILABLE, _NEXT, degraded=tool)
