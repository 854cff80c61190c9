"""Builders for tests of the workflow: a row of every branch that would be paid, and settlement systems that count.

A test says what stands against a row; everything else about it is as it should be, so that nothing but that can be the
reason why it is not paid.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

import pytest

from sentinel.client import Client, NoAnswerKind, Unreachable
from sentinel.core.money import Money
from sentinel.platform.outbound.client import NoResponse as NoReading
from sentinel.platform.outbound.failures import FailureKind
from tests.support.ledger_fixtures import LedgerFixtures, new_row, worker_settings
from worker.critic.case import CriticCase, CriticCode, Opinion
from worker.critic.critic import Critic
from worker.failpoints import Failpoints
from worker.images import ProofImage, Recognised, Unrecognised, proof_image
from worker.refunds import build
from worker.refunds.agent import Agent
from worker.refunds.rows import LedgerRow, NewRow, OrderFacts
from worker.refunds.settings import WorkerSettings
from worker.refunds.workflow.build import Dependencies
from worker.refunds.workflow.runner import RunContext, StepResult
from worker.refunds.workflow.steps.execute_by_system import ExecuteBySystem
from worker.settlement import EffectRefused, EffectResult, NoAnswer, Settled
from worker.settlement.registry import Systems, system_names

SECRETS = ("only-for-tests-of-the-workflow-0123456789",)
PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"

_MAKING, _MAKE_DEPENDENCIES = threading.Lock(), build.make_dependencies


@contextmanager
def lost_answers() -> Iterator[None]:
    """The authority takes what it is asked in a batch, and none of its answers arrives."""
    ask = Client.guard_many

    def loses_answers(client: Client, questions: Sequence[Any]) -> list[Any]:
        ask(client, questions)
        return [Unreachable(NoAnswerKind.BROKEN, "lost")] * len(questions)

    with patch.object(Client, "guard_many", loses_answers):
        yield


@dataclass(frozen=True)
class Branch:
    """A branch of the route table, and what it settles to (`policies/routes.yaml`)."""

    channel: str
    scenario: str
    system: str
    mode: str | None = None
    card: bool = True
    image: str | None = None

    @property
    def name(self) -> str:
        return "/".join(filter(None, (self.channel, self.scenario, self.mode)))


BRANCHES = {
    branch.name: branch
    for branch in (
        Branch("retail", "standard", "simulated_refund", card=False),
        Branch("private", "fee", "private_refund"),
        Branch("private", "price_diff", "price_difference"),
        Branch("private", "compensation", "coupon"),
        Branch("public", "fee", "platform_backend", image="fee_receipt"),
        Branch("public", "price_diff", "platform_backend", mode="price_drop"),
        Branch("public", "defect", "ticket_then_platform", image="defect_photo"),
        Branch("public", "quality", "ticket_then_platform", image="defect_photo"),
    )
}
FEE, PUBLIC_FEE = BRANCHES["private/fee"], BRANCHES["public/fee"]


class Spy:
    """A settlement system that writes down every touch. `says` are its next answers; then it settles."""

    moves_money = True
    reaches: tuple[str, ...] = ()

    def __init__(self, name: str) -> None:
        self.name, self.ready = name, True
        self.says: list[EffectResult] = []
        self.touches: list[tuple[str, str]] = []

    def is_ready(self) -> bool:
        return self.ready

    def settle(self, row: LedgerRow, reference: uuid.UUID) -> EffectResult:
        self.touches.append(("settle", row.ledger_entry_id))
        return self.says.pop(0) if self.says else Settled(str(reference))

    def look_up(self, reference: uuid.UUID) -> NoAnswer:
        self.touches.append(("look_up", str(reference)))
        return NoAnswer("a spy")


class Eyes:
    """A recogniser that reads what a test says about a row's images; else a receipt of ten, or a photo of a defect."""

    name = "eyes"

    def __init__(self) -> None:
        self.ready = True
        self.sees: dict[str, Recognised | Unrecognised | NoReading] = {}

    def is_ready(self) -> bool:
        return self.ready

    def recognise(self, image: ProofImage) -> Recognised | Unrecognised | NoReading:
        return self.sees.get(image.ledger_entry_id, NoReading(FailureKind.TIMEOUT))


