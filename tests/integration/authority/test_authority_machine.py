"""The whole authority against a small model: any order of guards, starts, reports, people's words, halts and time.

A machine asks the real authority (two tenants, few accounts, few refunds, so that everything meets everything) and
`tests/support/authority_model.py` the same, and compares every answer, every operation and every budget after each step. At the
end of each run the invariants hold.
"""

from __future__ import annotations

import os
import random
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import astuple, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from sentinel.authority import housekeeping
from sentinel.authority.actor import Actor, local_administrator
from sentinel.authority.api.guard import GUARD, to_operation
from sentinel.authority.approvals import resolve_approval
from sentinel.authority.decisions import Recorded
from sentinel.authority.guard import decided_row
from sentinel.authority.halts import lift_halt, set_halt
from sentinel.authority.housekeeping import run_housekeeping
from sentinel.authority.in_doubt import resolve_in_doubt
from sentinel.core.errors import EngineUnavailable, SentinelError
from tests import mutants
from tests.support.authority_model import CAPS, REPORT_SECONDS, Action, Model
from tests.support.clock import set_clock, take_over
from tests.support.commit_loop import record
from tests.support.fixtures import ACTION, AGENT, Fixtures, guard_body, make_fixtures, unique
from tests.support.harness import Desk, caller_of, desks, digest_of, scaled

SEED = int(os.environ.get("SENTINEL_TEST_SEED", "0")) or random.SystemRandom().randrange(10**6)
NOON = datetime(2027, 6, 15, 0, 30, tzinfo=UTC)
"""When a run begins; it never reaches the next day, whose budgets the model does not have."""

SECONDS = st.sampled_from([1, 60, 119, 121, 121, 301, 1_801])
"""Steps of time on both sides of a permit's, a report's and an approval's end."""

TENANTS, ACCOUNTS, REFUNDS = st.sampled_from([0, 0, 0, 1]), st.sampled_from("aaab"), st.sampled_from("uvwxyz")
AMOUNTS = st.sampled_from([1, 14_999, 15_000, 15_000, 15_001, 15_001, 30_000, 49_999, 50_000, 100_000, 100_001])
ESCALATIONS = st.sampled_from([None, None, None, None, "open_complaint", "blacklisted"])
VERDICTS = st.sampled_from(["approve", "approve", "reject", "handled"])


@dataclass
class Tenant:
    """One of the two tenants of a run: its caller, its people and the halts that are in force."""

    desk: Desk
    tenant_id: uuid.UUID
    people: dict[str, uuid.UUID]
    halts: dict[str, uuid.UUID] = field(default_factory=dict)

    def actor(self, role: str) -> Actor:
        return Actor(self.tenant_id, self.people[role], f"{role}@x.example", role)


@dataclass
class Asked:
    """A guard request that was sent, and the permits that came back for it, oldest first."""

    tenant: int
    body: dict[str, Any]
    permits: list[Recorded] = field(default_factory=list)
    start_id: uuid.UUID = field(default_factory=uuid.uuid4)


met: Counter[str] = Counter()
"""What the runs of a test came across, printed: a machine that meets nothing proves nothing."""


