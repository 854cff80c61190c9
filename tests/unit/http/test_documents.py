"""Pages and documents behind an event loop: whole requests in, whole answers out, and what each address answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from typing import Any

import pytest

from sentinel.platform.http.asgi import ByListener, Documents
from sentinel.platform.http.bodies import MAX_BYTES
from tests.support.harness import on_a_loop


class Wsgi:
    """An app that counts who is inside, and answers how many bytes it was sent."""

    def __init__(self) -> None:
        self.asked = 0
        self.threads: set[str] = set()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        self.asked += 1
        self.threads.add(threading.current_thread().name)
        length = len(environ["wsgi.input"].read())
        start_response("200 OK", [("Content-Type", "text/plain")])
        return (part for part in (b"%d" % length, b" bytes"))


def scope_of(path: str = "/", *, port: int = 7861, **headers: str) -> dict[str, Any]:
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {
        "type": "http", "http_version": "1.1", "method": "POST", "scheme": "http", "path": path, "query_string": b"",
        "headers": named, "server": ("127.0.0.1", port), "client": ("127.0.0.1", 1),
    }  # fmt: skip


class Sent(list[dict[str, Any]]):
    """What an app sent."""

    async def send(self, message: Any) -> None:
        self.append(message)

    @property
    def status(self) -> int:
        return int(self[0]["status"])

    @property
    def body(self) -> bytes:
        return b"".join(one.get("body", b"") for one in self[1:])


def ask(app: Any, scope: dict[str, Any], *parts: bytes) -> Sent:
    """One request whose body comes in `parts`."""
    waiting, sent = [{"type": "http.request", "body": one, "more_body": True} for one in parts], Sent()
    waiting.append({"type": "http.request", "body": b"", "more_body": False})

    async def receive() -> Any:
        return waiting.pop(0) if waiting else {"type": "http.disconnect"}

    on_a_loop(app(scope, receive, sent.send))
    return sent


def test_a_body_in_parts_is_one_request_and_an_answer_in_parts_is_one_piece() -> None:
    wsgi = Wsgi()
    sent = ask(Documents(wsgi, 2), scope_of(content_length="6"), b"abc", b"def")
    assert (sent.status, sent.body) == (200, b"6 bytes")
    assert len([one for one in sent if one.get("body")]) == 1


def test_a_request_that_never_ends_takes_no_thread() -> None:
    wsgi = Wsgi()
    app = Documents(wsgi, 1)

    async def both() -> Sent:
        never: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        slow = [asyncio.ensure_future(app(scope_of(content_length="9"), lambda: never, Sent().send)) for _ in range(5)]
        await asyncio.sleep(0.05)
        sent = Sent()

        async def receive() -> Any:
            return {"type": "http.request", "body": b"x", "more_body": False}

        await asyncio.wait_for(app(scope_of(content_length="1"), receive, sent.send), 60)
        for one in slow:
            one.cancel()
        return sent

    assert on_a_loop(both()).body == b"1 bytes"
    assert (wsgi.asked, len(wsgi.threads)) == (1, 1)


def test_who_leaves_in_the_middle_of_a_body_is_not_answered() -> None:
    wsgi = Wsgi()

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    on_a_loop(Documents(wsgi, 1)(scope_of(content_length="9"), receive, Sent().send))
    assert wsgi.asked == 0


def test_what_says_that_it_is_too_long_is_not_waited_for_and_what_is_too_long_is_cut() -> None:
    wsgi = Wsgi()

    async def receive() -> Any:
        pytest.fail("its body was asked for")

    sent = Sent()
    on_a_loop(Documents(wsgi, 1)(scope_of(content_length=str(MAX_BYTES + 1)), receive, sent.send))
    assert sent.body == b"0 bytes"
    assert ask(Documents(wsgi, 1), scope_of(), *[b"x" * 60_000] * 9).body == b"%d bytes" % (MAX_BYTES + 1)


@pytest.mark.parametrize(
    ("health_port", "port", "path", "status"),
    [
        (0, 7861, "/ops", 200), (0, 7861, "/healthz", 200), (0, 7861, "/metrics", 404), (7871, 7861, "/metrics", 404),
        (7871, 7861, "/readyz", 200), (7871, 7871, "/metrics", 200), (7871, 7871, "/readyz", 200), (7871, 7871, "/ops", 404),
    ],
)  # fmt: skip
def test_metrics_are_on_the_health_port_and_nothing_else_is(
    health_port: int, port: int, path: str, status: int
) -> None:
    assert ask(ByListener(Documents(Wsgi(), 1), health_port), scope_of(path, port=port)).status == status
