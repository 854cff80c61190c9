"""Health, readiness and metrics answers, the same for every program; what is checked and counted is each one's own."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import orjson
import structlog
from flask import Response

from sentinel.core.errors import SentinelError
from sentinel.store.migrate import HEAD
from sentinel.store.safety import DatabaseStatus

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

REMEMBERED_SECONDS = 0.5

log = structlog.get_logger("sentinel")


class Readiness:
    """What a program's checks found, by name, kept for half a second: however many ask, the database is asked twice a second.

    Anybody may ask /readyz, and an answer costs about ten statements. Who asks while the checks are made waits for them.
    """

    def __init__(self, check: Callable[[], Mapping[str, bool]], now: Callable[[], float] = time.monotonic) -> None:
        self._check, self._now, self._lock = check, now, threading.Lock()
        self._made_at = float("-inf")
        self._checks: dict[str, bool] = {}

    @property
    def checks(self) -> Mapping[str, bool]:
        """Which checks hold."""
        with self._lock:
            if self._now() - self._made_at >= REMEMBERED_SECONDS:
                self._checks = dict(self._check())
                self._made_at = self._now()
            return self._checks


def alive() -> Response:
    """200: the process answers."""
    return Response(b'{"status":"ok"}', content_type="application/json")


def database_checks(ask: Callable[[], DatabaseStatus], name: str = "session") -> dict[str, bool]:
    """Whether the database of which `ask` tells is there, writable, at the schema we need, and our connection as meant.

    What is not as meant is logged with its cause; `name` says whose connection it is.
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
    """What the check says; False where nobody could say."""
    try:
        return check()
    except SentinelError:
        return False


def readiness_answer(readiness: Readiness) -> Response:
    """200 when every check holds; else 503, to be asked again in a second. Nobody may store it."""
    checks = readiness.checks
    ready = all(checks.values())
    body = {"status": "ready" if ready else "not ready", "checks": checks}
    response = Response(orjson.dumps(body), status=200 if ready else 503, content_type="application/json")
    response.headers["Cache-Control"] = "no-store"
    if not ready:
        response.headers["Retry-After"] = "1"
    return response


def exposition(*figures: Collector) -> bytes:
    """The Prometheus text of what all processes of this program counted, and of `figures`, which are read now."""
    # Imported once the folder of the shared counters is named: what is imported before counts for one process alone.
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
    """Prometheus' text format."""
    return Response(text, content_type="text/plain; version=0.0.4; charset=utf-8")
