"""A small scripted authority for tests of the client and the worker: it keeps decisions and starts by key, like the real one.

It lives in the test's process, so it survives a worker that is killed. `misbehave` replaces the answer of the next calls
(or of all) by one of the ways in which a dependency fails.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

SWITCHES = (
    "retail.standard", "small_refund.enabled", "small_refund.refund_fee", "small_refund.price_diff",
    "small_refund.compensation", "small_refund.defect", "small_refund.quality",
)  # fmt: skip
Handler = Callable[["Exchange"], None]


@dataclass
class Operation:
    """One recorded operation."""

    body: dict[str, Any]
    decision: str
    status: str
    reason_code: str
    operation_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    event_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    permit: str = field(default_factory=lambda: "permit-" + uuid.uuid4().hex)
    approval_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    expires_at: datetime = field(default_factory=lambda: datetime.now(UTC) + timedelta(minutes=30))
    start_id: str | None = None
    start_event_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    outcome: str | None = None
    report: Any = None
    asked_for: set[str] = field(default_factory=set)
    lifted: set[str] = field(default_factory=set)


class Exchange:
    """One request on its way to an answer."""

    def __init__(self, handler: BaseHTTPRequestHandler, body: dict[str, Any] | None) -> None:
        self.handler, self.body = handler, body
        self.is_answered = False
        self.path = urlsplit(handler.path).path

    def answer(self, status: int, body: Any, *, content_type: str = "application/json", **headers: str) -> None:
        """Send a whole answer in one write."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"HTTP/1.1 {status} x", f"Content-Type: {content_type}", f"Content-Length: {len(data)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.raw("\r\n".join([*lines, "", ""]).encode() + data)

    def problem(self, status: int, code: str, detail: str = "no") -> None:
        """Send a problem document."""
        body = {"type": f"https://sentinel.test/problems/{code}", "title": code, "status": status, "detail": detail}
        self.answer(status, body, content_type="application/problem+json")

    def raw(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.is_answered = True
        with contextlib.suppress(OSError):
            self.handler.wfile.write(data)
            self.handler.wfile.flush()

    def hang_up(self) -> None:
        """Close without another byte."""
        self.is_answered = True
        self.handler.close_connection = True


class _Part(Exchange):
    """One request of a batch; its answer is kept for the batch's."""

    def __init__(self, whole: Exchange, body: dict[str, Any]) -> None:
        super().__init__(whole.handler, body)
        self.path = self.path.removesuffix("/batch")
        self.whole = whole
        self.said: Any = None

    def answer(self, status: int, body: Any, *, content_type: str = "application/json", **headers: str) -> None:
        if isinstance(body, bytes) or "json" not in content_type:
            self.whole.answer(status, body, content_type=content_type, **headers)
        else:
            self.said = {"status": status, "replayed": "Idempotent_Replayed" in headers, "body": body}

    def raw(self, data: bytes) -> None:
        self.whole.raw(data)

    def hang_up(self) -> None:
        self.whole.hang_up()


class FakeAuthority:
    """ALLOW up to 150.00, APPROVAL_REQUIRED up to 1000.00, else DENY; any true risk flag is a DENY, a missing one too."""

    def __init__(self) -> None:
        self.operations: dict[str, Operation] = {}
        self.decided: list[dict[str, Any]] = []
        self.calls: list[str] = []
        self.halted = False
        self.switches = {name: {"on": True, "canary_percent": 100} for name in SWITCHES}
        self.halts: list[dict[str, str]] = []
        self.misbehave: Callable[[Exchange], bool] = lambda exchange: False
        self.lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None

    # Running

    @property
    def url(self) -> str:
        """Where it listens."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @contextlib.contextmanager
    def running(self, port: int = 0) -> Iterator[FakeAuthority]:
        """Serve for the block."""
        self._server = _Server(("127.0.0.1", port), _handler(self))
        thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join(2)

    # Answers

    def handle(self, exchange: Exchange) -> None:
        """Answer one request as the contract says."""
        name = exchange.path.removeprefix("/api/sentinel/")
        if name.endswith("/batch"):
            self._batch(exchange)
            return
        self.calls.append(name)
        if self.misbehave(exchange):
            return
        with self.lock:
            if name == "action/guard":
                self._guard(exchange)
            elif name == "action/guard/start":
                self._start(exchange)
            elif name == "action/guard/report":
                self._report(exchange)
            elif name == "action/check":
                operation = self._decide(exchange.body or {})
                exchange.answer(
                    200, {"decision": operation.decision, "reason_code": operation.reason_code, "reason": "x"}
                )
            elif name == "approvals/since":
                since = datetime.fromisoformat(parse_qs(urlsplit(exchange.handler.path).query)["since"][0])
                later = [d for d in self.decided if datetime.fromisoformat(d["decided_at"]) > since]
                exchange.answer(200, {"decisions": later})
            elif name == "heartbeat":
                exchange.answer(200, {"status": "OK"})
            elif name == "switches":
                exchange.answer(200, {"switches": self.switches, "halts": self.halts, "policies": {}})
            else:
                exchange.problem(404, "not-found")

    def _batch(self, exchange: Exchange) -> None:
        """Each request as if it came alone; what breaks a connection breaks that of the whole batch."""
        parts = [_Part(exchange, body) for body in (exchange.body or {})["requests"]]
        for part in parts:
            self.handle(part)
            if exchange.is_answered:
                return
        exchange.answer(200, {"answers": [part.said for part in parts]})

    def approve(self, key: str, status: str = "approved") -> None:
        """A person decides."""
        operation = self.operations[key]
        operation.status = "approved" if status == "approved" else "denied"
        operation.lifted |= operation.asked_for
        if status != "approved":
            operation.decision, operation.reason_code = "DENY", "approval_rejected"
        self.decided.append(
            {"request_id": operation.approval_id, "status": status, "approver": "a", "reason": "r", "agent_id": "x",
             "action": "refund.create", "decided_at": datetime.now(UTC).isoformat()}
        )  # fmt: skip

    def view(self, operation: Operation) -> dict[str, Any]:
        """A guard answer's body."""
        status = operation.status
        if operation.start_id is not None:
            status = "completed" if operation.outcome else "already_started"
        body = {
            "decision": operation.decision, "status": status, "reason_code": operation.reason_code, "reason": "because",
            "operation_id": operation.operation_id, "decision_event_id": operation.event_id, "policy_id": "p",
            "policy_version": "v1", "policy_label": "P", "resource": operation.body["resource"],
            "risk_class": operation.body["risk_class"], "latency_ms": 1, "proof_pack": {"proof_id": "pf_x"},
        }  # fmt: skip
        if status in ("allowed", "approved"):
            body["permit_token"] = operation.permit
            body["permit_expires_at"] = (datetime.now(UTC) + timedelta(minutes=2)).isoformat()
        if operation.decision == "APPROVAL_REQUIRED":
            body["approval_id"] = operation.approval_id
            body["expires_at"] = operation.expires_at.isoformat()
        if operation.outcome:
            body["outcome"] = operation.outcome
        return body

    def _guard(self, exchange: Exchange) -> None:
        body = dict(exchange.body or {})
        key = body["idempotency_key"]
        bound = {name: body[name] for name in ("agent_id", "action", "params", "resource", "risk_class")}
        operation = self.operations.get(key)
        replayed = operation is not None
        if operation is None:
            operation = self.operations[key] = self._decide(bound)
        elif {name: operation.body[name] for name in bound} != bound:
            exchange.problem(422, "idempotency-key-reused")
            return
        self._escalate(operation, (body.get("evidence_context") or {}).get("escalation"))
        if operation.status == "pending" and operation.expires_at <= datetime.now(UTC):
            operation.status = "expired"
        exchange.answer(200, self.view(operation), **({"Idempotent_Replayed": "true"} if replayed else {}))

    def _escalate(self, operation: Operation, reason: str | None) -> None:
        """A person is asked for what no person has approved; a permit that was not used is taken back."""
        open_states = ("allowed", "pending", "approved")
        if not reason or reason in operation.lifted or operation.start_id or operation.status not in open_states:
            return
        operation.asked_for.add(reason)
        if operation.status != "pending":
            operation.permit = "permit-" + uuid.uuid4().hex
        operation.decision, operation.status, operation.reason_code = "APPROVAL_REQUIRED", "pending", reason

    def _decide(self, body: dict[str, Any]) -> Operation:
        risk = body["params"].get("risk", {})
        amount = Decimal(str(body["params"]["amount"]["value"]))
        flags = [risk.get(name) for name in ("duplicate_refund", "stale_window", "suspicious_reason")]
        body.setdefault("resource", "x"), body.setdefault("risk_class", "standard")
        if self.halted:
            return Operation(body, "DENY", "denied", "halted")
        if any(flag is None for flag in flags) or "customer_attempts_24h" not in risk:
            return Operation(body, "DENY", "denied", "fact_missing")
        if any(flags):
            return Operation(body, "DENY", "denied", "risk")
        if amount > 1000:
            return Operation(body, "DENY", "denied", "over_limit")
        if amount > 150:
            return Operation(body, "APPROVAL_REQUIRED", "pending", "amount_needs_approval")
        return Operation(body, "ALLOW", "allowed", "within_policy_limit")

    def _start(self, exchange: Exchange) -> None:
        body = exchange.body or {}
        operation = self.operations.get(body["idempotency_key"])
        if operation is None or operation.permit != body["permit_token"]:
            exchange.problem(403, "permit-refused")
        elif operation.start_id not in (None, body["start_id"]):
            exchange.problem(409, "already-started")
        elif operation.start_id is None and (self.halted or operation.status not in ("allowed", "approved")):
            exchange.problem(403, "permit-refused")
        else:
            duplicate = operation.start_id is not None
            operation.start_id = body["start_id"]
            exchange.answer(
                200, {"started": True, "start_event_id": operation.start_event_id, "start_hash": "sha256:x", "duplicate": duplicate}
            )  # fmt: skip

    def _report(self, exchange: Exchange) -> None:
        body = exchange.body or {}
        operation = self.operations.get(body["idempotency_key"])
        if operation is None or operation.start_id is None:
            exchange.problem(409, "conflict")
            return
        content = (body["outcome"], json.dumps(body.get("result"), sort_keys=True))
        duplicate = operation.report is not None
        if duplicate and operation.report != content:
            exchange.problem(409, "report-contradicts")
            return
        operation.report, operation.outcome = content, body["outcome"]
        exchange.answer(
            200,
            {
                "received": True,
                "receipt_event_id": str(uuid.uuid4()),
                "receipt_hash": "sha256:y",
                "duplicate": duplicate,
            },
        )


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A worker that is killed in the middle is what these tests are about: no noise."""


def _handler(authority: FakeAuthority) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            authority.handle(Exchange(self, json.loads(body)))

        def do_GET(self) -> None:
            authority.handle(Exchange(self, None))

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


def _sleep(seconds: float) -> Handler:
    def run(exchange: Exchange) -> None:
        time.sleep(seconds)
        exchange.hang_up()

    return run


def _drip(exchange: Exchange) -> None:
    """A byte every 50 ms: never idle for long, never done."""
    exchange.raw(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n")
    for _ in range(60):
        exchange.raw(b"{")
        time.sleep(0.05)
    exchange.hang_up()


def _drip_head(exchange: Exchange) -> None:
    for _ in range(60):
        exchange.raw(b"H")
        time.sleep(0.05)
    exchange.hang_up()


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
    "hangs": _sleep(3.0),
    "drips the body": _drip,
    "drips the head": _drip_head,
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
