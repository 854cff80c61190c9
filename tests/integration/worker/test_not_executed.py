"""The worker under a person's "not executed": it cannot be said while the worker may act, and nothing is paid after it (G52)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sentinel.authority.halts import list_halts
from sentinel.authority.housekeeping import run_housekeeping
from sentinel.authority.in_doubt import resolve_in_doubt
from sentinel.cli.scratch import listening
from tests import mutants
from tests.support.effects_server import InMemory, allowed_row, taken_over
from tests.support.fake_authority import FakeAuthority
from tests.support.fixtures import Fixtures
from tests.support.harness import actor, let_leave_end, refused
from tests.support.ledger_fixtures import CLEAN, LedgerFixtures, worker_settings
from tests.support.switch_fixtures import on
from tests.support.workflow_fixtures import BRANCHES, Shop, Spy
from worker.refunds.build import act_within_seconds
from worker.refunds.rows import Execution, LedgerRow
from worker.settlement import Effect, EffectResult, NoAnswer, Saga, Settled
from worker.settlement.effects import Effects
from worker.settlement.registry import Systems
from worker.settlement.saga import WORKED_ON_SECONDS, in_flight_seconds

RETAIL = BRANCHES["retail/standard"]


class Between(Spy):
    """A settlement system that does something while it is asked, and then settles or says nothing."""

    def __init__(self, name: str, do: Callable[[], None], says: EffectResult | None = None) -> None:
        super().__init__(name)
        self.do, self.answer = do, says
        self.settles_in_ledger = True

    def settle(self, row: LedgerRow, reference: uuid.UUID) -> EffectResult:
        self.do()
        return self.answer or super().settle(row, reference)


@pytest.fixture
def real(fixtures: Fixtures) -> Iterator[Shop]:
    """A shop whose authority is the real one, in this process."""
    on(fixtures, "retail.standard", 100)
    ledger = LedgerFixtures(fixtures.url, fixtures.tenant_id)
    with listening(fixtures.app) as url:
        yield Shop(ledger, url, fixtures.key)
    ledger.close()


def say_not_executed(fixtures: Fixtures) -> str:
    """ "" when it is taken, else why not."""
    run_housekeeping(fixtures.authority.pool, 0)
    operation = fixtures.one("select operation_id from sentinel.operations")
    return refused(
        lambda: resolve_in_doubt(
            fixtures.console_pool, actor(fixtures, "admin"), operation, executed=False, evidence="looked"
        )
    )


def time_passes(fixtures: Fixtures) -> None:
    """So much that nobody may act any more on what was answered, there and here."""
    let_leave_end(fixtures)
    fixtures.admin.execute(
        "update refunds.ledger_entries set act_until = clock_timestamp() where act_until > clock_timestamp()"
    )


def outbox_open(fixtures: Fixtures) -> int:
    return int(fixtures.one("select count(*) from refunds.outbox where acknowledged_at is null"))


def paid_after_not_executed(fixtures: Fixtures, real: Shop) -> tuple[str, int]:
    """The checker: a person speaks between the worker's start and its commit. (what the person heard, executions after)."""
    heard: list[str] = []
    real.spies["simulated_refund"] = Between("simulated_refund", lambda: heard.append(say_not_executed(fixtures)))
    real.enter(RETAIL)
    real.run()
    for _ in range(2):
        real.fixtures.make_due()
        real.run()
    return heard[0], real.fixtures.executions()


def test_not_executed_is_refused_while_the_worker_may_act(fixtures: Fixtures, real: Shop) -> None:
    assert paid_after_not_executed(fixtures, real) == ("still-acting", 1)
    assert real.stands()[0] == "EXECUTED" and outbox_open(fixtures) == 0
    assert fixtures.broken_invariants() == []


def test_mutant_that_gives_no_time_lets_it_be_said_and_pays(fixtures: Fixtures, real: Shop) -> None:
    mutants.cut(fixtures, "sentinel.resolve_in_doubt", "when not executed and s.act_until > moment then 'still_acting'")
    mutants.cut(fixtures, "sentinel.leave_until", "moment + make_interval(secs => coalesce(seconds, 900))", "moment")
    assert paid_after_not_executed(fixtures, real) == ("", 1), "said, and paid all the same"


def test_a_worker_that_is_late_pays_nothing_and_its_row_ends(fixtures: Fixtures, real: Shop) -> None:
    """It stood still between its start and its commit until its time was over, and a person said "not executed" meanwhile."""

    def stands_still() -> None:
        time_passes(fixtures)
        assert say_not_executed(fixtures) == ""

    real.spies["simulated_refund"] = Between("simulated_refund", stands_still)
    real.enter(RETAIL)
    real.run()
    assert real.fixtures.executions() == 0 and real.stands()[0] == "ALLOWED"
    real.fixtures.make_due()
    real.run()
    assert real.stands() == ("ERROR", None, "not_executed") and real.fixtures.executions() == 0
    said = fixtures.one("select last_error from refunds.ledger_entries")
    assert said.startswith("a person said that this refund was not executed") and "nothing was paid" in said
    events = real.fixtures.all("select event from refunds.ledger_events order by event_id desc limit 1")
    assert events == [("not_executed",)] and outbox_open(fixtures) == 0
    assert real.fixtures.ledger.retry(None, who="op", why="w") == {"r": "not_executed"}
    assert fixtures.one("select count(*) from refunds.ledger_entries where status = 'ERROR'") == 1
    assert fixtures.broken_invariants() == []