class Machine(RuleBasedStateMachine):
    """Rules with a database behind them; `world` and `desk` are set for a whole test."""

    fixtures: Fixtures
    desk: Desk

    @initialize()
    def begin(self) -> None:
        self.model, self.asked = Model(), dict[str, Asked]()
        self.tenants: list[Tenant] = []
        self.stamp = unique("run")
        set_clock(self.fixtures, NOON)
        for _ in range(2):
            tenant_id, key, people = self.fixtures.new_tenant(unique("m").replace("_", "-"))
            self.tenants.append(Tenant(Desk(self.desk.authority, caller_of(self.fixtures, key)), tenant_id, people))

    # Agents

    @precondition(lambda self: len(self.asked) < 12)
    @rule(tenant=TENANTS, account=ACCOUNTS, refund=REFUNDS, minor=AMOUNTS, escalation=ESCALATIONS)
    def guard(self, tenant: int, account: str, refund: str, minor: int, escalation: str | None) -> None:
        key = f"{self.stamp}-{len(self.asked)}"
        self.asked[key] = Asked(tenant, self.body(key, account, refund, minor))
        self.ask(key, account, refund, minor, escalation)

    @precondition(
        lambda self: any(one.status in ("allowed", "approved", "pending") for one in self.model.actions.values())
    )
    @rule(data=st.data(), escalation=ESCALATIONS)
    def repeat_guard(self, data: st.DataObject, escalation: str | None) -> None:
        open_ones = [key for key, one in self.model.actions.items() if one.status in ("allowed", "approved", "pending")]
        fresh = [key for key in open_ones if self.model.actions[key].status == "approved"]
        key = data.draw(st.sampled_from(fresh or open_ones))
        known = self.model.actions[key]
        self.ask(key, known.account, known.refund, known.minor, escalation)

    @precondition(lambda self: bool(self.asked))
    @rule(data=st.data())
    def guard_something_known(self, data: st.DataObject) -> None:
        known = self.model.actions[key := data.draw(st.sampled_from(list(self.asked)))]
        self.ask(key, known.account, known.refund, known.minor, None)

    def ask(self, key: str, account: str, refund: str, minor: int, escalation: str | None) -> None:
        asked = self.asked[key]
        evidence = {"correlation_id": "c"} | ({"escalation": escalation} if escalation else {})
        got = self.tenants[asked.tenant].desk.guard({**asked.body, "evidence_context": evidence})
        again = key in self.model.actions
        wanted = self.model.guard(key, asked.tenant, account, refund, minor, escalation)
        met[f"{'again' if again else 'new'} {wanted.seen} {wanted.reason}"] += 1
        met["above a cap"] += wanted.budget is not None and any(wanted.budget.above.values())
        self.same_answer(asked, got, wanted)

    def same_answer(self, asked: Asked, got: Recorded, wanted: Action) -> None:
        if self.model.stopped(wanted):
            assert (got.decision, got.status, got.reason_code, got.permit_id) == ("DENY", "denied", "halted", None)
            return
        assert (got.decision, got.status, got.reason_code) == (wanted.decision, wanted.seen, wanted.reason)
        assert (got.permit_id is not None) == (wanted.status in ("allowed", "approved"))
        if got.permit_id is not None and got.permit_id not in [one.permit_id for one in asked.permits]:
            asked.permits.append(got)
        assert len(asked.permits) == wanted.permits, "as many permits as the model gave out"

    @rule(tenant=TENANTS, account=ACCOUNTS, refund=REFUNDS, minor=AMOUNTS)
    def check(self, tenant: int, account: str, refund: str, minor: int) -> None:
        desk = self.tenants[tenant].desk
        body = GUARD.of_object(self.body(f"{self.stamp}-check", account, refund, minor))
        operation = to_operation(body, body.idempotency_key)
        got = record(
            desk.authority.checks,
            decided_row(desk.authority, desk.caller, operation, has_start_step=True, elapsed_ms=0),
        )
        assert (got.decision, got.reason_code) == self.model.foresee(tenant, account, refund, minor)

    @precondition(lambda self: any(asked.permits for asked in self.asked.values()))
    @rule(data=st.data(), same_start=st.booleans(), last=st.booleans())
    def start(self, data: st.DataObject, same_start: bool, last: bool) -> None:
        key = data.draw(st.sampled_from([key for key, asked in self.asked.items() if asked.permits]))
        permits = len(self.asked[key].permits)
        self.redeem(key, permits if last else data.draw(st.integers(1, permits)), same_start)

    def redeem(self, key: str, nth: int, same_start: bool = True) -> None:
        asked = self.asked[key]
        start_id = asked.start_id if same_start else uuid.uuid4()
        started = done(lambda: self.tenants[asked.tenant].desk.start(asked.body, asked.permits[nth - 1], start_id))
        assert started == self.model.redeem(self.model.actions[key], nth, str(start_id))
        met[f"start {started}"] += 1

    @precondition(lambda self: bool(self.asked))
    @rule(data=st.data(), outcome=st.sampled_from(["success", "success", "error"]))
    def report(self, data: st.DataObject, outcome: str) -> None:
        self.report_outcome_of(data.draw(st.sampled_from(list(self.asked))), outcome)

    def report_outcome_of(self, key: str, outcome: str) -> None:
        asked = self.asked[key]
        if self.model.actions[key].not_executed:
            outcome = "error"  # a success is a contradiction, which halts: see test_contradictions.py
        taken = done(lambda: self.tenants[asked.tenant].desk.report(asked.body, outcome))
        assert taken == self.model.report(self.model.actions[key], outcome)
        met[f"report {outcome} {taken}"] += 1

    # Each action's own way forward, so that runs come far enough for things to meet

    @precondition(lambda self: bool(self.asked))
    @rule(data=st.data(), outcome=st.sampled_from(["success", "success", "error"]))
    def go_on(self, data: st.DataObject, outcome: str) -> None:
        going = [key for key, one in self.model.actions.items() if one.status not in ("denied", "expired", "completed")]
        key = data.draw(st.sampled_from(going or list(self.asked)))
        action, permits = self.model.actions[key], len(self.asked[key].permits)
        if action.status == "pending" and action.question:
            self.vote(key, "admin" if "approver" in action.question.yes else "approver", "approve")
        elif action.status == "approved" and not permits:
            self.ask(key, action.account, action.refund, action.minor, None)
        elif action.status in ("allowed", "approved"):
            self.redeem(key, permits)
        elif action.status == "in_doubt":
            self.find(key, outcome == "success")
        else:
            self.report_outcome_of(key, outcome)

    @precondition(lambda self: any(one.start is None and one.permit for one in self.model.actions.values()))
    @rule(data=st.data(), seconds=st.sampled_from([1, 121]))
    def start_late(self, data: st.DataObject, seconds: int) -> None:
        self.time_passes(seconds)
        unused = [key for key, one in self.model.actions.items() if one.start is None and one.permit]
        key = data.draw(st.sampled_from(unused))
        self.redeem(key, len(self.asked[key].permits))

    @precondition(lambda self: any(one.status == "approved" and one.permit for one in self.model.actions.values()))
    @rule(data=st.data(), escalation=st.sampled_from(["open_complaint", "blacklisted", None]))
    def renew_late(self, data: st.DataObject, escalation: str | None) -> None:
        self.time_passes(121)
        key = data.draw(st.sampled_from([key for key, one in self.model.actions.items() if one.status == "approved"]))
        known = self.model.actions[key]
        self.ask(key, known.account, known.refund, known.minor, escalation)

    # People

    @precondition(lambda self: any(one.question for one in self.model.actions.values()))
    @rule(data=st.data(), person=st.sampled_from(["approver", "admin", "admin", "viewer"]), verdict=VERDICTS)
    def decide(self, data: st.DataObject, person: str, verdict: str) -> None:
        waiting = [key for key, one in self.model.actions.items() if one.status == "pending"]
        asked_once = [key for key, one in self.model.actions.items() if one.question]
        self.vote(data.draw(st.sampled_from(waiting or asked_once)), person, verdict)

    def vote(self, key: str, person: str, verdict: str) -> None:
        tenant = self.tenants[self.asked[key].tenant]
        approval = self.one("select approval_id from sentinel.operation_states join sentinel.operations"
                            " using (tenant_id, operation_id) where idempotency_key = %s", key)  # fmt: skip
        try:
            got = resolve_approval(
                self.fixtures.console_pool, tenant.actor(person), approval, verdict=verdict, reason="r",
                digest=digest_of(self.fixtures, approval), reference="ticket" if verdict == "handled" else None).result  # fmt: skip
        except SentinelError as error:
            got = error.code
        action = self.model.actions[key]
        assert got == ("forbidden" if person == "viewer" else self.model.decide(action, person, verdict))
        met[f"decide {got}"] += 1

    @precondition(lambda self: any(one.start for one in self.model.actions.values()))
    @rule(data=st.data(), executed=st.booleans())
    def resolve(self, data: st.DataObject, executed: bool) -> None:
        doubtful = [key for key, one in self.model.actions.items() if one.status == "in_doubt"]
        self.find(
            data.draw(st.sampled_from(doubtful or [k for k, one in self.model.actions.items() if one.start])), executed
        )

    def find(self, key: str, executed: bool) -> None:
        tenant = self.tenants[self.asked[key].tenant]
        operation = self.one("select operation_id from sentinel.operations where idempotency_key = %s", key)
        since = self.one("select in_doubt_since from sentinel.operation_states where operation_id = %s", operation)
        taken = done(lambda: resolve_in_doubt(
            self.fixtures.console_pool, tenant.actor("admin"), operation, executed=executed, evidence="looked",
            in_doubt_since=since))  # fmt: skip
        assert taken == self.model.resolve(self.model.actions[key], executed)
        met[f"resolve {executed} {taken}"] += 1

    @rule(
        number=TENANTS, scope=st.sampled_from(["tenant", "action", "agent"]), on=st.sampled_from([True, False, False])
    )
    def halt(self, number: int, scope: str, on: bool) -> None:
        tenant, who = self.tenants[number], local_administrator(self.tenants[number].tenant_id)
        if on and scope not in tenant.halts:
            target = {"tenant": "", "action": ACTION, "agent": AGENT}[scope]
            tenant.halts[scope] = set_halt(
                self.fixtures.console_pool, who, scope=scope, target=target, reason="r"
            ).halt_id
            self.model.halts.add((number, scope))
        elif not on and tenant.halts:
            scope = scope if scope in tenant.halts else min(tenant.halts)
            lift_halt(self.fixtures.console_pool, who, tenant.halts.pop(scope), reason="over")
            self.model.halts.discard((number, scope))

    # Time

    @rule(seconds=SECONDS)
    def wait(self, seconds: int) -> None:
        self.time_passes(seconds)

    def time_passes(self, seconds: int) -> None:
        if self.model.now < 20 * 3600:
            self.model.now += seconds
            set_clock(self.fixtures, NOON + timedelta(seconds=self.model.now))

    @rule()
    def run_housekeeping(self) -> None:
        while any(astuple(run_housekeeping(self.desk.authority.pool, REPORT_SECONDS))):
            pass  # a round does a part of it, and what earlier runs left is due too
        self.model.run_housekeeping()

    # What must be so after every step

    @invariant()
    def every_operation_stands_where_the_model_says(self) -> None:
        rows = self.fixtures.admin.execute(
            "select o.idempotency_key, s.status, s.decision, s.reason_code, s.once_live, s.permit_id is not null, s.outcome"
            " from sentinel.operations o join sentinel.operation_states s using (tenant_id, operation_id)"
            " where o.idempotency_key like %s", [f"{getattr(self, 'stamp', 'none')}%"]).fetchall()  # fmt: skip
        wanted = {
            key: (one.status, one.decision, one.reason, one.holds_once, bool(one.permit), one.outcome)
            for key, one in getattr(self, "model", Model()).actions.items()
        }
        assert {row[0]: tuple(row[1:]) for row in rows} == wanted

    def teardown(self) -> None:
        for number, tenant in enumerate(getattr(self, "tenants", [])):
            self.budgets_are_those_of_the_model(number, tenant)
        assert self.fixtures.broken_invariants() == []

    def budgets_are_those_of_the_model(self, number: int, tenant: Tenant) -> None:
        for account in "ab":
            for limit in CAPS:
                got = self.one(
                    "select coalesce(sum(held_minor + captured_minor), 0)::bigint from sentinel.usage"
                    " where tenant_id = %s and limit_key like %s", tenant.tenant_id, f"%{limit}%{self.account(account)}%")  # fmt: skip
                assert got == self.model.used(number, account, limit), (limit, account)

    # Helpers

    def account(self, account: str) -> str:
        return f"{self.stamp}-acct-{account}"

    def body(self, key: str, account: str, refund: str, minor: int) -> dict[str, Any]:
        params = {"account_ref": self.account(account), "refund_id": f"{self.stamp}-rf-{refund}"}
        return guard_body(key, value=f"{minor // 100}.{minor % 100:02d}", params=params)

    def one(self, query: str, *arguments: Any) -> Any:
        return self.fixtures.one(query, *arguments)


