"""The ways in which an answer is no permission, for an authority that misbehaves."""

from __future__ import annotations

import json
import select
import uuid
from collections.abc import Callable
from typing import Any

from tests.support.fake_exchange import Exchange, Handler

HANGS_SECONDS = 60.0
"""How long a slow server stays with a client that does not leave: far longer than one that keeps its time, on any machine."""
_DRIP_SECONDS = 0.05


def _left_within(exchange: Exchange, seconds: float) -> bool:
    """Wait until its client is gone, which sends nothing more before it is answered; whether it is."""
    link = select.poll()
    link.register(exchange.handler.connection, select.POLLIN)
    return bool(link.poll(1000 * seconds))


def _hang(exchange: Exchange) -> None:
    _left_within(exchange, HANGS_SECONDS)
    exchange.hang_up()


def _drip(exchange: Exchange, byte: bytes) -> None:
    """A byte every 50 ms: never idle for long, never done."""
    for _ in range(int(HANGS_SECONDS / _DRIP_SECONDS)):
        exchange.raw(byte)
        if _left_within(exchange, _DRIP_SECONDS):
            break
    exchange.hang_up()


def _drip_body(exchange: Exchange) -> None:
    exchange.raw(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 5000\r\n\r\n")
    _drip(exchange, b"{")


def _cut(exchange: Exchange) -> None:
    """Half an answer."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 999\r\n\r\n"
    exchange.raw(head + json.dumps(_ALLOW).encode())
    exchange.hang_up()


_ALLOW = {
    "decision": "ALLOW", "status": "allowed", "reason_code": "ok", "reason": "ok", "operation_id": str(uuid.uuid4()),
    "decision_event_id": str(uuid.uuid4()), "resource": "refund/rf_1", "risk_class": "standard", "permit_token": "p",
}  # fmt: skip


def _shape(**over: Any) -> Handler:
    """An ALLOW for the asked resource that is wrong in one place; None takes the field away."""

    def run(exchange: Exchange) -> None:
        body = {**_ALLOW, "resource": (exchange.body or {}).get("resource", "x"), **over}
        exchange.answer(200, {name: value for name, value in body.items() if value is not None})

    return run


FAULTS: dict[str, Handler] = {
    "hangs": _hang,
    "drips the body": _drip_body,
    "drips the head": lambda exchange: _drip(exchange, b"H"),
    "closes at once": lambda exchange: exchange.hang_up(),
    "500": lambda exchange: exchange.answer(500, {"decision": "ALLOW", "status": "allowed"}),
    "503 with an ALLOW in it": lambda exchange: exchange.answer(503, _ALLOW),
    "429": lambda exchange: exchange.answer(429, {}, Retry_After="1"),
    "302": lambda exchange: exchange.answer(302, _ALLOW, Location="http://127.0.0.1:1/"),
    "HTML": lambda exchange: exchange.answer(200, b"<html>ALLOW</html>", content_type="text/html"),
    "JSON as HTML": lambda exchange: exchange.answer(200, _ALLOW, content_type="text/html"),
    "garbage": lambda exchange: exchange.answer(200, b"\xff\xfe{{{"),
    "not HTTP": lambda exchange: exchange.raw(b"SSH-2.0-OpenSSH\r\n\r\n"),
    "a list": lambda exchange: exchange.answer(200, [_ALLOW]),
    "nothing": lambda exchange: exchange.answer(200, b""),
    "cut in the middle": _cut,
    "two lengths": lambda exchange: exchange.raw(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}"
    ),
    "too large": lambda exchange: exchange.answer(200, b'{"x":"' + b"x" * (1 << 20) + b'"}'),
    "ALLOW without a permit": _shape(permit_token=None),
    "ALLOW with an empty permit": _shape(permit_token=""),
    "ALLOW with a permit that is no text": _shape(permit_token=["p"]),
    "ALLOW in lower case": _shape(decision="allow"),
    "ALLOW that is true": _shape(decision=True),
    "ALLOW with status denied": _shape(status="denied"),
    "DENY with status allowed": _shape(decision="DENY"),
    "an unknown status": _shape(status="fine"),
    "no operation": _shape(operation_id=None),
    "an operation that is no id": _shape(operation_id="op"),
    "another resource": _shape(resource="refund/other"),
    "another risk class": _shape(risk_class="other"),
    "pending without an approval": _shape(decision="APPROVAL_REQUIRED", status="pending", permit_token=None),
}  # fmt: skip
"""Every way in which an answer is no permission, by name."""


def always(fault: Handler, *names: str) -> Callable[[Exchange], bool]:
    """A `misbehave` that breaks every call to `names` (default: all)."""

    def misbehave(exchange: Exchange) -> bool:
        if names and exchange.path.removeprefix("/api/sentinel/") not in names:
            return False
        fault(exchange)
        return True

    return misbehave