def test_mutant_that_commits_without_looking_at_its_time_pays(fixtures: Fixtures, real: Shop) -> None:
    mutants.cut(fixtures, "refunds.record_executions", "and e.act_until > clock_timestamp()")

    def stands_still() -> None:
        time_passes(fixtures)
        assert say_not_executed(fixtures) == ""

    real.spies["simulated_refund"] = Between("simulated_refund", stands_still)
    real.enter(RETAIL)
    real.run()
    assert real.fixtures.executions() == 1, "paid after a person said that it was not"
    assert outbox_open(fixtures) == 0, "and even then its report is taken"
    assert [halt.scope for halt in list_halts(fixtures.console_pool, fixtures.tenant_id)] == ["agent_action"]


def test_a_row_left_behind_by_a_dead_worker_is_not_paid_after_the_decision(fixtures: Fixtures, real: Shop) -> None:
    real.spies["simulated_refund"] = Between("simulated_refund", lambda: None, NoAnswer("the worker died here"))
    real.enter(RETAIL)
    real.run()
    assert say_not_executed(fixtures) == "still-acting"
    time_passes(fixtures)
    assert say_not_executed(fixtures) == ""
    real.spies["simulated_refund"] = Spy("simulated_refund")
    real.spies["simulated_refund"].settles_in_ledger = True  # type: ignore[attr-defined]
    for _ in range(3):
        real.fixtures.make_due()
        real.run()
    assert real.stands() == ("ERROR", None, "not_executed")
    assert real.touches() == [] and real.fixtures.executions() == 0
    assert fixtures.broken_invariants() == []


def test_each_new_claim_of_the_row_moves_the_time_forward(fixtures: Fixtures, real: Shop) -> None:
    real.spies["simulated_refund"] = Between("simulated_refund", lambda: None, NoAnswer("silent"))
    real.enter(RETAIL)
    real.run()
    time_passes(fixtures)
    real.fixtures.make_due()
    real.run()
    assert say_not_executed(fixtures) == "still-acting"
    real.spies["simulated_refund"] = Spy("simulated_refund")
    real.fixtures.make_due()
    real.run()
    assert real.stands()[0] == "EXECUTED" and fixtures.broken_invariants() == []


# With a system outside


def outside(shop: Shop, system: InMemory) -> Saga:
    """The shop's retail refunds settle there."""
    saga = Saga(
        "simulated_refund", [Effect(system)], Effects(shop.fixtures.pool, shop.fixtures.tenant_id), in_flight_seconds=0
    )
    shop.parts["systems"] = Systems({**shop.spies, saga.name: saga}, {})
    return saga


