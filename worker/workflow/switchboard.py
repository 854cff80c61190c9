"""What the authority has switched on and halted, looked up at most once a second.

The worker decides nothing by it that the authority would not decide again: it keeps rows from being asked about that a
person must see first. What cannot be read is off.
"""

from __future__ import annotations

import threading
import time

from sentinel.client import Client, Rejected, Switches
from worker.workflow.routes import Route, master_of

FRESH_SECONDS = 0.5
NOTHING_ON = Switches(switches={}, halts=(), policies={})


class Switchboard:
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
