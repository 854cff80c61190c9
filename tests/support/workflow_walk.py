"""The real graph with its real steps, and everything outside of it made up: no database, no network, one row at a time."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sentinel.client import GuardAnswer, HaltInForce, Rejected, StartReceipt, Switches, SwitchState, Unreachable
from sentinel.client.answers import CheckAnswer
from sentinel.client.errors import NoAnswerKind
from sentinel.core.money import Money
from sentinel.platform.outbound.client import NoResponse
from sentinel.platform.outbound.failures import FailureKind
from sentinel.platform.resources import policies_dir
from sentinel.policy.switches import SwitchFile
from tests.support.workflow_fixtures import Spy
from tests.support.workflow_oracle import Situation
from worker.critic.case import CriticCase, CriticCode, Opinion
from worker.critic.critic import Critic
from worker.failpoints import Failpoints
from worker.images import Recognised, Unrecognised
from worker.refunds.concurrency import WorkerPool
from worker.refunds.confirmations import Confirmation
from worker.refunds.rows import (
    Change,
    Execution,
    FixedQuestion,
    KeptImage,
    KnownFacts,
    LedgerRow,
    OrderFacts,
    ReleaseLease,
)
from worker.refunds.transitions import RetryPolicy
from worker.refunds.workflow import build
from worker.refunds.workflow.build import Dependencies
from worker.refunds.workflow.routes import Routes
from worker.refunds.workflow.runner import ContextLoader, Found, NoDirectoryAnswer, RunContext, Runner, UnknownOrder
from worker.settlement import EffectRefused, EffectResult, NoAnswer
from worker.settlement.registry import Systems, system_names

ROUTES = Routes.load(
    policies_dir() / "routes.yaml", switches=SwitchFile(policies_dir()).declared.switches, systems=system_names()
)
DAY, TENANT = timedelta(days=1), uuid.UUID(int=8)
SILENT = Unreachable(NoAnswerKind.TIMEOUT, "no answer")
ON, OFF = SwitchState(True, 100), SwitchState(False, 0)


@dataclass
class Walk:
    """One row of one cell, through as many runs as it takes; it is the ledger, the authority and everybody else."""

    cell: str
    now: Situation
    systems: dict[str, Spy] = field(default_factory=lambda: {name: Spy(name) for name in system_names()})
    approved: set[str] = field(default_factory=set)
    asked: str | None = None
    started: list[str] = field(default_factory=list)
    executions: list[Execution] = field(default_factory=list)
    request: str | None = None
    ended: Change | ReleaseLease | None = None
    change_parts: Callable[[Dependencies], Dependencies] = lambda parts: parts

    # The run

    def run(self, build_runner: Callable[..., Runner] = build.build_runner) -> RunContext:
        """From the start, as after a claim."""
        said: dict[str, list[EffectResult]] = {
            "silent": [NoAnswer("lost")],
            "refused": [EffectRefused("422 account closed")],
        }
        for spy in self.systems.values():
            spy.ready = self.now.ready
            spy.says = said.get(self.now.settles, [])[:]
        self.asked = None
        parts = self.change_parts(Dependencies(
            ledger=self, client=self, worker_pool=_Alone(), retry_policy=RetryPolicy(8, 0.01, 0.05, random.Random(1)), routes=ROUTES,
            systems=Systems(self.systems, {}), critic=Critic(_Judge(self.now.rules), _Judge(self.now.model)),
            recogniser=self, confirmations=self, directories=dict.fromkeys(("retail", "private", "public"), self),
            model_branches=(),
        ))  # fmt: skip
        runner = build_runner(parts, failpoints=Failpoints(), stopping=threading.Event())
        (context,) = ContextLoader(parts.routes, self).contexts([self.row()], {"r": self.facts()})  # type: ignore[arg-type]
        runner.run([context])
        self.ended = context.event
        return context

    def row(self) -> LedgerRow:
        channel, scenario, mode = (*self.cell.split("/"), None)[:3]
        order_ref = "o" if self.now.complete else None
        return LedgerRow(
            TENANT, "r", "rf_r", "retail-refund-agent", "refund.create", self.now.amount, "USD", "refund:r", str(channel),
            str(scenario), mode, "acct", order_ref if channel != "retail" or order_ref else "bad order", 1, 0, self.request,
            None, None, None, None, None, None, None,
        )  # fmt: skip

    def facts(self) -> KnownFacts:
        now = self.now
        return KnownFacts(
            "r", "{}", "please", "acct", False, "enough", 0, now.complaint, now.delayed, now.mismatch,
            now.blacklisted, now.refunded_before, None, now.age_seconds, 0 if now.image == "missing" else 1,
            derived='{"stale_window": false, "customer_attempts_24h": 1}',
        )  # fmt: skip

    # The authority

    def switches(self) -> Switches:
        now = self.now
        one = SwitchState(True, 100 if now.in_canary else 0) if now.switch_on else OFF
        names = {route.switch for route in ROUTES.all}
        halts = (HaltInForce("tenant", "", "pause"),) if now.halted else ()
        found = {**dict.fromkeys(names, one), "small_refund.enabled": ON if now.master_on else OFF}
        return Switches(found, halts, {})

    def check_many(self, questions: Sequence[Mapping[str, Any]]) -> list[CheckAnswer]:
        return [CheckAnswer("ALLOW", "ok", "", None)] * len(questions)

    def guard_many(self, questions: Sequence[Mapping[str, Any]]) -> list[GuardAnswer | Unreachable]:
        return [self._guard(question) for question in questions]

    def _guard(self, question: Mapping[str, Any]) -> GuardAnswer | Unreachable:
        now, reason = self.now, question["evidence_context"].get("escalation")
        if now.guard != "answers":
            return SILENT
        wants = {reason} - {None} | ({"policy"} if now.policy == "APPROVAL_REQUIRED" else set())
        if now.policy == "DENY":
            status, decision = "denied", "DENY"
        elif not wants or (now.replays and now.policy == "ALLOW"):
            status, decision = "allowed", "ALLOW"
        elif wants <= self.approved:
            status, decision = "approved", "APPROVAL_REQUIRED"
        else:
            status, decision = "pending", "APPROVAL_REQUIRED"
            self.asked = sorted(wants - self.approved)[0]
        ids = {
            "operation_id": str(uuid.uuid4()),
            "decision_event_id": str(uuid.uuid4()),
            "approval_id": str(uuid.uuid4()),
        }
        return GuardAnswer(
            question["action"], question["agent_id"], question["idempotency_key"], decision, status, reason or "x", "",
            resource=question["resource"], risk_class=question["risk_class"],
            permit_token="permit" if status in ("allowed", "approved") else None, expires_at=datetime.now(UTC) + DAY, **ids,
        )  # fmt: skip

    def start_many(self, permits: Sequence[tuple[GuardAnswer, Any]], *, act_within_seconds: int) -> list[Any]:
        answers = []
        for answer, start_id in permits:
            assert answer.permit_token == "permit"
            if self.now.start == "answers":
                self.started.append(str(start_id))
            refusal = Rejected(status=403, type="x/permit-refused", title="no", detail="no")
            answers.append(
                {"answers": StartReceipt(str(uuid.uuid4()), "x", False), "silent": SILENT}.get(self.now.start, refusal)
            )
        return answers

    # The ledger

    def images(self, ids: Sequence[str]) -> dict[str, list[KeptImage]]:
        return {row_id: [KeptImage(row_id, "0" * 64, "image/png", None)] for row_id in ids}

    def image_content(self, _: KeptImage) -> bytes:
        return b"x"

    def keep_reading(self, *_: Any) -> None:
        """Read anew in the next run."""

    def fix_requests(self, rows: Sequence[tuple[LedgerRow, FixedQuestion, Any]]) -> dict[str, Any]:
        return {row.ledger_entry_id: row.start_id or start_id for row, _, start_id in rows}

    def why_refused(self, ids: Sequence[str]) -> dict[str, str]:
        """Nobody else is about."""
        return {}

    def apply(self, changes: Sequence[Change], impossible: dict[str, str] | None = None) -> dict[str, uuid.UUID]:
        return {change.row.ledger_entry_id: uuid.UUID(change.start_id or str(uuid.uuid4())) for change in changes}

    def record_executions(self, executions: Sequence[Execution]) -> set[str]:
        self.executions += executions
        return {execution.row.ledger_entry_id for execution in executions}

    # The customer, and what else is outside

    can_ask = True

    def digest_of(self, ask: Any) -> str:
        return f"{ask.ledger_entry_id} {ask.amount_minor}"

    def open(self, asks: Sequence[Any]) -> None:
        """The card of these terms is in `latest` from now on, not answered yet."""
        if asks:
            self.now = _with(self.now, card="pending")

    def latest(self, ids: Sequence[str]) -> dict[str, Confirmation]:
        now = self.now
        if now.card == "none":
            return {}
        digest = f"r {now.amount}" if now.card != "other" else f"r {now.amount + 1}"
        status = {"other": "confirmed"}.get(now.card, now.card)
        card = Confirmation("r", uuid.uuid4(), digest, status, datetime.now(UTC) + DAY, None)  # type: ignore[arg-type]
        return {"r": card}

    name = "made up"

    def is_ready(self) -> bool:
        return True

    def find(self, rows: Sequence[Any]) -> list[Found]:
        now = self.now
        found: dict[str, Found] = {"unknown": UnknownOrder(), "silent": NoDirectoryAnswer("timeout")}
        order = OrderFacts("o", datetime.now(UTC) - DAY, 90_000, "USD", "acct", "x", None, now.shipping_fee, 50_000, 50_000 - now.price_drop)  # fmt: skip
        return [found.get(now.order, order)] * len(rows)

    def recognise(self, image: Any) -> Recognised | Unrecognised | NoResponse:
        kind = "fee_receipt" if self.cell.endswith("fee") else "defect_photo"
        seen = {
            "unreadable": Unrecognised(),
            "silent": NoResponse(FailureKind.TIMEOUT),
            "wrong": Recognised("other", Money(10**6, "USD")),
        }
        return seen.get(self.now.image, Recognised(kind, Money(self.now.amount, "USD")))  # type: ignore[arg-type,return-value]


class _Judge:
    """Against it with this code, else for it."""

    def __init__(self, code: str) -> None:
        self._code = code

    def judge(self, case: CriticCase) -> Opinion:
        return Opinion(CriticCode(self._code) if self._code else CriticCode.OK, "rules")


class _Alone(WorkerPool):
    """No threads: one row needs none."""

    def __init__(self) -> None:
        self._size = 1

    def map(self, call: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        return [call(item) for item in items]


def _with(now: Situation, **changes: Any) -> Situation:

    return replace(now, **changes)
