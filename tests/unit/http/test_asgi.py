"""Hot routes on an event loop: what a handler is given, what it may refuse, and what goes on to the other app."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from flask import Flask

from sentinel.core.errors import InvalidInput
from sentinel.platform.http.asgi import HEALTH, ByListener, Documents, HotRoutes, by_path
from sentinel.platform.http.bodies import MAX_BYTES
from sentinel.platform.http.wire import EdgeResponse, Request, query_value
from tests.support.harness import on_a_loop

JSON = (b"content-type", b"application/json")


def ask(
    app: Any,
    *,
    path: str = "/hot",
    method: str = "POST",
    headers: Sequence[tuple[bytes, bytes]] = (),
    parts: Sequence[bytes] = (),
    port: int = 80,
) -> tuple[int, dict[bytes, bytes], bytes]:
    """One request through the app: status, headers, body."""
    sent: list[Any] = []
    waiting = [{"type": "http.request", "body": part, "more_body": n + 1 < len(parts)} for n, part in enumerate(parts)]

    async def receive() -> dict[str, Any]:
        return waiting.pop(0) if waiting else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": list(headers)}
    scope |= {"scheme": "http", "server": ("x", port)}
    on_a_loop(app(scope, receive, send))
    return sent[0]["status"], dict(sent[0]["headers"]), b"".join(one.get("body", b"") for one in sent)


async def echo(request: Request) -> EdgeResponse:
    """Says what it was given."""
    return EdgeResponse(orjson.dumps({"body": request.json(), "key": request.header("HTTP_X_API_KEY")}))


async def rest(scope: Any, receive: Any, send: Any) -> None:
    """The other app."""
    await send({"type": "http.response.start", "status": 299, "headers": []})
    await send({"type": "http.response.body", "body": b"the rest"})


def app(handler: Any = echo) -> HotRoutes:
    return HotRoutes(rest, {"/hot": handler}.get)


def sized(body: bytes, *more: tuple[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    return [JSON, (b"content-length", b"%d" % len(body)), *more]


def test_a_body_in_parts_arrives_whole_and_a_header_given_twice_is_both() -> None:
    headers = sized(b'{"a": 1}', (b"x-api-key", b"one"), (b"x-api-key", b"two"))
    status, sent, body = ask(app(), headers=headers, parts=[b'{"a"', b": 1}"])
    assert (status, orjson.loads(body)) == (200, {"body": {"a": 1}, "key": "one,two"})
    assert sent[b"content-length"] == str(len(body)).encode() and sent[b"cache-control"] == b"no-store"
    assert sent[b"x-request-id"]


@pytest.mark.parametrize(
    ("headers", "parts", "status"),
    [
        ([JSON], [b"{}"], 411),
        ([JSON, (b"transfer-encoding", b"chunked")], [b"{}"], 411),
        (sized(b"{}", (b"transfer-encoding", b"chunked")), [b"{}"], 411),
        ([JSON, (b"content-length", b"2"), (b"content-length", b"2")], [b"{}"], 411),
        ([JSON, (b"content-length", b"%d" % (MAX_BYTES + 1))], [b"x"], 413),
        ([JSON, (b"content-length", b"9" * 5000)], [b"x"], 413),
        ([JSON, (b"content-length", b"-1")], [b"{}"], 411),
        ([JSON, (b"content-length", "²".encode("latin-1"))], [b"{}"], 411),
        ([(b"content-type", b"text/plain"), (b"content-length", b"2")], [b"{}"], 415),
        (sized(b"{}  "), [b"{}"], 400),
        (sized(b'{"a":1,"a":2}'), [b'{"a":1,"a":2}'], 400),
    ],
)
def test_a_body_that_may_not_be_taken_is_refused_as_under_wsgi(headers: Any, parts: Any, status: int) -> None:
    found, sent, body = ask(app(), headers=headers, parts=parts)
    assert (found, sent[b"content-type"]) == (status, b"application/problem+json"), body


def test_what_a_handler_raises_is_a_problem_and_nothing_else_gets_out() -> None:
    async def refuses(request: Request) -> EdgeResponse:
        raise InvalidInput.of("amount", "must be positive")

    async def breaks(request: Request) -> EdgeResponse:
        raise RuntimeError("a secret")

    assert ask(app(refuses), headers=sized(b"{}"), parts=[b"{}"])[0] == 400
    status, _, body = ask(app(breaks), headers=sized(b"{}"), parts=[b"{}"])
    assert status == 500 and b"secret" not in body


@pytest.mark.parametrize(("path", "method"), [("/hot", "GET"), ("/hot", "PUT"), ("/other", "POST"), ("/hot/", "POST")])
def test_everything_else_goes_on(path: str, method: str) -> None:
    assert ask(app(), path=path, method=method)[0] == 299


@pytest.mark.parametrize(
    ("query", "value"),
    [("", ""), ("a=1", "1"), ("b=2&a=%C3%A9&a=3", "é"), ("a=", ""), ("a", ""), ("%00&a=x%00", "x\0"), ("&" * 19 + "a=1", "1")],
)  # fmt: skip
def test_a_field_of_a_query_is_its_first_value(query: str, value: str) -> None:
    assert query_value({"QUERY_STRING": query}, "a") == value


@pytest.mark.parametrize("query", ["&" * 20, "a=1&" * 21, "&" * 4000])
def test_a_query_of_many_fields_is_refused_by_name(query: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        query_value({"QUERY_STRING": query}, "a")
    assert refused.value.errors == {"query": "has more than 20 fields"}


@pytest.mark.parametrize("health_port", [0, 81])
def test_metrics_are_on_the_listener_for_supervisors_alone_however_they_are_spelled(health_port: int) -> None:
    flask = Flask("documents", static_folder=None)
    flask.url_map.strict_slashes = False
    for path in (*HEALTH, "/docs"):
        flask.add_url_rule(path, path, lambda: "counts")
    app = ByListener(Documents(flask, 1), health_port)

    def get(path: str, port: int = 80) -> tuple[int, dict[bytes, bytes], bytes]:
        return ask(app, method="GET", path=path, headers=[(b"host", b"x")], parts=[b""], port=port)

    for path in ("/metrics", "/metrics/", "/metrics//", "//metrics", "//metrics/", "///metrics///"):
        status, sent, _ = get(path)
        assert (status, sent[b"content-type"]) == (404, b"application/problem+json"), path
    assert [get(path)[0] for path in ("/healthz/", "/readyz/", "/docs/")] == [200, 200, 200]
    if health_port:
        for path in (*HEALTH, *(f"{one}/" for one in HEALTH)):
            assert get(path, health_port)[2] == b"counts", path
        for path in ("/docs", "/docs/", "/", "/metrics/x"):
            assert get(path, health_port)[0] == 404, path


def test_with_a_slash_at_the_end_it_is_the_same_route() -> None:
    routes = HotRoutes(rest, by_path({"/hot": echo}))
    assert [ask(routes, path=path, headers=sized(b"{}"), parts=[b"{}"])[0] for path in ("/hot", "/hot/", "/hot//")] == [
        200,
        200,
        299,
    ]
