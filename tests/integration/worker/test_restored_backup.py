"""After a restore the ledger does not know what was paid since the backup: nothing of it is paid a second time.

An outside system is asked under the reference that it knows. What people paid by hand is recorded before the worker runs.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner

from tests.support.effects_server import EffectsServer
from tests.support.fake_authority import FakeAuthority
from tests.support.ledger_fixtures import LedgerFixtures, claimed, new_row
from tests.support.recording_server import problem
from tests.support.workflow_fixtures import BRANCHES, FEE, Branch, Shop
from worker.cli import main
from worker.refunds import transitions
from worker.refunds.ledger_commands import NOT_HANDLED
from worker.refunds.rows import Change, LedgerEvent, LedgerRow, LedgerState, OrderFacts
from worker.refunds.settings import WorkerSettings
from worker.refunds.workflow.graph import Escalation
from worker.settlement.effects import Effects
from worker.settlement.registry import Systems

PRICE, SAGA = BRANCHES["private/price_diff"], BRANCHES["public/defect"]
EFFECTS = {PRICE.name: 1, SAGA.name: 2}
PARTS = "select reserved_minor, executed_minor, handled_minor, in_doubt_minor from refunds.order_budgets"

RESTORE = """
delete from refunds.executions; delete from refunds.outbox; delete from refunds.effects; delete from refunds.confirmations;
delete from refunds.step_trails; delete from refunds.ledger_events; delete from refunds.orders_taken;
update refunds.order_budgets set reserved_minor = 0, executed_minor = 0, handled_minor = 0, in_doubt_minor = 0;
update refunds.ledger_entries set status = 'NEW', last_event = null, event_number = 0, claim_epoch = 0, claimed_by = null,
  lease_until = null, attempts = 0, waits = 0, next_attempt_at = clock_timestamp(), guard_request = null, operation_id = null,
  decision_event_id = null, decision = null, reason_code = null, proof_id = null, approval_id = null, waiting_for = null,
  permit_token = null, start_id = null, act_until = null, last_error = null, budget_part = null
