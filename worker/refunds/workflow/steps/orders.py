"""query_order and check_order: where a channel's orders are looked up, and whether what is known of one can be so.

Without an answer of its directory the row goes to a person.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, Protocol

import orjson

from worker.refunds.rows import KnownFacts, LedgerRow, OrderFacts
from worker.refunds.workflow.escalations import Escalation
from worker.refunds.workflow.graph import StepName, next_step
from worker.refunds.workflow.routes import MAY_BE_UNKNOWN
from worker.refunds.workflow.runner import (
    Found,
    NoDirectoryAnswer,
    PureStep,
    RunContext,
    StepResult,
    UnknownOrder,
    to_person,
)

_AFTER_QUERY, _AFTER_CHECK = next_step(StepName.QUERY_ORDER), next_step(StepName.CHECK_ORDER)
_CONSISTENT = StepResult({}, _AFTER_CHECK)


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
            return StepResult({"order": "no directory of this channel"}, _AFTER_QUERY)
        tool = self._directories[row.channel].name
        if isinstance(found, OrderFacts):
            context.order = found
            if found.account_ref and row.account_ref and found.account_ref != row.account_ref:
                return to_person(context, Escalation.ACCOUNT_MISMATCH, _AFTER_QUERY)
            return StepResult({"order_ref": found.order_ref}, _AFTER_QUERY, tool_used=tool)
        if isinstance(found, UnknownOrder):
            if row.channel in MAY_BE_UNKNOWN:
                return _unknown(tool)
            return to_person(context, Escalation.ORDER_UNKNOWN, _AFTER_QUERY, order_ref=row.order_ref)
        return to_person(context, Escalation.ORDER_DIRECTORY_UNAVAILABLE, _AFTER_QUERY, degraded=tool)


@cache
def _unknown(tool: str) -> StepResult:
    return StepResult({"order": "unknown"}, _AFTER_QUERY, tool_used=tool)


class CheckOrder(PureStep):
    """Pure on the order that was queried; a row without one has nothing to contradict."""

    name = StepName.CHECK_ORDER

    def run(self, context: RunContext) -> StepResult:
        """On, or to a person with the first contradiction."""
        found = None if context.order is None else _contradiction(context.order)
        if found is None:
            return _CONSISTENT
        return to_person(context, Escalation.ORDER_PAID_UNKNOWN, _AFTER_CHECK, contradiction=found)


def _contradiction(order: OrderFacts) -> str | None:
    """What cannot be so, in a code for the trail."""
    if order.delivered_at is not None and order.delivered_at < order.ordered_at:
        return "delivered_before_ordered"
    if (order.shipping_fee_minor or 0) > order.paid_minor:
        return "shipping_fee_above_paid"
    if (order.item_paid_minor or 0) > order.paid_minor:
        return "item_above_paid"
    return None


class OrderDirectory(Protocol):
    """Orders of one channel."""

    name: str

    def is_ready(self) -> bool:
        """Whether it can be asked at all."""

    def find(self, rows: Sequence[tuple[LedgerRow, KnownFacts]]) -> list[Found]:
        """Per row its order, in the same order; never raises."""


class LedgerDirectory:
    """Orders that the shop has put into the ledger's own table: they came with the row's facts."""

    name = "ledger_orders"

    def is_ready(self) -> bool:
        """True: the facts are there or the row would not be."""
        return True

    def find(self, rows: Sequence[tuple[LedgerRow, KnownFacts]]) -> list[Found]:
        """What the facts hold."""
        return [order_of(facts) or UnknownOrder() for _, facts in rows]


class NotConnected:
    """A channel without a configured directory."""

    def __init__(self, name: str) -> None:
        self.name = name

    def is_ready(self) -> bool:
        """False until it is configured."""
        return False

    def find(self, rows: Sequence[tuple[LedgerRow, KnownFacts]]) -> list[Found]:
        """No answer for anybody."""
        return [NoDirectoryAnswer("not connected")] * len(rows)


def directories(*, public_is_connected: bool) -> Mapping[str, OrderDirectory]:
    """Channel → directory. A marketplace's orders count once the settings say that they are imported."""
    own = LedgerDirectory()
    return {"retail": own, "private": own, "public": own if public_is_connected else NotConnected("public_orders")}


def order_of(facts: KnownFacts) -> OrderFacts | None:
    """The order that came with a row's facts."""
    if facts.order is None:
        return None
    found: dict[str, Any] = orjson.loads(facts.order)
    times = {name: _moment(found[name]) for name in ("ordered_at", "delivered_at")}
    return OrderFacts(**{**found, **times})


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