def done(call: Any) -> bool:
    """Whether it was done; a refusal of ours is False, anything else is an error."""
    try:
        call()
    except EngineUnavailable:
        raise  # nothing that an agent or a person does may end like that
    except SentinelError:
        return False
    return True


@pytest.fixture
def clocked(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fixtures]:
    """A set of fixtures whose time the machine sets, and whose housekeeper brings ids for a run's few operations, not for hundreds."""
    monkeypatch.setattr(housekeeping, "_BATCH_SIZE", 10)
    fixtures = make_fixtures(database_url)
    take_over(fixtures)
    yield fixtures
    fixtures.close()


def run_machine(
    fixtures: Fixtures, *, runs: int, steps: int = 50, phases: tuple[Phase, ...] = (Phase.generate,), seed: int = SEED
) -> None:
    print(f"seed={seed} N={runs} runs x {steps} steps; replay with SENTINEL_TEST_SEED={seed}")
    with desks(fixtures, 1) as (desk,):
        bound = type("Bound", (Machine,), {"fixtures": fixtures, "desk": desk})
        run_state_machine_as_test(
            hypothesis.seed(seed)(bound),
            settings=hypothesis.settings(
                max_examples=runs, stateful_step_count=steps, database=None, phases=phases,
                suppress_health_check=list(HealthCheck), print_blob=False),
        )  # fmt: skip


