"""Whether a guard would be answered now: one is recorded like any other, within a deadline, and undone.

It takes the locks, runs the functions and writes the rows that a guard needs, under a tenant that nobody has. What fails
for a guard fails here: a lock that somebody sits on, a disk without room, a grant or a trigger that is gone.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable

import structlog

from sentinel.authority.decisions import try_decision
from sentinel.authority.engine import Authority, Caller
from sentinel.authority.guard_action import decided_row
from sentinel.core.errors import SentinelError
from sentinel.core.operation import build_operation
from sentinel.store.ids import new_id

TRY_SECONDS = 0.8
"""How long the try may wait for locks; a probe that asks for readiness gives up after a second."""

REMEMBERED_SECONDS = 0.5

log = structlog.get_logger("sentinel")

_NOBODY = uuid.UUID(int=0)


class GuardTry:
    """Tries, one asker at a time; the answer is good for half a second, so that asking often costs no more."""

    def __init__(self, authority: Authority, now: Callable[[], float] = time.monotonic) -> None:
        self._authority, self._now, self._lock = authority, now, threading.Lock()
        self._tried_at, self._answer = float("-inf"), False

    def would_be_answered(self) -> bool:
        """True when a guard was recorded in time."""
        with self._lock:
            if self._now() - self._tried_at >= REMEMBERED_SECONDS:
                try:
                    self._answer = self._try()
                except SentinelError as error:
                    log.warning("guard_tried_in_vain", cause=error.detail)
                    self._answer = False
                self._tried_at = self._now()
            return self._answer

    def _try(self) -> bool:
        caller = Caller(_NOBODY, _NOBODY, _NOBODY, None, frozenset(), None)
        operation = build_operation(
            idempotency_key=f"readiness:{new_id()}", agent_id="readiness", action="readiness.try", params={}
        )
        row = decided_row(self._authority, caller, operation, has_start_step=True, elapsed_ms=0)
        return try_decision(self._authority.pool, row, TRY_SECONDS)