class Says:
    """A judge with one opinion."""

    def __init__(self, code: CriticCode, layer: Any = "model") -> None:
        self.code, self.layer = code, layer

    def judge(self, case: CriticCase) -> Opinion:
        return Opinion(self.code, self.layer)


class _Entry:
    """A row that its branch would pay, but for what is said here: of its order, of its image, or of itself."""

    def __init__(self, name: str, branch: Branch, *, days_ago: float = 2, order: Mapping[str, Any] | None = None,
                 image: Recognised | Unrecognised | None = None, delayed: bool | None = None, has_order: bool = True,
                 has_image: bool = True, value: int = 400, **row: Any) -> None:  # fmt: skip
        self.name, self._branch, self._days_ago, self._order = name, branch, days_ago, order or {}
        self.image, self.delayed, self.has_order, self.has_image = image, delayed, has_order, has_image
        self._value, self._row = value, row

    def order_facts(self) -> OrderFacts:
        delivered = datetime.now(UTC) - timedelta(days=self._days_ago)
        facts = OrderFacts(
            f"ord_{self.name}", delivered, 90_000, "USD", f"acct_{self.name}", self._branch.channel, delivered, 490, 5000, 4000
        )  # fmt: skip
        return replace(facts, **self._order)

    def new_row(self) -> NewRow:
        fields = {
            "channel": self._branch.channel,
            "scenario": self._branch.scenario,
            "mode": self._branch.mode,
            "order_ref": f"ord_{self.name}",
        }
        return new_row(self.name, self._value, **{**fields, "risk": {}, **self._row})