@pytest.mark.timeout(600)  # a hundred and more runs of fifty steps
def test_the_authority_does_what_the_model_does_in_any_order(clocked: Fixtures) -> None:
    """At least ten starts, by up to three rounds of runs: how far runs come is drawn too (28 to 45 starts a round, mostly)."""
    met.clear()
    for turn in range(3):
        run_machine(clocked, runs=scaled(60), seed=SEED + turn)
        if met["start True"] >= 10:
            break
    print(dict(met))
    assert met["start True"] >= 10, "the runs did not come far"


def test_what_ran_out_is_given_back_to_who_is_refused_for_a_halt(clocked: Fixtures) -> None:
    with desks(clocked, 1) as (desk,):
        run = type("Bound", (Machine,), {"fixtures": clocked, "desk": desk})()
        run.begin()
        run.guard(tenant=0, account="a", refund="u", minor=15_000, escalation=None)
        run.halt(number=0, scope="tenant", on=True)
        run.wait(121)
        run.guard(tenant=0, account="a", refund="u", minor=15_000, escalation=None)
        run.every_operation_stands_where_the_model_says()
        run.teardown()


@pytest.mark.parametrize(
    ("function", "fence", "instead", "seed"),
    [
        ("sentinel.once_seen", "and s.once_live", "and s.once_live and s.approval_id is null", 12),
        ("sentinel.renew_permit", "where not r = any(lifted)", "where cardinality(lifted) = 0", 13),
        ("sentinel.judge_start", "s.permit_expires_at <= moment", "s.permit_expires_at <= moment - interval '1 minute'", 2),
        ("sentinel.settle_slots", "case when settlement = 'captured' then", "case when true then", 1),
    ],
    ids=["forgets who was approved", "an approval lifts everything", "a permit for a minute more", "nothing is given back"],
)  # fmt: skip
def test_mutant_with_one_broken_function_is_found(
    clocked: Fixtures, function: str, fence: str, instead: str, seed: int
) -> None:
    """`seed` finds it at once. With other rules, or another generator, it is one of the next that does, and takes longer."""
    mutants.cut(clocked, function, fence, instead)
    assert any(finds_a_fault(clocked, seed=seed + turn) for turn in range(125))


def finds_a_fault(fixtures: Fixtures, *, seed: int) -> bool:
    """Whether eight runs find one: by the model, or by the constraint that lets no second operation of one key live."""
    try:
        run_machine(fixtures, runs=8, seed=seed)
    except AssertionError:
        return True
    except EngineUnavailable as error:
        if "operation_states_once" not in str(error):
            raise
        return True
    return False
