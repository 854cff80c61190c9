"""What /readyz says is found once for all who ask at about the same time; supervisors wait for no thread that waits for a database."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from flask import Flask

from sentinel.platform.http import problems
from sentinel.platform.http.asgi import Edge
from sentinel.platform.http.readiness import REMEMBERED_SECONDS, Readiness
from sentinel.platform.http.wire import HttpsOnly
from tests.support.harness import on_a_loop, thread_that_starts_later

SECONDS = 150


def test_what_was_found_is_kept_for_a_moment_and_then_found_anew() -> None:
    now, found = [100.0], [{"database": True}, {"database": False}, {"database": True}]
    readiness = Readiness(lambda: found.pop(0), now=lambda: now[0])
    for _ in range(50):
        assert readiness.checks == {"database": True}
        now[0] += REMEMBERED_SECONDS / 100
    now[0] += REMEMBERED_SECONDS
    assert readiness.checks == {"database": False}, "what fails is kept as long, and no longer"
    now[0] += REMEMBERED_SECONDS
    assert readiness.checks == {"database": True}
    assert found == []


def test_who_asks_while_the_checks_are_made_waits_for_what_they_find() -> None:
    begun, may_end = threading.Event(), threading.Event()
    looks: list[int] = []

    def check() -> dict[str, bool]:
        looks.append(1)
        begun.set()
        assert may_end.wait(SECONDS)
        return {"database": True}

    readiness = Readiness(check, now=lambda: 0.0)
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(lambda: readiness.checks) for _ in range(8)]
        assert begun.wait(SECONDS)
        may_end.set()
        assert [one.result(SECONDS) for one in asked] == [{"database": True}] * 8
    assert len(looks) == 1


class Silent:
    """A database that answers when it is let."""

    def __init__(self) -> None:
        self.asked, self.answers = threading.Semaphore(0), threading.Event()

    def ask(self) -> dict[str, bool]:
        self.asked.release()
        assert self.answers.wait(SECONDS)
        return {"database": False}


def flask_app(database: Silent) -> Flask:
    app = Flask("health", static_folder=None)
    app.add_url_rule("/page", "page", database.ask)
    app.add_url_rule("/healthz", "healthz", dict)
    problems.register(app)
    return app


async def asked(edge: Edge, path: str, method: str = "GET") -> tuple[int, bytes]:
    """Status and body."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {"type": "http", "method": method, "path": path, "headers": [(b"host", b"x")]}
    await edge({**scope, "scheme": "http", "server": ("x", 80)}, receive, send)
    return sent[0]["status"], sent[1]["body"]


@pytest.mark.parametrize(("path", "method"), [("/healthz", "GET"), ("/healthz/", "GET"), ("/healthz", "HEAD")])
def test_the_process_answers_while_every_thread_waits_for_the_database(path: str, method: str) -> None:
    """The finding: /healthz stood behind them, for more than five seconds, and processes that were well were started again."""
    database = Silent()
    edge = Edge(flask_app(database), threads=1, https_only=HttpsOnly())

    async def outage() -> tuple[int, bytes]:
        waiting = asyncio.ensure_future(asked(edge, "/page"))
        try:
            await asyncio.to_thread(database.asked.acquire, timeout=SECONDS)
            return await asyncio.wait_for(asked(edge, path, method), SECONDS / 3)
        finally:
            database.answers.set()
            await waiting

    assert on_a_loop(outage()) == (200, b'{"status":"ok"}')


def test_all_who_ask_whether_it_is_ready_wait_for_one_look_and_hold_no_thread() -> None:
    database = Silent()
    edge = Edge(flask_app(database), threads=1, readiness=Readiness(database.ask), https_only=HttpsOnly())

    async def in_flight() -> list[tuple[int, bytes]]:
        before = threading.enumerate()
        asking = [asyncio.ensure_future(asked(edge, "/readyz", method)) for method in ("GET", "HEAD") * 50]
        try:
            await asyncio.to_thread(database.asked.acquire, timeout=SECONDS)
            begun = [one.name for one in threading.enumerate() if one not in before]
            assert begun.count("readiness") == 1 and not any(name.startswith("documents") for name in begun)
        finally:
            database.answers.set()
        return await asyncio.gather(*asking)

    assert set(on_a_loop(in_flight())) == {(503, b'{"status":"not ready","checks":{"database":false}}')}
    assert not database.asked.acquire(blocking=False), "it looked a second time"


def test_a_look_that_fails_is_told_to_who_waits_and_made_again_for_the_next() -> None:
    found: list[Any] = [ZeroDivisionError, {"database": True}]

    def check() -> dict[str, bool]:
        if (next_one := found.pop(0)) is ZeroDivisionError:
            raise next_one
        return dict(next_one)

    readiness = Readiness(check)
    with pytest.raises(ZeroDivisionError):
        assert readiness.checks
    assert readiness.checks == {"database": True}


def test_a_thread_that_cannot_be_started_is_told_to_who_asks_and_the_next_one_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    readiness = Readiness(lambda: {"database": True})
    edge = Edge(Flask("health", static_folder=None), threads=1, readiness=readiness, https_only=HttpsOnly())

    async def answers() -> list[int]:
        monkeypatch.setattr(threading.Thread, "start", thread_that_starts_later())
        said = []
        for _ in range(2):
            try:
                status, _ = await asyncio.wait_for(asked(edge, "/readyz"), SECONDS / 3)
            except RuntimeError:
                status = 500
            said.append(status)
        return said

    assert on_a_loop(answers()) == [500, 200]