@dataclass
class Shop:
    """A ledger, an authority to ask, and everything outside in the test's hands."""

    fixtures: LedgerFixtures
    url: str
    key: str = "key"
    spies: dict[str, Spy] = field(default_factory=lambda: {name: Spy(name) for name in system_names()})
    eyes: Eyes = field(default_factory=Eyes)
    critic: Critic = field(default_factory=lambda: Critic(model=Says(CriticCode.OK)))
    settings: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, Any] = field(default_factory=dict)

    # Rows

    def enter(self, branch: Branch, name: str = "r", **over: Any) -> str:
        """A row that its branch would pay, but for what is said in `over`, as `_Entry` takes it. Returns its id."""
        self.enter_all(branch, {name: over})
        return name

    def enter_all(self, branch: Branch, rows: Mapping[str, Mapping[str, Any]]) -> None:
        """Several at once: what is said against each, by its id."""
        entries = [_Entry(name, branch, **over) for name, over in rows.items()]
        if orders := [one.order_facts() for one in entries if one.has_order]:
            self.fixtures.ledger.add_orders(orders)
        for one in entries:
            if branch.scenario == "compensation" if one.delayed is None else one.delayed:
                self.flag(one.name, branch, "delayed_shipment")
        self.fixtures.add(*(one.new_row() for one in entries))
        for one in entries:
            if branch.image and one.has_image:
                self.show(one.name, one.image or Recognised(branch.image, Money(10_000, "USD")))  # type: ignore[arg-type]

    def flag(self, name: str, branch: Branch, flag: str) -> None:
        """Something stands against the row's order."""
        given = {"channel": branch.channel, "order_ref": f"ord_{name}", "flag": flag, "closed": False}
        self.fixtures.ledger.flag_orders([given])

    def show(self, name: str, reading: Recognised | Unrecognised | NoReading) -> None:
        """A proof image of the row, and what is to be seen in it."""
        picture = proof_image(name, PNG + name.encode())
        self.fixtures.ledger.add_image(name, picture.sha256, picture.media_type, picture.content)
        self.eyes.sees[name] = reading

    # Work

    @contextmanager
    def agent(self) -> Iterator[Agent]:
        """A new worker in this process, put together as the product does it, with the outside replaced."""
        settings, ledger = self._settings(), self.fixtures.ledger_of(f"worker-{uuid.uuid4().hex[:6]}")
        with self._client(settings) as client:
            # One at a time: agents are made in several threads, and patches that overlap are not all taken back.
            with _MAKING, patch.object(build, "make_dependencies", self._parts):
                agent = build.make_agent(settings, ledger, client, failpoints=Failpoints())
            yield agent

    def simulated(self, name: str = "r") -> tuple[str | None, str | None]:
        """(decision, reason) that a worker would come to about a row that is due, as `--dry-run` says."""
        settings, ledger = self._settings(), self.fixtures.ledger_of("simulator")
        with (
            self._client(settings) as client,
            _MAKING,
            patch.object(build, "make_dependencies", self._parts),
            build.open_simulator(settings, ledger, client) as simulator,
        ):
            (found,) = (one for one in simulator.simulate_due(100) if one.ledger_entry_id == name)
        return found.decision, found.reason_code

    def _settings(self) -> WorkerSettings:
        return worker_settings(
            authority_url=self.url,
            **{"confirm_secrets": SECRETS, "notifier": "log", "public_orders_imported": True, **self.settings},
        )  # fmt: skip

    def _client(self, settings: WorkerSettings) -> Client:
        return Client(
            self.url, self.key, agent_id=settings.agent_id, timeout_seconds=settings.guard_timeout_seconds, retries=0
        )

    def _parts(self, *args: Any, **fields: Any) -> Dependencies:
        ours = {"systems": Systems(self.spies, {}), "critic": self.critic, "recogniser": self.eyes, **self.parts}
        return replace(_MAKE_DEPENDENCIES(*args, **fields), **ours)

    def run(self, times: int = 1) -> None:
        """Process what is due; more than once with every pause over."""
        for turn in range(times):
            if turn:
                self.fixtures.make_due()
            with self.agent() as agent:
                agent.run_once()

    def answer(self, *names: str, answer: str = "confirm") -> None:
        """The customers tap."""
        for name in names:
            said = self.fixtures.one(
                "select refunds.answer_confirmation(tenant_id, confirmation_id, digest, %s) from refunds.confirmations"
                " where ledger_entry_id = %s and status = 'pending'", answer, name)  # fmt: skip
            assert said in ("confirmed", "declined"), said

    # What became of it

    def stands(self, name: str = "r") -> tuple[str, str | None, str | None]:
        """(status, waiting for, reason code)."""
        return self.fixtures.all(  # type: ignore[return-value]
            "select status, waiting_for, reason_code from refunds.ledger_entries where ledger_entry_id = %s", name
        )[0]

    def steps(self, name: str = "r") -> list[dict[str, Any]]:
        """The steps of the newest run."""
        return list(
            self.fixtures.one(
                "select steps from refunds.trails where ledger_entry_id = %s order by trail_id desc", name
            )
        )

    def touches(self) -> list[tuple[str, str, str]]:
        """Every touch of every settlement system."""
        return [(spy.name, *touch) for spy in self.spies.values() for touch in spy.touches]

    def cards(self) -> int:
        """How many cards there have been."""
        return int(self.fixtures.one("select count(*) from refunds.confirmations"))

    def nothing_paid(self) -> bool:
        """No system touched, no execution written."""
        return not self.touches() and self.fixtures.executions() == 0


def take_refusals_for_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant of the step that settles: what was refused for good is asked for again."""
    real = ExecuteBySystem._settled

    def settled(self: ExecuteBySystem, context: RunContext, name: str) -> StepResult:
        if isinstance(context.settled, EffectRefused):
            context.settled = NoAnswer(context.settled.reason)
        return real(self, context, name)

    monkeypatch.setattr(ExecuteBySystem, "_settled", settled)


def executed_once(shop: Shop, names: Sequence[str], system: str) -> bool:
    """Each of these settled by exactly this system, once, and nothing else."""
    wanted = sorted((system, "settle", name) for name in names)
    rows = shop.fixtures.all("select system, ledger_entry_id from refunds.executions order by 2")
    return sorted(shop.touches()) == wanted and rows == sorted((system, name) for name in names)