def test_what_its_system_did_all_the_same_is_told_and_halts(
    fixtures: Fixtures, real: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = InMemory("platform_backend")
    outside(real, system)
    monkeypatch.setattr(Effects, "move", lambda *args, **rest: False)  # it dies after the call, before it is on record
    real.enter(RETAIL)
    real.run()
    monkeypatch.undo()
    assert sum(system.done.values()) == 1
    time_passes(fixtures)
    assert say_not_executed(fixtures) == ""
    real.fixtures.make_due()
    real.run()
    assert real.stands()[::2] == ("ERROR", "not_executed") and sum(system.done.values()) == 1
    assert "but simulated_refund did it" in fixtures.one("select last_error from refunds.ledger_entries")
    assert outbox_open(fixtures) == 0, "the report is taken, not parked"
    assert fixtures.one("select in_doubt_reason from sentinel.operation_states") == "contradiction"
    (halt,) = list_halts(fixtures.console_pool, fixtures.tenant_id)
    assert halt.target == "retail-refund-agent refund.create"


@pytest.mark.parametrize("was_done", [False, True], ids=["it was not done", "it was done"])
def test_where_its_system_does_not_say_it_is_asked_until_it_does_and_nothing_is_freed_before(
    fixtures: Fixtures, real: Shop, monkeypatch: pytest.MonkeyPatch, was_done: bool
) -> None:
    system = InMemory("platform_backend")
    outside(real, system)
    monkeypatch.setattr(Effects, "move", lambda *args, **rest: False)
    real.enter(RETAIL)
    real.run()
    monkeypatch.undo()
    time_passes(fixtures)
    assert say_not_executed(fixtures) == ""
    if not was_done:
        system.done.clear()
    monkeypatch.setattr(InMemory, "look_up", lambda *args: NoAnswer("silent"))
    for _ in range(2):
        real.fixtures.make_due()
        real.run()
        assert real.stands()[0] == "ALLOWED", "what is not known ends nothing and frees nothing"
        assert "may have done it: " in fixtures.one("select last_error from refunds.ledger_entries")
    monkeypatch.undo()
    real.fixtures.make_due()
    real.run()
    assert real.stands()[::2] == ("ERROR", "not_executed") and real.fixtures.executions() == 0
    last = fixtures.one("select last_event from refunds.ledger_entries")
    assert last == ("gave_up" if was_done else "not_executed")
    assert len(list_halts(fixtures.console_pool, fixtures.tenant_id)) == was_done


def test_no_call_begins_after_the_time_to_act(ledger_fixtures: LedgerFixtures) -> None:
    system = InMemory("platform_backend")
    saga = Saga("s", [Effect(system)], Effects(ledger_fixtures.pool, ledger_fixtures.tenant_id), in_flight_seconds=0)
    row = allowed_row(ledger_fixtures, "r")
    ledger_fixtures.admin.execute("update refunds.ledger_entries set act_until = clock_timestamp()")
    assert isinstance(saga.settle(row, row.start_id), NoAnswer) and not system.done  # type: ignore[arg-type]
    execution = Execution(row, uuid.uuid4(), str(uuid.uuid4()), "s", uuid.uuid4(), {})
    assert ledger_fixtures.ledger.record_executions([execution]) == set()
    row = taken_over(ledger_fixtures, "r")
    assert isinstance(saga.settle(row, row.start_id), Settled)  # type: ignore[arg-type]


@pytest.mark.parametrize("encloses_start", [True, False])
def test_a_row_whose_time_to_act_is_over_before_its_execution_is_let_go_and_costs_no_attempt(
    ledger_fixtures: LedgerFixtures, shop: Shop, encloses_start: bool
) -> None:
    """Its lease still runs, and no other worker has it."""
    over = "update refunds.ledger_entries set act_until = clock_timestamp()"
    shop.spies["simulated_refund"] = Between("simulated_refund", lambda: ledger_fixtures.admin.execute(over))
    shop.enter(RETAIL, **({"order_ref": None, "risk": CLEAN} if encloses_start else {}))
    with shop.agent() as agent:
        (row,) = agent.run_once().rows
    assert row.state == ("GUARDING" if encloses_start else "ALLOWED") and ledger_fixtures.executions() == 0
    assert row.put_off and row.detail is not None and "time to act" in row.detail
    free = "select claimed_by is null and lease_until < clock_timestamp() + interval '20 seconds' from refunds.ledger_entries"
    assert ledger_fixtures.one(free)
    trails = "select count(*) from refunds.trails where jsonb_path_exists(steps, '$[*].output.report')"
    assert ledger_fixtures.one(trails) == 0, "none names a report that was not written"
    shop.spies["simulated_refund"] = Between("simulated_refund", lambda: None)
    ledger_fixtures.make_due()
    shop.run()
    assert shop.stands()[0] == "EXECUTED" and ledger_fixtures.executions() == 1
    assert ledger_fixtures.one("select attempts from refunds.ledger_entries") == 0


# Times that fit


@pytest.mark.parametrize("timeout", [0.5, 5.0, 60.0])
def test_a_call_in_flight_counts_for_longer_than_it_is_waited_for(timeout: float) -> None:
    settings = worker_settings(settlement_timeout_seconds=timeout)
    assert in_flight_seconds(timeout) == timeout + WORKED_ON_SECONDS
    assert act_within_seconds(settings) >= settings.act_seconds + in_flight_seconds(timeout)
    for system in Systems.from_settings(settings)._systems.values():
        assert not isinstance(system, Saga) or system._in_flight_seconds == in_flight_seconds(timeout)


def test_every_start_declares_the_workers_time(shop: Shop, authority: FakeAuthority) -> None:
    shop.enter(RETAIL)
    shop.run()
    assert authority.operations["refund:r"].declared == [150]


def test_a_report_that_contradicts_is_received_and_not_parked(shop: Shop, authority: FakeAuthority) -> None:
    shop.enter(RETAIL)
    authority.misbehave = lambda exchange: (
        exchange.path.endswith("report") and bool(exchange.problem(503, "busy") or True)
    )
    shop.run()
    assert shop.stands()[0] == "EXECUTED"
    authority.resolve_not_executed("refund:r")
    authority.misbehave = lambda exchange: False
    shop.fixtures.make_due()
    with shop.agent() as agent:
        agent.run_once()
    open_reports: Any = shop.fixtures.all("select next_attempt_at from refunds.outbox where acknowledged_at is null")
    assert open_reports == []
