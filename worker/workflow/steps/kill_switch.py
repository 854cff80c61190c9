"""kill_switch: no halt covers the row, and everything that must be switched on for it is on."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from sentinel.client import Switches, Unreachable
from sentinel.core.canary import in_canary
from worker import next_steps
from worker.next_steps import Patience
from worker.settlement.registry import Systems
from worker.workflow.context import Context, StepResult, to_person
from worker.workflow.graph import StepName
from worker.workflow.reasons import Escalation
from worker.workflow.routes import Routes
from worker.workflow.switchboard import NOTHING_ON, Switchboard, halts_cover, switches_of


class KillSwitch:
    """Looks at the switchboard once for a batch. Rows without a route are left to the step that says so."""

    name = StepName.KILL_SWITCH

    def __init__(
        self, switchboard: Switchboard, routes: Routes, systems: Systems, patience: Patience, stopping: threading.Event
    ) -> None:
        self._switchboard, self._routes, self._systems = switchboard, routes, systems
        self._patience, self._stopping = patience, stopping

    def prepare(self, contexts: Sequence[Context]) -> None:
        """One look for all; without the authority nobody is asked about and nobody can be."""
        try:
            board, silence = self._switchboard.look(), None
        except Unreachable as error:
            board, silence = NOTHING_ON, error
        for context in contexts:
            context.board, context.silence = board, silence
            row = context.row
            context.route = self._routes.find(row.channel, row.scenario, row.mode)

    def run(self, context: Context) -> StepResult:
        """Halts first, then each switch of the route with its canary."""
        if context.silence is not None and self._stopping.is_set():
            context.event, context.silence = next_steps.stop(context.row), None
            return StepResult({"worker": "ending"})
        if context.silence is not None:
            context.event = next_steps.after_no_answer(context.row, context.silence, self._patience)
            return StepResult({"authority": "no answer"})
        lifted: dict[str, object] = {}
        for reason, seen in _hits(context, context.board or NOTHING_ON, self._systems):
            if reason not in context.lifted:
                return to_person(context, reason, StepName.CHECK_PARAMS, **seen, **lifted)
            lifted = {"lifted": reason}
        seen = {"switch": context.route.switch} if context.route is not None else {"route": "none"}
        return StepResult({**seen, **lifted}, StepName.CHECK_PARAMS, tool_used="switches")


def _hits(context: Context, board: Switches, systems: Systems) -> list[tuple[Escalation, dict[str, object]]]:
    """Everything that stands in the way, each with what was seen: lifting one leaves the others standing."""
    row = context.row
    found: list[tuple[Escalation, dict[str, object]]] = []
    if halts_cover(board, agent_id=row.agent_id, action=row.action, scenario=row.scenario):
        found.append((Escalation.HALTED, {}))
    for name in switches_of(context.route) if context.route is not None else ():
        hit = _switched(board, name, context.facts.account_ref)
        if hit is not None:
            found.append(hit)
    unproven = _unproven(context, board, systems)
    if unproven:
        found.append((Escalation.SYSTEM_NOT_PROVEN, {"systems": unproven}))
    return found


def _unproven(context: Context, board: Switches, systems: Systems) -> list[str]:
    """Real systems that this row would settle in, and that its launch gate saw as simulations only."""
    route = context.route
    state = board.switches.get(route.switch) if route is not None else None
    if route is None or state is None:
        return []
    return sorted(systems.configured_outside(route.settles_to) & set(state.simulated))


def _switched(board: Switches, name: str, account: str | None) -> tuple[Escalation, dict[str, object]] | None:
    state = board.switches.get(name)
    if state is None or not state.is_on:
        return Escalation.SWITCH_OFF, {"switch": name, "on": False}
    percent = state.canary_percent
    # Without an account nobody can say on which side of the canary a row stands: only a full one takes it.
    if percent < 100 and (account is None or not in_canary(name, account, percent)):
        return Escalation.OUTSIDE_CANARY, {"switch": name, "canary_percent": percent}
    return None