"""
"""The ledger as it was when its rows had just been entered."""


def restore(fixtures: LedgerFixtures, authority: FakeAuthority) -> None:
    """Ledger and authority from a backup of before the worker ran."""
    fixtures.admin.execute("set session_replication_role = replica")
    fixtures.admin.execute(RESTORE)
    fixtures.admin.execute("set session_replication_role = origin")
    authority.forget()


# What an outside system did


@pytest.fixture
def servers() -> Iterator[dict[str, EffectsServer]]:
    """A system for each outside name."""
    with (
        EffectsServer().running() as price,
        EffectsServer().running() as platform,
        EffectsServer().running() as ticket,
    ):
        yield {"price_difference": price, "platform": platform, "ticket": ticket}


def systems_at(servers: dict[str, EffectsServer], shop: Shop) -> Systems:
    """The settlement systems of a worker whose outside ones are these."""
    fields: dict[str, Any] = {f"{name}_url": server.url for name, server in servers.items()}
    keys = {f"{name}_key": "k" for name in servers}
    settings = WorkerSettings(**fields | keys, settlement_timeout_seconds=30.0)
    return Systems.from_settings(settings, Effects(shop.fixtures.pool, shop.fixtures.tenant_id))


def pay(shop: Shop) -> None:
    """The customer is asked, confirms, and the row is paid."""
    shop.run()
    shop.answer("r")
    shop.run()
    assert shop.stands()[0] == "EXECUTED"


def done_in_all(servers: dict[str, EffectsServer]) -> int:
    """How many effects there are, over all systems."""
    return sum(sum(server.done.values()) for server in servers.values())


def more_after_restore(shop: Shop, authority: FakeAuthority, servers: dict[str, EffectsServer], branch: Branch) -> int:
    """The checker: a row is paid, its ledger and authority are restored, and it is paid; how many effects that made more."""
    shop.parts["systems"] = systems_at(servers, shop)
    shop.enter(branch)
    pay(shop)
    done = done_in_all(servers)
    assert done == EFFECTS[branch.name]
    restore(shop.fixtures, authority)
    pay(shop)
    assert shop.fixtures.executions() == 1
    return done_in_all(servers) - done


@pytest.mark.parametrize("branch", [PRICE, SAGA], ids=lambda branch: branch.name)
def test_what_an_outside_system_did_after_the_backup_is_not_done_a_second_time(
    shop: Shop, authority: FakeAuthority, servers: dict[str, EffectsServer], branch: Branch
) -> None:
    assert more_after_restore(shop, authority, servers, branch) == 0


@pytest.mark.parametrize("branch", [PRICE, SAGA], ids=lambda branch: branch.name)
def test_mutant_with_random_start_ids_does_it_a_second_time(
    shop: Shop, authority: FakeAuthority, servers: dict[str, EffectsServer], branch: Branch, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(LedgerRow, "own_start_id", property(lambda row: row.start_id or uuid.uuid4()))
    assert more_after_restore(shop, authority, servers, branch) == EFFECTS[branch.name]


# What people paid by hand


def handled(fixtures: LedgerFixtures, name: str) -> str | None:
    return fixtures.ledger.handle(name, who="anna", reference="CASE-7", why="paid at the counter on Tuesday")


def run(fixtures: LedgerFixtures, authority: FakeAuthority) -> None:
    fixtures.make_due()
    with fixtures.agent(authority.url) as agent:
        agent.run_once()


def test_what_a_person_paid_since_the_backup_is_not_paid_by_the_machine_and_counts_against_its_order(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    ledger_fixtures.ledger.add_orders([OrderFacts("o", datetime.now(UTC) - timedelta(days=1), 100, "USD")])
    ledger_fixtures.add(new_row("r", order_ref="o"))
    assert handled(ledger_fixtures, "r") is None
    run(ledger_fixtures, authority)
    assert ledger_fixtures.all("select status, decision, reason_code, last_error from refunds.ledger_entries") == [
        ("DENIED", "DENY", "handled_by_person", "anna handled it elsewhere, under CASE-7: paid at the counter on Tuesday")
    ]  # fmt: skip
    assert ledger_fixtures.all("select from_status, event, to_status, worker from refunds.ledger_events order by event_id") == [
        ("NEW", "claimed", "GUARDING", "anna"), ("GUARDING", "denied", "DENIED", "anna"),
    ]  # fmt: skip
    assert ledger_fixtures.all(PARTS) == [(0, 0, 100, 0)]
    ledger_fixtures.add(new_row("next", order_ref="o"))
    run(ledger_fixtures, authority)
    assert ledger_fixtures.one("select reason_code from refunds.ledger_entries where ledger_entry_id = 'next'") == (
        Escalation.ORDER_OVERDRAWN
    )
    assert ledger_fixtures.executions() == 0 and "refund:r" not in authority.operations


def test_the_same_refund_under_another_row_is_a_duplicate_of_what_a_person_paid(
    ledger_fixtures: LedgerFixtures,
) -> None:
    """Also where neither names an order."""
    ledger_fixtures.add(new_row("r"))
    assert handled(ledger_fixtures, "r") is None
    ledger_fixtures.add(new_row("second", refund_id="rf_r"), new_row("third", refund_id="rf_third"))
    seen = {name: facts.refund_seen for name, facts in ledger_fixtures.ledger.facts(["second", "third"]).items()}
    assert seen == {"second": True, "third": False}


@pytest.mark.parametrize("ran_out", [False, True], ids=["a person may still answer", "the approval ran out"])
def test_a_row_that_waits_for_a_person_is_handled_there_and_here_once_that_has_run_out(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority, ran_out: bool
) -> None:
    """Of the restored ledger: it was approved and paid after the backup, and would end as denied without counting."""
    ledger_fixtures.add(new_row("r", 42000))
    run(ledger_fixtures, authority)
    assert ledger_fixtures.state("r") == "APPROVAL_REQUIRED"
    if ran_out:
        ledger_fixtures.admin.execute("update refunds.ledger_entries set next_attempt_at = clock_timestamp()")
    assert handled(ledger_fixtures, "r") == (None if ran_out else "waits_for_person")
    assert ledger_fixtures.state("r") == ("DENIED" if ran_out else "APPROVAL_REQUIRED")


def test_a_row_that_waits_for_its_customer_can_be_handled_and_its_card_is_void(shop: Shop) -> None:
    shop.enter(FEE)
    shop.run()
    assert shop.stands()[1] == "customer"
    assert handled(shop.fixtures, "r") is None
    assert shop.stands() == ("DENIED", None, "handled_by_person")
    answered = shop.fixtures.one(
        "select refunds.answer_confirmation(tenant_id, confirmation_id, digest, 'confirm') from refunds.confirmations"
    )
    assert answered != "confirmed" and shop.nothing_paid()


def in_hand(fixtures: LedgerFixtures) -> None:
    claimed(fixtures, "r")


def begun(fixtures: LedgerFixtures) -> None:
    """Its start may be on record: its lease has lapsed, and it is for its settlement system to say."""
    row = claimed(fixtures, "r")
    fixtures.admin.execute(
        "update refunds.ledger_entries set start_id = %s, act_until = clock_timestamp()", [row.own_start_id]
    )
    fixtures.make_due()


def in_error(fixtures: LedgerFixtures) -> None:
    row = claimed(fixtures, "r")
    assert fixtures.ledger.apply([transitions.give_up(row, "x")])


def ended(fixtures: LedgerFixtures) -> None:
    row = claimed(fixtures, "r")
    assert fixtures.ledger.apply([Change(row, LedgerState.GUARDING, LedgerEvent.DENIED, decision="DENY")])


STAYS: dict[str, tuple[Callable[[LedgerFixtures], None], ...]] = {
    "in_hand": (in_hand, begun),
    "in_error": (in_error,),
    "ended": (ended,),
}


@pytest.mark.parametrize(("why", "how"), [(why, how) for why, ways in STAYS.items() for how in ways])
def test_what_is_begun_or_over_is_not_called_handled(
    ledger_fixtures: LedgerFixtures, why: str, how: Callable[[LedgerFixtures], None]
) -> None:
    ledger_fixtures.add(new_row("r"))
    how(ledger_fixtures)
    before = ledger_fixtures.all("select status, event_number, claim_epoch from refunds.ledger_entries")
    assert handled(ledger_fixtures, "r") == why
    assert ledger_fixtures.all("select status, event_number, claim_epoch from refunds.ledger_entries") == before


def test_what_an_outside_system_may_have_done_is_not_called_handled_while_a_halt_holds_it_back(
    shop: Shop, authority: FakeAuthority, servers: dict[str, EffectsServer]
) -> None:
    """The authority is restored to before the start, and halted: the row is NEW, although it was paid."""
    shop.parts["systems"] = systems_at(servers, shop)
    shop.enter(PRICE)
    shop.run()
    shop.answer("r")
    servers["price_difference"].faults.extend([("POST", True, problem(503)), ("GET", False, problem(503))])
    shop.run()
    assert shop.stands()[0] == "ALLOWED" and done_in_all(servers) == 1
    authority.operations["refund:r"].start_id, authority.halted = None, True
    run_reevaluated(shop)
    assert shop.stands()[0] == "NEW"
    assert handled(shop.fixtures, "r") == "in_hand" and shop.stands()[0] == "NEW"
    authority.halted = False
    run_reevaluated(shop)
    assert shop.stands()[0] == "EXECUTED" and done_in_all(servers) == 1


def run_reevaluated(shop: Shop) -> None:
    """Every pause is over."""
    shop.fixtures.admin.execute("update refunds.effects set tried_at = tried_at - interval '1 hour'")
    shop.fixtures.make_due()
    shop.run()


def test_a_claim_that_lapsed_before_anything_was_begun_is_no_hindrance(ledger_fixtures: LedgerFixtures) -> None:
    """A backup has rows that a worker held at its moment."""
    ledger_fixtures.add(new_row("r"))
    claimed(ledger_fixtures, "r")
    ledger_fixtures.make_due()
    assert handled(ledger_fixtures, "r") is None
    assert ledger_fixtures.all("select event from refunds.ledger_events order by event_id") == [
        ("claimed",), ("reclaimed",), ("denied",),
    ]  # fmt: skip


def test_the_command_records_it_or_says_why_not(
    ledger_fixtures: LedgerFixtures, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKER_DATABASE_URL", ledger_fixtures.url)
    ledger_fixtures.add(new_row("r"))
    invoke = CliRunner().invoke
    words = ["--reference", "CASE-7", "--reason", "paid at the counter", "--by", "anna"]
    assert invoke(main, ["handled", "r", "--reason", "x"]).exit_code == 2
    for name, value in (("--reference", " "), ("--reason", " "), ("--reference", "x" * 201)):
        assert invoke(main, ["handled", "r", *words, name, value]).exit_code == 2
    assert ledger_fixtures.state("r") == "NEW"
    first = invoke(main, ["handled", "r", *words])
    assert first.exit_code == 0
    assert first.stdout == "Recorded: r was handled elsewhere, under CASE-7. The agent is denied it.\n"
    second = invoke(main, ["handled", "r", *words])
    assert second.exit_code == 1 and f"refused: r: ended: {NOT_HANDLED['ended']}" in second.stderr
    absent = invoke(main, ["handled", "absent", *words, "--json"])
    assert absent.exit_code == 1
    assert json.loads(absent.stdout) == {"ledger_entry_id": "absent", "handled": False, "refused": "no_such_row"}
    assert {*NOT_HANDLED} == {*STAYS, "no_such_row", "waits_for_person"}
