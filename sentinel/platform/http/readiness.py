"""Health, readiness and metrics answers, the same for every program; each program brings its own checks and metrics."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING

import orjson
import structlog
from flask import Response

from sentinel.core.errors import SentinelError
from sentinel.platform.http.wire import ALIVE, NOT_STORED, EdgeResponse
from sentinel.store.migrate import HEAD
from sentinel.store.safety import DatabaseStatus

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

REMEMBERED_SECONDS = 0.5

log = structlog.get_logger("sentinel")


class Readiness:
    """The results of a program's checks by name, cached for half a second, however many requests arrive.

    Anybody may call /readyz, and the checks cost about ten statements. They run in one thread, and all requests that
    arrive meanwhile wait for its results; on an event loop they wait without a thread.
    """

    def __init__(self, check: Callable[[], Mapping[str, bool]], now: Callable[[], float] = time.monotonic) -> None:
        self._check, self._now, self._lock = check, now, threading.Lock()
        self._made_at = float("-inf")
        self._latest: Future[Mapping[str, bool]] | None = None

    @property
    def checks(self) -> Mapping[str, bool]:
        """Whether each check holds, by name; blocks the calling thread until that is known."""
        return self._found().result()

    async def answer(self) -> EdgeResponse:
        """The answer to /readyz, waited for on the event loop."""
        return _answer_of(await asyncio.wrap_future(self._found()))

    def _found(self) -> Future[Mapping[str, bool]]:
        """The future of the cached results or of the checks in progress; starts the checks if there is neither."""
        with self._lock:
            latest = self._latest
            if latest is None or (latest.done() and self._now() - self._made_at >= REMEMBERED_SECONDS):
                latest = self._latest = Future()
                latest.set_running_or_notify_cancel()  # a client that leaves does not cancel it for the others
                # Not a pool's thread: a thread that waits for a silent database must not delay the end of the process.
                look = threading.Thread(target=self._look, args=(latest,), name="readiness", daemon=True)
                try:
                    look.start()
                except RuntimeError as error:
                    # No thread could be started: the waiting requests get the error, and the next one runs new checks.
                    latest.set_exception(error)
            return latest

    def _look(self, asked: Future[Mapping[str, bool]]) -> None:
        try:
            found = dict(self._check())
        except BaseException as error:
            asked.set_exception(error)
        else:
            self._made_at = self._now()
            asked.set_result(found)


def alive() -> Response:
    """200: the process answers."""
    return Response(ALIVE, content_type="application/json")


def database_checks(ask: Callable[[], DatabaseStatus], name: str = "session") -> dict[str, bool]:
    """Check the status that `ask` returns: the database is there, writable and at our schema, and has no faults.

    Each fault is logged with its cause; `name` names the connection in the result and in the log.
    """
    try:
        found = ask()
    except SentinelError:
        found = DatabaseStatus()
    for fault in found.faults:
        log.error("connection_not_as_meant", connection=name, cause=fault)
    as_meant = bool(found.revision) and not found.faults
    return {
        "database": bool(found.revision), "writable": found.writable, "schema": found.revision == HEAD, name: as_meant,
    }  # fmt: skip


def holds(check: Callable[[], bool]) -> bool:
    """The result of `check`, or False when it raises a `SentinelError`."""
    try:
        return check()
    except SentinelError:
        return False


def readiness_answer(readiness: Readiness) -> Response:
    """The answer to /readyz for a program that has no event loop."""
    given = _answer_of(readiness.checks)
    return Response(given.body, status=given.status, content_type=given.content_type, headers=dict(given.headers))


def _answer_of(checks: Mapping[str, bool]) -> EdgeResponse:
    """200 when every check holds, else 503 with a Retry-After of one second; no cache may store either."""
    ready = all(checks.values())
    body = orjson.dumps({"status": "ready" if ready else "not ready", "checks": checks})
    if ready:
        return EdgeResponse(body)
    return EdgeResponse(body, status=503, headers={**NOT_STORED, "Retry-After": "1"})


def exposition(*figures: Collector) -> bytes:
    """The Prometheus text of what all processes of this program counted, and of `figures`, which are read now."""
    # Imported only after PROMETHEUS_MULTIPROC_DIR is set: imported earlier, it would count for one process alone.
    from prometheus_client import CollectorRegistry, generate_latest, multiprocess
    from prometheus_client.registry import REGISTRY

    registry = REGISTRY
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        registry = CollectorRegistry()
        multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    read_now = CollectorRegistry()
    for one in figures:
        read_now.register(one)
    return generate_latest(registry) + generate_latest(read_now)


def exposition_answer(text: bytes) -> Response:
    """The response with `text` in Prometheus' text format."""
    return Response(text, content_type="text/plain; version=0.0.4; charset=utf-8")
