"""A small scripted authority for tests of the client and the worker: it keeps decisions and starts by key, like the real one.

It lives in the test's process, so it survives a worker that is killed. `misbehave` replaces the answer of the next calls
(or of all) by one of the ways in which a dependency fails (`fake_faults.py`).
"""

from __future__ import annotations

import contextlib
import json
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.fake_exchange import Exchange, FakeServer, Part, handler_for

SWITCHES = (
    "retail.standard", "small_refund.enabled", "small_refund.refund_fee", "small_refund.price_diff",
    "small_refund.compensation", "small_refund.defect", "small_refund.quality",
)  # fmt: skip


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
    not_executed: bool = False
    declared: list[Any] = field(default_factory=list)
    """What each answered start declared as its time to act."""


class FakeAuthority:
    """ALLOW up to 150.00, APPROVAL_REQUIRED up to 1000.00, else DENY; any true risk flag is a DENY, a missing one too."""

    def __init__(self) -> None:
        self.operations: dict[str, Operation] = {}
        self.decided: list[dict[str, Any]] = []
        self.calls: list[str] = []
        self.halted = False
        self.switches = {name: {"on": True, "canary_percent": 100} for name in SWITCHES}
        self.halts: list[dict[str, str]] = []
        self.holder: dict[str, Any] | None = None
        """Whose key every key is; None: `key` is no route of it, as of another server."""
        self.misbehave: Callable[[Exchange], bool] = lambda exchange: False
        self.lock = threading.Lock()
        self._server: FakeServer | None = None

    # Running

    def forget(self) -> None:
        """As from a backup of before it was asked anything, but for its switches and standing halts."""
        self.operations, self.calls, self.halted = {}, [], False
        self.misbehave = lambda exchange: False

    @property
    def url(self) -> str:
        """Where it listens."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @contextlib.contextmanager
    def running(self, port: int = 0) -> Iterator[FakeAuthority]:
        """Serve for the block; what failed in answering fails whoever had it run."""
        server = self._server = FakeServer(("127.0.0.1", port), handler_for(self.handle))
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join(2)
        assert not server.failures, "\n".join(server.failures)

    def stop_listening(self) -> None:
        """Whoever connects from now on is refused; what is connected stays so."""
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()

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
            elif name.startswith("approval/"):
                self._approval(exchange, name.removeprefix("approval/"))
            elif name == "approvals/since":
                since = datetime.fromisoformat(parse_qs(urlsplit(exchange.handler.path).query)["since"][0])
                later = [d for d in self.decided if datetime.fromisoformat(d["decided_at"]) > since]
                exchange.answer(200, {"decisions": later})
            elif name == "heartbeat":
                exchange.answer(200, {"status": "OK"})
            elif name == "switches":
                exchange.answer(200, {"switches": self.switches, "halts": self.halts, "policies": {}})
            elif name == "key" and self.holder is not None:
                exchange.answer(200, self.holder)
            else:
                exchange.problem(404, "not-found")

    def _batch(self, exchange: Exchange) -> None:
        """Each request as if it came alone; what breaks a connection breaks that of the whole batch."""
        parts = [Part(exchange, body) for body in (exchange.body or {})["requests"]]
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

    def resolve_not_executed(self, key: str) -> None:
        """A person says so."""
        operation = self.operations[key]
        operation.not_executed, operation.outcome = True, "error"

    def lose_answer(self, exchange: Exchange) -> None:
        """Answer a guard as the contract says, and hang up before a byte of it: what was decided and started stays so."""
        with self.lock:
            self._guard(Part(exchange, exchange.body))
        exchange.hang_up()

    def view(self, operation: Operation) -> dict[str, Any]:
        """A guard answer's body."""
        status = operation.status
        if operation.start_id is not None:
            status = "completed" if operation.outcome else "already_started"
        body = {
            "decision": operation.decision, "status": status, "reason_code": operation.reason_code, "reason": "because",
            "operation_id": operation.operation_id, "decision_event_id": operation.event_id, "policy_id": "p",
            "policy_version": "v1", "policy_label": "P", "resource": operation.body["resource"],
            "risk_class": operation.body["risk_class"], "latency_ms": 1,
            "proof_pack": {"proof_id": "pf_x", "decision": operation.decision},
        }  # fmt: skip
        if status in ("allowed", "approved"):
            body["permit_token"] = operation.permit
            body["permit_expires_at"] = (datetime.now(UTC) + timedelta(minutes=2)).isoformat()
        if operation.decision == "APPROVAL_REQUIRED":
            body["approval_id"] = operation.approval_id
            body["expires_at"] = operation.expires_at.isoformat()
        if operation.outcome:
            body["outcome"] = operation.outcome
        if operation.not_executed:
            body["resolution"] = "not_executed"
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
            exchange.problem(422, "idempotency-key-reused", **self._first_asked(operation, bound))
            return
        if replayed and self.halted and operation.start_id is None and operation.status in ("allowed", "approved"):
            exchange.answer(200, self._under_halt(operation), Idempotent_Replayed="true")
            return
        self._escalate(operation, (body.get("evidence_context") or {}).get("escalation"))
        if operation.status == "pending" and operation.expires_at <= datetime.now(UTC):
            operation.status = "expired"
        if body.get("start_id") is not None and operation.not_executed:
            exchange.problem(409, "resolved-not-executed")
            return
        answer = self._view_with_start(operation, body)
        exchange.answer(200, answer, **({"Idempotent_Replayed": "true"} if replayed else {}))

    def _first_asked(self, operation: Operation, bound: dict[str, Any]) -> dict[str, Any]:
        """The params that the key was first used with, and whether those sent now are decided more strictly."""
        recorded = {"recorded_params": operation.body["params"]}
        first, now = self._decide({**operation.body}), self._decide({**bound})
        if now.decision == "ALLOW" or (now.decision, now.reason_code) == (first.decision, first.reason_code):
            return recorded
        worse = {"decision": now.decision, "reason_code": now.reason_code, "reason": f"{now.reason_code}!"}
        return {**recorded, "tightened": worse}

    def _under_halt(self, operation: Operation) -> dict[str, Any]:
        """Refused now, not for ever: the pack says what was decided."""
        answer = self.view(operation)
        del answer["permit_token"], answer["permit_expires_at"]
        return {**answer, "decision": "DENY", "status": "denied", "reason_code": "halted"}

    def _view_with_start(self, operation: Operation, body: dict[str, Any]) -> dict[str, Any]:
        """The answer; a permission is started under the id that the question encloses."""
        answer, start_id = self.view(operation), body.get("start_id")
        if start_id is None:
            return answer
        is_open = operation.start_id is None and operation.status in ("allowed", "approved")
        if is_open and self.halted:
            return self._under_halt(operation)
        if is_open or operation.start_id == start_id:
            operation.declared.append(body.get("act_within_seconds"))
            answer["start"] = {
                "started": True, "start_event_id": operation.start_event_id, "start_hash": "sha256:x", "duplicate": not is_open,
            }  # fmt: skip
            operation.start_id = start_id
        return answer

    def _approval(self, exchange: Exchange, approval_id: str) -> None:
        operation = next(one for one in self.operations.values() if one.approval_id == approval_id)
        status = {"denied": "rejected"}.get(operation.status, operation.status)
        exchange.answer(200, {"status": status, "agent_id": "x", "action": operation.body["action"]})

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
        elif operation.not_executed:
            exchange.problem(409, "resolved-not-executed")
        elif operation.start_id not in (None, body["start_id"]):
            exchange.problem(409, "already-started")
        elif operation.start_id is None and (self.halted or operation.status not in ("allowed", "approved")):
            exchange.problem(403, "permit-refused")
        else:
            duplicate = operation.start_id is not None
            operation.start_id = body["start_id"]
            operation.declared.append(body.get("act_within_seconds"))
            exchange.answer(
                200, {"started": True, "start_event_id": operation.start_event_id, "start_hash": "sha256:x", "duplicate": duplicate}
            )  # fmt: skip

    def _report(self, exchange: Exchange) -> None:
        body = exchange.body or {}
        operation = self.operations.get(body.get("idempotency_key", ""))
        if operation is None or operation.start_id is None:
            exchange.problem(409, "conflict")
            return
        content = (body["outcome"], json.dumps(body.get("result"), sort_keys=True))
        duplicate = operation.report is not None
        contradicts = operation.not_executed and body["outcome"] == "success"
        if duplicate and operation.report != content and not contradicts:
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
                **({"contradiction": True} if contradicts else {}),
            },
        )
