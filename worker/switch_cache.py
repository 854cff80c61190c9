"""The authority's switches and halts, cached for half a second, to look at before asking. Only the authority's own check counts."""

from __future__ import annotations

import threading
import time

from sentinel.client import Client, Rejected, Switches, Unreachable

FRESH_SECONDS = 0.5
NOTHING_ON = Switches(switches={}, halts=(), policies={})


class SwitchCache:
    """A cache of the authority's switches and halts, read again once they are older than `FRESH_SECONDS`. Thread-safe."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._seen: tuple[float, Switches | Unreachable | Rejected] | None = None

    def current(self) -> Switches:
        """The present switches and halts. Raises `Unreachable`, or `Rejected` where the authority refuses to list them."""
        with self._lock:
            if self._seen is None or time.monotonic() - self._seen[0] >= FRESH_SECONDS:
                found = self._asked()
                self._seen = (time.monotonic(), found)
            seen = self._seen[1]
        if isinstance(seen, (Unreachable, Rejected)):
            raise seen
        return seen

    def _asked(self) -> Switches | Unreachable | Rejected:
        try:
            return self._client.switches()
        except (Unreachable, Rejected) as error:
            return error  # cached too: every waiting thread would otherwise wait for its own timeout


def halts_cover(switches: Switches, *, agent_id: str, action: str, scenario: str) -> bool:
    """Whether a halt in force covers this action; only the authority's own check counts."""
    targets = {"agent": agent_id, "scenario": scenario, "agent_action": f"{agent_id} {action}"}
    for halt in switches.halts:
        if halt.scope in ("global", "tenant") or targets.get(halt.scope) == halt.target:
            return True
        if halt.scope == "action" and _names(halt.target, action):
            return True
    return False


def _names(target: str | None, action: str) -> bool:
    if target is None:
        return False
    return target == action or (target.endswith(".*") and action.startswith(target[:-1]))
