"""Have a running worker process one ledger entry now, and wait for the result. The console itself executes nothing."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

from ops_console.read_models import refund_views
from sentinel.authority.actor import Actor
from sentinel.core.errors import WorkerNotRunning
from sentinel.store.database import Pool
from sentinel.store.ids import new_id

_POLL_SECONDS = 0.1
_IN_HAND_SECONDS = 5.0


def process_one(
    pool: Pool,
    actor: Actor,
    *,
    request_id: uuid.UUID | None = None,
    wait_seconds: float = 10.0,
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """Request one run and return the worker's answer.

    `request_id` makes the request idempotent: a form that is sent twice (a double click) is one request. Raises
    `WorkerNotRunning` when no worker loop was seen in the last seconds, or when none answers in time.
    """
    actor.must_be("approver")
    if not refund_views.is_worker_listening(pool, actor.tenant_id):
        raise WorkerNotRunning("no worker is running; start one with `retail-refund-agent --loop`")
    request_id, end = request_id or new_id(), clock() + wait_seconds
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
