"""What the contract's tests share: the shape of a refusal, and a request as bytes on a socket."""

from __future__ import annotations

from typing import Any

from tests.support.served_programs import BOTH_PREFIXES, Reply, Served, raw

POST_ROUTES = ("action/guard", "action/guard/start", "action/guard/report", "action/check", "action/report")
GUARD = f"{BOTH_PREFIXES[0]}/action/guard"


def problem(reply: Reply | None, status: int, kind: str | None = None) -> dict[str, Any]:
    """The problem document that an answer must be; fails on any other shape."""
    assert reply is not None, "no answer at all"
    assert reply.status == status, (reply.status, reply.body[:300])
    assert reply.headers["content-type"] == "application/problem+json"
    told = dict(reply.json)
    assert {"type", "title", "status", "detail", "instance"} <= told.keys()
    assert told["status"] == status
    assert told["type"].startswith("urn:sentinel:problem:")
    assert told["instance"] == reply.headers["x-request-id"]
    assert told.keys() <= {
        "type",
        "title",
        "status",
        "detail",
        "instance",
        "errors",
        "decision",
        "reason_code",
        "retryable",
        *(("recorded_params", "tightened") if status == 422 else ()),
    }
    for word in (b"Traceback", b"psycopg", b"select ", b"SELECT ", b'File "', b"sqlstate", b".py"):
        assert word not in reply.body, reply.body
    if kind is not None:
        assert reply.type == kind, told
    return told


def bytes_of(served: Served, body: bytes, *, path: str = GUARD, **headers: str) -> bytes:
    """A request as it goes over the socket."""
    lines = {
        "Host": f"127.0.0.1:{served.port}", "X-API-Key": served.key, "Content-Type": "application/json", "Content-Length": str(len(body)),
        "Connection": "close", **{name.replace("_", "-"): value for name, value in headers.items()},
    }  # fmt: skip
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value != "-")
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + body


def send(served: Served, body: bytes | str, **rest: str) -> Reply | None:
    return raw(
        served.port,
        bytes_of(served, body if isinstance(body, bytes) else body.encode("utf-8", "surrogatepass"), **rest),
    )
