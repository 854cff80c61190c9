"""What the agent does with rows while everything works: each ends where the authority says, and the ledger says why."""

from __future__ import annotations

import itertools
import json
import threading
import uuid
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.fake_authority import FakeAuthority
from tests.support.fake_exchange import Exchange
from tests.support.ledger_fixtures import LedgerFixtures, claimed, looping, new_row, wait_until
from worker import switch_cache
from worker.refunds.rows import Change, LedgerEvent, LedgerState, OrderFacts

COUNTS = ("customer_attempts_24h", "account_refunds_30d")


def entry(fixtures: LedgerFixtures, name: str, columns: str) -> tuple[object, ...]:
    """Columns of a row."""
    return fixtures.all(f"select {columns} from refunds.ledger_entries where ledger_entry_id = %s", name)[0]


def test_rows_end_as_the_authority_says_and_only_allowed_ones_are_executed(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    ledger_fixtures.add(new_row("low"), new_row("mid", 42000), new_row("high", 200_000))
    with ledger_fixtures.agent(authority.url) as agent:
        outcome = agent.run_once()
    assert ledger_fixtures.states() == {"low": "EXECUTED", "mid": "APPROVAL_REQUIRED", "high": "DENIED"}
    assert not outcome.failed
    assert outcome.reported == 1
    assert ledger_fixtures.all("select ledger_entry_id from refunds.executions") == [("low",)]
    assert authority.operations["refund:low"].outcome == "success"
    assert entry(ledger_fixtures, "high", "decision, reason_code, proof_id") == ("DENY", "over_limit", "pf_x")
    assert entry(ledger_fixtures, "low", "permit_token, lease_until, last_error") == (None, None, None)
    assert ledger_fixtures.one("select count(*) from refunds.outbox where acknowledged_at is null") == 0


def test_a_worker_tells_the_action_that_was_decided_last_and_how(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    """The operators' `agent/status` and overview show these two as they stand here."""
    ledger_fixtures.add(new_row("high", 200_000))
    with ledger_fixtures.agent(authority.url) as agent:
        agent.run_once()
    assert ledger_fixtures.all("select last_action, last_decision from refunds.workers") == [("refund.create", "DENY")]


def test_the_question_has_a_start_step_the_derived_facts_and_none_of_the_customers_words(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    ledger_fixtures.add(new_row("r", reason="it broke, I am so sad", order_ref="o1", channel="retail"))
    with ledger_fixtures.agent(authority.url) as agent:
        agent.run_once()
    body = authority.operations["refund:r"].body
    assert body["resource"] == "refund/rf_r"
    assert body["params"] == {
        "amount": {"value": 1, "currency": "USD"}, "ledger_entry_id": "r", "refund_id": "rf_r", "channel": "retail",
        "scenario": "standard", "account_ref": "acct_r", "order_ref": "o1",
        "risk": {"duplicate_refund": False, "stale_window": False, "suspicious_reason": False, "customer_attempts_24h": 1,
                 "account_refunds_30d": 0},
    }  # fmt: skip
    assert "sad" not in str(body)


def test_a_decided_approval_is_learnt_and_goes_on(ledger_fixtures: LedgerFixtures, authority: FakeAuthority) -> None:
    ledger_fixtures.add(new_row("yes", 42000), new_row("no", 43000), new_row("open", 44000))
    with ledger_fixtures.agent(authority.url) as agent:
        agent.run_once()
    authority.approve("refund:yes")
    authority.approve("refund:no", "rejected")
    with ledger_fixtures.agent(authority.url) as agent:
        assert len(agent.run_once().rows) == 2
    assert ledger_fixtures.states() == {"yes": "EXECUTED", "no": "DENIED", "open": "APPROVAL_REQUIRED"}
    assert entry(ledger_fixtures, "no", "reason_code") == ("approval_rejected",)
    assert ledger_fixtures.one("select since from refunds.approval_cursors") is not None


def test_an_approval_that_nobody_decided_ends_when_it_runs_out(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    ledger_fixtures.add(new_row("r", 42000))
    with ledger_fixtures.agent(authority.url) as agent:
        agent.run_once()
    authority.operations["refund:r"].expires_at = datetime.now(UTC)
    ledger_fixtures.admin.execute("update refunds.ledger_entries set next_attempt_at = clock_timestamp()")
    with ledger_fixtures.agent(authority.url) as agent:
        agent.run_once()
    assert entry(ledger_fixtures, "r", "status, reason_code") == ("DENIED", "approval_expired")


def test_of_two_entries_for_one_refund_the_earlier_wins(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    ledger_fixtures.add(new_row("first", refund_id="rf"))
    ledger_fixtures.add(new_row("second", refund_id="rf"))
    with ledger_fixtures.agent(authority.url) as agent:
        agent.run_once()
    assert ledger_fixtures.states() == {"first": "EXECUTED", "second": "DENIED"}
    assert authority.operations["refund:second"].body["params"]["risk"]["duplicate_refund"] is True


def test_a_refund_is_no_duplicate_of_one_that_was_denied(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    ledger_fixtures.add(new_row("first", 500_000, refund_id="rf"))
    with ledger_fixtures.agent(authority.url) as agent:
        agent.run_once()
        ledger_fixtures.add(new_row("second", refund_id="rf"))
    with ledger_fixtures.agent(authority.url) as agent:
        agent.run_once()
    assert ledger_fixtures.states() == {"first": "DENIED", "second": "EXECUTED"}


def test_an_order_is_refunded_up_to_what_was_paid_and_not_one_cent_more(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    ordered = datetime.now(UTC) - timedelta(days=3)
    ledger_fixtures.ledger.add_orders([OrderFacts("o1", ordered, 1000, "USD", account_ref="acct")])
    for name, value in (("a", 400), ("b", 600), ("c", 1)):
        ledger_fixtures.add(new_row(name, value, order_ref="o1", account_ref=None, risk={}))
    with ledger_fixtures.agent(authority.url) as agent:
        agent.run_once()
    assert ledger_fixtures.states() == {"a": "EXECUTED", "b": "EXECUTED", "c": "APPROVAL_REQUIRED"}
    assert authority.operations["refund:c"].asked_for == {"order_overdrawn"}
    assert authority.operations["refund:c"].body["params"]["account_ref"] == "acct"


def test_a_window_is_stale_after_thirty_days_whatever_was_handed_in(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    now = datetime.now(UTC)
    for name, age in (("old", timedelta(days=30, seconds=1)), ("just", timedelta(days=30))):
        ledger_fixtures.ledger.add_orders([OrderFacts(f"o_{name}", now - age, 10_000, "USD")])
        ledger_fixtures.add(new_row(name, order_ref=f"o_{name}", requested_at=now))
    with ledger_fixtures.agent(authority.url) as agent:
        agent.run_once()
    assert ledger_fixtures.states() == {"old": "DENIED", "just": "EXECUTED"}


def test_attempts_are_counted_over_a_day_and_never_below_what_was_handed_in(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    now = datetime.now(UTC)
    given = {
        "risk": {"duplicate_refund": False, "stale_window": False, "customer_attempts_24h": 0},
        "account_ref": "acct",
    }
    ages = {"too_old": 24 * 3600, "one": 23 * 3600, "two": 60, "three": 0}
    ledger_fixtures.add(*(new_row(n, requested_at=now - timedelta(seconds=s), **given) for n, s in ages.items()))
    ledger_fixtures.add(
        new_row("handed", risk={"duplicate_refund": False, "stale_window": False, "customer_attempts_24h": 9})
    )
    with ledger_fixtures.agent(authority.url) as agent:
        agent.run_once()
    found = {
        k.removeprefix("refund:"): o.body["params"]["risk"]["customer_attempts_24h"]
        for k, o in authority.operations.items()
    }
    assert found == {"too_old": 1, "one": 2, "two": 3, "three": 3, "handed": 9}


def test_refunds_of_an_account_are_counted_over_thirty_days_when_they_are_paid(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    now = datetime.now(UTC)
    ages = {"too_old": 30 * 86_400, "one": 29 * 86_400, "unpaid": 3 * 86_400, "by_order": 2 * 86_400, "now": 0}
    ledger_fixtures.ledger.add_orders([OrderFacts("o", now - timedelta(days=9), 10_000, "USD", account_ref="acct")])
    for name, age in ages.items():
        named = {"account_ref": None, "order_ref": "o"} if name == "by_order" else {"account_ref": "acct"}
        amount = 42_000 if name == "unpaid" else 100
        ledger_fixtures.add(new_row(name, amount, requested_at=now - timedelta(seconds=age), **named))
        with ledger_fixtures.agent(authority.url) as agent:
            agent.run_once()
    found = {
        k.removeprefix("refund:"): o.body["params"]["risk"]["account_refunds_30d"]
        for k, o in authority.operations.items()
    }
    assert found == {"too_old": 0, "one": 1, "unpaid": 2, "by_order": 2, "now": 2}


def test_the_same_account_name_in_another_channel_is_somebody_else(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    ledger_fixtures.add(*(new_row(f"r{number}", account_ref="1001") for number in range(5)))
    ledger_fixtures.add(new_row("by_order", account_ref=None, order_ref="o"))
    ledger_fixtures.ledger.add_orders([OrderFacts("o", datetime.now(UTC), 10_000, "USD", account_ref="1001")])
    with ledger_fixtures.agent(authority.url) as agent:
        agent.run_once()
    assert set(ledger_fixtures.states().values()) == {"EXECUTED"}
    ledger_fixtures.add(new_row("private", account_ref="1001", channel="private", scenario="fee"))
    ledger_fixtures.add(new_row("retail", account_ref="1001"))
    derived = {name: found.derived for name, found in ledger_fixtures.ledger.facts(["private", "retail"]).items()}
    counted = {name: [json.loads(said)[count] for count in COUNTS] for name, said in derived.items()}
    assert counted == {"private": [1, 0], "retail": [7, 6]}


def test_a_fact_that_nobody_knows_is_left_out(ledger_fixtures: LedgerFixtures, authority: FakeAuthority) -> None:
    ledger_fixtures.add(new_row("r", risk={}, account_ref=None))
    with ledger_fixtures.agent(authority.url) as agent:
        agent.run_once()
    assert authority.operations["refund:r"].body["params"]["risk"] == {"suspicious_reason": False}
    assert entry(ledger_fixtures, "r", "status, reason_code") == ("DENIED", "fact_missing")


def test_the_same_long_words_from_many_accounts_are_a_template(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    words = "The parcel arrived with a broken seal and one of the items was missing."
    for number in range(5):
        ledger_fixtures.add(new_row(f"r{number}", reason=words.upper() if number % 2 else f"  {words}"))
    with ledger_fixtures.agent(authority.url) as agent:
        agent.run_once()
    flags = [authority.operations[f"refund:r{n}"].body["params"]["risk"]["suspicious_reason"] for n in range(5)]
    assert flags == [False, False, False, True, True]


def test_a_key_that_belongs_to_another_operation_needs_a_person(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    ledger_fixtures.add(new_row("r"))
    authority.operations["refund:r"] = authority._decide(
        {"params": {"amount": {"value": 1}}, "agent_id": "x", "action": "y"}
    )
    with ledger_fixtures.agent(authority.url) as agent:
        assert agent.run_once().failed
    assert entry(ledger_fixtures, "r", "status") == ("ERROR",)
    assert "key_conflict" in str(entry(ledger_fixtures, "r", "last_error")[0])


def test_an_operation_that_somebody_else_started_is_not_executed(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    ledger_fixtures.add_with_orders(new_row("r"))
    authority.misbehave = lambda exchange: start_elsewhere(authority, exchange.path)
    with ledger_fixtures.agent(authority.url) as agent:
        assert agent.run_once().failed
    assert entry(ledger_fixtures, "r", "status") == ("ERROR",)
    assert "started_elsewhere" in str(entry(ledger_fixtures, "r", "last_error")[0])
    assert ledger_fixtures.executions() == 0


def start_elsewhere(authority: FakeAuthority, path: str) -> bool:
    """Another holder of the permit is faster, between guard and start."""
    if path.endswith("start"):
        authority.operations["refund:r"].start_id = str(uuid.uuid4())
    return False


def test_a_lost_start_receipt_is_found_again_with_the_stored_start_id(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    ledger_fixtures.add_with_orders(new_row("r"))
    row = claimed(ledger_fixtures, "r")
    with ledger_fixtures.agent(authority.url) as agent:
        ledger_fixtures.make_due()
        authority.misbehave = lambda exchange: lose_start(authority, exchange)
        agent.run_once()
    assert ledger_fixtures.state("r") == "ALLOWED"
    started_as = authority.operations["refund:r"].start_id
    authority.misbehave = lambda exchange: False
    ledger_fixtures.make_due()
    with ledger_fixtures.agent(authority.url) as agent:
        agent.run_once()
    assert ledger_fixtures.state("r") == "EXECUTED"
    assert str(ledger_fixtures.one("select start_id from refunds.executions")) == started_as
    assert row.start_id is None


def lose_start(authority: FakeAuthority, exchange: object) -> bool:
    """The start is recorded, its receipt never arrives."""
    if not exchange.path.endswith("start"):  # type: ignore[attr-defined]
        return False
    authority.operations["refund:r"].start_id = exchange.body["start_id"]  # type: ignore[attr-defined]
    exchange.hang_up()  # type: ignore[attr-defined]
    return True


def test_a_halt_between_decision_and_start_stops_the_start_and_the_row_goes_back(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    ledger_fixtures.add_with_orders(new_row("r"))
    authority.misbehave = lambda exchange: bool(setattr(authority, "halted", exchange.path.endswith("start")))
    with ledger_fixtures.agent(authority.url) as agent:
        agent.run_once()
    assert ledger_fixtures.executions() == 0
    assert ledger_fixtures.state("r") == "NEW"
    authority.misbehave = lambda exchange: False
    authority.halted = False
    ledger_fixtures.make_due()
    with ledger_fixtures.agent(authority.url) as agent:
        agent.run_once()
    assert ledger_fixtures.state("r") == "EXECUTED"


def test_a_permission_whose_answer_was_lost_before_a_halt_is_put_back_and_paid_after_it(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    ledger_fixtures.add_with_orders(new_row("r"))
    authority.misbehave = lambda exchange: lose_decision(authority, exchange)
    with ledger_fixtures.agent(authority.url) as agent:
        agent.run_once()
    assert entry(ledger_fixtures, "r", "status, decision") == ("NEW", None)
    authority.misbehave = lambda exchange: False
    authority.halted, authority.halts = True, [{"scope": "tenant", "target": "", "level": "pause"}]
    for _ in range(2):
        ledger_fixtures.make_due()
        with ledger_fixtures.agent(authority.url) as agent:
            outcome = agent.run_once()
        assert entry(ledger_fixtures, "r", "status, attempts") == ("NEW", 0)
        # The finding: the run ended as if the row had failed, with exit status 1.
        assert [row.detail for row in outcome.rows] == ["halted"]
        assert (outcome.failed, outcome.row_failed, outcome.why_outside) == (False, False, None)
    authority.halted, authority.halts = False, []
    ledger_fixtures.make_due()
    with ledger_fixtures.agent(authority.url) as agent:
        agent.run_once()
    assert ledger_fixtures.state("r") == "EXECUTED"


def test_a_halt_that_is_set_before_a_row_is_asked_about_puts_it_back_and_it_is_paid_after_it(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finding: images or a model may take many seconds, and then the row was asked about and denied for good."""
    monkeypatch.setattr(switch_cache, "FRESH_SECONDS", 0.0)
    looks = itertools.count()

    def halted_at_the_second_look(exchange: Exchange) -> bool:
        if exchange.path.endswith("switches") and next(looks) == 1:
            authority.halted, authority.halts = True, [{"scope": "tenant", "target": "", "level": "pause"}]
        return False

    ledger_fixtures.add(new_row("r"))
    authority.misbehave = halted_at_the_second_look
    with ledger_fixtures.agent(authority.url) as agent:
        outcome = agent.run_once()
    assert entry(ledger_fixtures, "r", "status, attempts, last_error") == ("NEW", 0, "halted")
    assert authority.operations == {} and not outcome.failed
    authority.misbehave = lambda exchange: False
    authority.halted, authority.halts = False, []
    ledger_fixtures.make_due()
    with ledger_fixtures.agent(authority.url) as agent:
        agent.run_once()
    assert ledger_fixtures.state("r") == "EXECUTED"


def lose_decision(authority: FakeAuthority, exchange: Exchange) -> bool:
    """The guard is decided, and its answer never arrives."""
    if not exchange.path.endswith("action/guard"):
        return False
    authority.lose_answer(exchange)
    return True


def test_a_halt_is_a_final_refusal_for_a_row_that_was_never_decided(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    authority.halted = True
    ledger_fixtures.add(new_row("r"))
    with ledger_fixtures.agent(authority.url) as agent:
        agent.run_once()
    assert entry(ledger_fixtures, "r", "status, reason_code") == ("DENIED", "halted")


def test_limit_is_how_many_rows_are_touched(ledger_fixtures: LedgerFixtures, authority: FakeAuthority) -> None:
    ledger_fixtures.add(*(new_row(f"r{n}") for n in range(7)))
    with ledger_fixtures.agent(authority.url, batch=2) as agent:
        assert len(agent.run_once(limit=5).rows) == 5
    assert sorted(ledger_fixtures.states().values()) == ["EXECUTED"] * 5 + ["NEW"] * 2


def test_a_report_is_repeated_until_it_is_received(ledger_fixtures: LedgerFixtures, authority: FakeAuthority) -> None:
    ledger_fixtures.add(new_row("r"))
    authority.misbehave = lambda exchange: exchange.path.endswith("report") and not exchange.problem(500, "broken")
    with ledger_fixtures.agent(authority.url) as agent:
        agent.run_once()
    assert ledger_fixtures.state("r") == "EXECUTED"
    assert ledger_fixtures.one("select last_error from refunds.outbox where acknowledged_at is null")
    authority.misbehave = lambda exchange: False
    ledger_fixtures.make_due()
    with ledger_fixtures.agent(authority.url) as agent:
        assert agent.run_once().reported == 1
    assert authority.operations["refund:r"].outcome == "success"


def test_workers_at_once_execute_every_row_once(ledger_fixtures: LedgerFixtures, authority: FakeAuthority) -> None:
    ledger_fixtures.add(*(new_row(f"r{n}") for n in range(60)))

    def run() -> None:
        with ledger_fixtures.agent(authority.url, batch=5) as agent:
            agent.run_once()

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(ledger_fixtures.states().values()) == {"EXECUTED"}
    assert ledger_fixtures.executions() == 60


def test_the_loop_works_answers_an_operator_and_ends_when_told(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    ledger_fixtures.add(new_row("r"), new_row("wait", 42000))
    request_id = uuid.uuid4()
    ledger_fixtures.admin.execute(
        "insert into refunds.process_requests (tenant_id, request_id, requested_by) values (%s, %s, 'ann')",
        [ledger_fixtures.tenant_id, request_id],
    )
    with ledger_fixtures.agent(authority.url) as agent, looping(agent) as thread:
        wait_until(lambda: ledger_fixtures.states() == {"r": "EXECUTED", "wait": "APPROVAL_REQUIRED"})
        authority.approve("refund:wait")
        wait_until(lambda: ledger_fixtures.state("wait") == "EXECUTED")
        wait_until(lambda: ledger_fixtures.one("select finished_at from refunds.process_requests") is not None)
        assert ledger_fixtures.one("select status from refunds.workers") == "running"
        agent.request_stop()
        thread.join(60)
        assert not thread.is_alive()
    assert "processed" in ledger_fixtures.one("select result from refunds.process_requests")
    assert ledger_fixtures.one("select status from refunds.workers") == "stopped"


def test_a_run_drops_its_agents_processes_that_were_not_seen_for_a_day(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    ledger_fixtures.admin.execute(
        "insert into refunds.workers (tenant_id, worker_id, agent_id, mode, status, last_seen_at)"
        " select %s, agent_id || days, agent_id, 'once', 'stopped', clock_timestamp() - days * interval '20 hours'"
        " from unnest(array['retail-refund-agent', 'another']) agent_id, generate_series(1, 3) days",
        [ledger_fixtures.tenant_id],
    )
    for runs in (1, 2):
        with ledger_fixtures.agent(authority.url) as agent:
            agent.run_once()
        seen = dict(ledger_fixtures.all("select agent_id, count(*)::integer from refunds.workers group by 1"))
        assert seen == {"retail-refund-agent": 1 + runs, "another": 3}


def test_a_run_drops_questions_that_were_answered_a_month_ago(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    ledger_fixtures.admin.execute(
        "insert into refunds.process_requests (tenant_id, request_id, requested_by, finished_at)"
        " select %s, gen_random_uuid(), who, clock_timestamp() - days * interval '1 day'"
        " from (values ('now', 0), ('lately', 29), ('long ago', 31)) as r (who, days)",
        [ledger_fixtures.tenant_id],
    )
    with ledger_fixtures.agent(authority.url) as agent:
        agent.run_once()
    left = ledger_fixtures.all("select requested_by from refunds.process_requests order by 1")
    assert left == [("lately",), ("now",)]


def test_a_heartbeat_keeps_a_row_that_takes_longer_than_its_lease(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    holder, taker = ledger_fixtures.ledger_of("holder", lease_seconds=60), ledger_fixtures.ledger_of("taker")
    ledger_fixtures.add(new_row("r"))
    row = holder.claim(1)[0]
    nearly_over = "update refunds.ledger_entries set lease_until = clock_timestamp() + interval '20 seconds'"
    for _ in range(4):
        ledger_fixtures.admin.execute(nearly_over)
        holder.extend(["r"])
        assert ledger_fixtures.one(
            "select lease_until > clock_timestamp() + interval '20 seconds' from refunds.ledger_entries"
        )
        assert taker.claim(1) == []
    ledger_fixtures.make_due()
    holder.extend(["r"])
    assert len(taker.claim(1)) == 1
    assert holder.apply([Change(row, LedgerState.GUARDING, LedgerEvent.DENIED)]) == {}
