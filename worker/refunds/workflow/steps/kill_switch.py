"""kill_switch: no halt covers the row, and every switch of its route is on.

Switches and halts are cached for half a second. The authority decides them again: this only keeps rows from being asked
about that must go to a person first. A switch that cannot be read is off.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Sequence
from functools import cache

from sentinel.client import Client, Rejected, Switches, Unreachable
from worker.refunds import transitions
from worker.refunds.transitions import RetryPolicy
from worker.refunds.workflow.escalations import Escalation
from worker.refunds.workflow.graph import StepName, next_step
from worker.refunds.workflow.routes import Route, Routes, master_of
from worker.refunds.workflow.runner import RunContext, StepResult, to_person
from worker.settlement.registry import Systems

_NEXT = next_step(StepName.KILL_SWITCH)


class KillSwitch:
    """Looks at the switch_cache once for a batch. Rows without a route are left to the step that says so."""

    name = StepName.KILL_SWITCH

    def __init__(
        self,
        switch_cache: SwitchCache,
        routes: Routes,
        systems: Systems,
        retry_policy: RetryPolicy,
        stopping: threading.Event,
    ) -> None:
        self._switch_cache, self._routes, self._systems = switch_cache, routes, systems
        self._retry_policy, self._stopping = retry_policy, stopping

    def prepare(self, contexts: Sequence[RunContext]) -> None:
        """One look-up for all rows; without the authority no row goes on."""
        try:
            switches, switches_error = self._switch_cache.look(), None
        except Unreachable as error:
            switches, switches_error = NOTHING_ON, error
        for context in contexts:
            context.switches, context.switches_error = switches, switches_error
            row = context.row
            context.route = self._routes.find(row.channel, row.scenario, row.mode)

    def run(self, context: RunContext) -> StepResult:
        """Halts first, then each switch of the route with its canary."""
        if context.switches_error is not None and self._stopping.is_set():
            context.event, context.switches_error = transitions.release_at_stop(context.row), None
            return StepResult({"worker": "ending"})
        if context.switches_error is not None:
            context.event = transitions.after_no_answer(context.row, context.switches_error, self._retry_policy)
            return StepResult({"authority": "no answer"})
        lifted: dict[str, object] = {}
        for reason, seen in _hits(context, context.switches or NOTHING_ON, self._systems):
            if reason not in context.lifted:
                return to_person(context, reason, _NEXT, **seen, **lifted)
            lifted = {"lifted": reason}
        if lifted or context.route is None:
            seen = {"switch": context.route.switch} if context.route is not None else {"route": "none"}
            return StepResult({**seen, **lifted}, _NEXT, tool_used="switches")
        return _is_on(context.route.switch)


@cache
def _is_on(switch: str) -> StepResult:
    return StepResult({"switch": switch}, _NEXT, tool_used="switches")


def _hits(context: RunContext, board: Switches, systems: Systems) -> list[tuple[Escalation, dict[str, object]]]:
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


def _unproven(context: RunContext, board: Switches, systems: Systems) -> list[str]:
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
    # Without an account a row belongs to no share of the canary: only a full one takes it.
    if percent < 100 and (account is None or not in_canary(name, account, percent)):
        return Escalation.OUTSIDE_CANARY, {"switch": name, "canary_percent": percent}
    return None


FRESH_SECONDS = 0.5
NOTHING_ON = Switches(switches={}, halts=(), policies={})


class SwitchCache:
    """Thread-safe. `look` raises `Unreachable`."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._seen: tuple[float, Switches] | None = None

    def look(self) -> Switches:
        """What holds now; a refusal to say counts as: nothing is on."""
        with self._lock:
            if self._seen is not None and time.monotonic() - self._seen[0] < FRESH_SECONDS:
                return self._seen[1]
            try:
                found = self._client.switches()
            except Rejected:
                found = NOTHING_ON
            self._seen = (time.monotonic(), found)
            return found


def halts_cover(board: Switches, *, agent_id: str, action: str, scenario: str) -> bool:
    """Whether a halt in force covers this; the authority's own check is the one that counts."""
    targets = {"agent": agent_id, "scenario": scenario, "agent_action": f"{agent_id} {action}"}
    for halt in board.halts:
        if halt.scope in ("global", "tenant") or targets.get(halt.scope) == halt.target:
            return True
        if halt.scope == "action" and _names(halt.target, action):
            return True
    return False


def _names(target: str | None, action: str) -> bool:
    if target is None:
        return False
    return target == action or (target.endswith(".*") and action.startswith(target[:-1]))


def switches_of(route: Route) -> tuple[str, ...]:
    """The switches that must be on for a route: its own, and the master's where its family has one."""
    master = master_of(route.switch)
    return (route.switch,) if master is None else (master, route.switch)


_PARTS = 2**64


def in_canary(switch: str, account: str, percent: int) -> bool:
    """Whether the account is among the first `percent` (0 to 100) of the switch. 0 is no account, 100 every account.

    Anything below 0 counts as 0, above 100 as 100. Texts are compared as they are, letter for letter.
    """
    # Length first: ("a", "b.c") and ("a.b", "c") are different pairs. Lone surrogates are encoded too.
    name, owner = (text.encode("utf-8", "surrogatepass") for text in (switch, account))
    digest = hashlib.sha256(b"canary/%d/%s/%s" % (len(name), name, owner)).digest()
    # Integers: a rounded share could differ between machines.
    return int.from_bytes(digest[:8], "big") * 100 < percent * _PARTS
