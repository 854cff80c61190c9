"""Have a running worker process one ledger entry now, and wait for the result. The console itself executes nothing."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

from ops_console.read_models import refund_views
from ops_console.slots import Slots
from sentinel.authority.actor import Actor
from sentinel.core.errors import WorkerNotRunning
from sentinel.store.database import Pool
from sentinel.store.ids import new_id

MOST_WAITING = 6
"""How many requests wait at once in a process of the console at most: each holds a thread, and halts need one too."""
_POLL_SECONDS = 0.1
_IN_HAND_SECONDS = 5.0


_slots = Slots("enough such requests wait for a worker already; try again in a moment")


def most_waiting(threads: int) -> int:
    """Return how many requests may wait at once in a process with so many threads: at most half of them, if there are two."""
    return max(1, min(MOST_WAITING, threads // 2))


def process_one(
    pool: Pool,
    actor: Actor,
    *,
    request_id: uuid.UUID | None = None,
    most: int = MOST_WAITING,
    wait_seconds: float = 10.0,
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """Request one run and return the worker's answer.

    `request_id` makes the request idempotent: a form that is sent twice (a double click) is one request. Raises
    `WorkerNotRunning` when no worker loop was seen in the last seconds, or when none answers in time, and `Conflict` when
    `most` requests wait already.
    """
    actor.must_be("approver")
    if not refund_views.is_worker_listening(pool, actor.tenant_id):
        raise WorkerNotRunning("no worker is running; start one with `retail-refund-agent --loop`")
    with _slots.taken(most):
        return _answer(pool, actor, request_id or new_id(), end=clock() + wait_seconds, pause=pause, clock=clock)


def _answer(
    pool: Pool, actor: Actor, request_id: uuid.UUID, *, end: float, pause: Callable[[float], None], clock: Callable[[], float]
) -> dict[str, Any]:  # fmt: skip
    refund_views.ask_worker(pool, actor.tenant_id, request_id, actor.name)
    while True:
        answer = refund_views.worker_answer(pool, actor.tenant_id, request_id)
        if answer is not None and answer.finished_at is not None:
            if (answer.result or {}).get("withdrawn"):
                raise WorkerNotRunning("no worker answered in time; the request was withdrawn")
            return answer.result or {}
        if clock() >= end and refund_views.withdraw_process_request(pool, actor.tenant_id, request_id):
            raise WorkerNotRunning("no worker answered in time; the request was withdrawn")
        # Could not be withdrawn: a worker holds the request's lease, so it gets a few more seconds to answer.
        if clock() >= end + _IN_HAND_SECONDS:
            raise WorkerNotRunning("a worker took the request and has not answered yet; look at the ledger")
        pause(_POLL_SECONDS)
