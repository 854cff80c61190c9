"""What is odd about one row costs that row an attempt or a person's look; the rows beside it in its batch are paid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.fake_authority import FakeAuthority
from tests.support.ledger_fixtures import CLEAN, LedgerFixtures, claimed, new_row
from tests.support.workflow_fixtures import FEE, Shop
from worker.refunds.ledger import storable
from worker.refunds.rows import Change, LedgerEvent, LedgerState, OrderFacts
from worker.refunds.sql import GATHER_FACTS
from worker.refunds.transitions import give_up
from worker.refunds.workflow import runner
from worker.refunds.workflow.runner import RunContext, Step
from worker.refunds.workflow.steps.ask_authority import AskAuthority
from worker.refunds.workflow.steps.execute_by_system import ExecuteBySystem
from worker.refunds.workflow.steps.order_and_image import QueryOrder

NEIGHBOURS = ("n1", "n2", "n3")
PAID = dict.fromkeys(NEIGHBOURS, "EXECUTED")


def enter(fixtures: LedgerFixtures, odd: str = "odd") -> None:
    """One row and its neighbours, each with an order of its own."""
    fixtures.add_with_orders(*(new_row(name) for name in (odd, *NEIGHBOURS)))


def before_our_era(fixtures: LedgerFixtures) -> None:
    """The order's time as a shop's empty date becomes in another zone; Python has no such date."""
    fixtures.admin.execute(
        "update refunds.orders set ordered_at = '0001-12-31 23:00:00+00 BC' where order_ref = 'o_odd'"
    )


def test_an_order_whose_time_cannot_be_read_goes_to_a_person_and_its_neighbours_are_paid(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    enter(ledger_fixtures)
    before_our_era(ledger_fixtures)
    with ledger_fixtures.agent(authority.url) as agent:
        outcome = agent.run_once()
    states = ledger_fixtures.states()
    assert states == {**PAID, "odd": states["odd"]} and outcome.trouble is None
    assert states["odd"] in ("APPROVAL_REQUIRED", "DENIED"), "the authority is asked, with what stands against it"
    params = authority.operations["refund:odd"].body["params"]
    assert params["order_ref"] == "o_odd"
    steps = ledger_fixtures.one("select steps from refunds.trails where ledger_entry_id = 'odd'")
    assert [(step["step"], step.get("message")) for step in steps][-3:-1] == [
        ("query_order", "step_refused"), ("transfer_to_human", None)]  # fmt: skip


def test_mutant_that_prepares_a_batch_as_one_loses_it_with_the_row(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    def as_one(step: Step, here: list[RunContext]) -> frozenset[str]:
        step.prepare(here)
        return frozenset()

    monkeypatch.setattr(runner, "_prepare", as_one)
    enter(ledger_fixtures)
    before_our_era(ledger_fixtures)
    with ledger_fixtures.agent(authority.url) as agent, pytest.raises(ValueError, match="isoformat"):
        agent.run_once()
    assert ledger_fixtures.executions() == 0


def raises_for(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    """The step's preparation, which fails wherever this row is among those it is asked for."""

    def prepare(self: object, contexts: list[RunContext]) -> None:
        if any(context.row.ledger_entry_id == name for context in contexts):
            raise OverflowError("the customer wrote: 4111 1111 1111 1111")
        real(self, contexts)

    return prepare


@pytest.mark.parametrize("step", [QueryOrder, AskAuthority, ExecuteBySystem])
def test_a_step_that_fails_for_a_row_at_every_try_ends_that_row_for_a_person_and_no_other(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority, monkeypatch: pytest.MonkeyPatch, step: Any
) -> None:
    monkeypatch.setattr(step, "prepare", raises_for("odd", step.prepare))
    enter(ledger_fixtures)
    for _ in range(3):
        with ledger_fixtures.agent(authority.url, max_attempts=3) as agent:
            agent.run_once()
        ledger_fixtures.make_due()
        assert {name: ledger_fixtures.state(name) for name in NEIGHBOURS} == PAID, "in the first run already"
    status, error = ledger_fixtures.all(
        "select status, last_error from refunds.ledger_entries where ledger_entry_id = 'odd'"
    )[0]
    if step is AskAuthority:
        assert status == "ERROR" and error.startswith("gave up after 3 attempts, the last: step ask_authority failed: ")
        assert "OverflowError in test_one_row_alone.py" in error and "4111" not in error
        return
    assert status == "APPROVAL_REQUIRED"
    assert ledger_fixtures.executions() == len(NEIGHBOURS)


def test_a_row_that_may_be_started_is_let_go_and_found_out_later(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ExecuteBySystem._settle

    def settle(self: ExecuteBySystem, context: RunContext) -> None:
        if context.row.ledger_entry_id == "odd":
            raise OverflowError
        real(self, context)

    enter(ledger_fixtures)
    with monkeypatch.context() as patched:
        patched.setattr(ExecuteBySystem, "_settle", settle)
        for _ in range(4):
            with ledger_fixtures.agent(authority.url, max_attempts=2) as agent:
                agent.run_once()
            assert ledger_fixtures.states() == {**PAID, "odd": "ALLOWED"}, "never given up as if nothing had begun"
            ledger_fixtures.make_due()
    with ledger_fixtures.agent(authority.url) as agent:
        agent.run_once()
    assert ledger_fixtures.states() == {**PAID, "odd": "EXECUTED"} and ledger_fixtures.executions() == 4


TAKES_TOO_LONG = """
create function refunds.too_long() returns text language plpgsql as $$ begin raise query_canceled; end $$;
grant execute on function refunds.too_long to public
"""
"""What the server says of a statement that it ended for its time limit."""


@pytest.mark.parametrize(
    "account_ref",
    [
        "nullif(f.account_ref, (1 / (e.ledger_entry_id <> 'odd')::int)::text)",
        "case e.ledger_entry_id when 'odd' then refunds.too_long() else f.account_ref end",
    ],
    ids=["cannot be computed", "take too long"],
)
def test_facts_that_the_database_does_not_give_cost_their_own_row_only(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority, monkeypatch: pytest.MonkeyPatch, account_ref: str
) -> None:
    enter(ledger_fixtures)
    ledger_fixtures.admin.execute(TAKES_TOO_LONG)
    broken = GATHER_FACTS.replace("f.account_ref,\n", f"{account_ref} as account_ref,\n", 1)
    assert broken != GATHER_FACTS
    monkeypatch.setattr("worker.refunds.sql.GATHER_FACTS", broken)
    for _ in range(2):
        with ledger_fixtures.agent(authority.url, max_attempts=2) as agent:
            agent.run_once()
        ledger_fixtures.make_due()
    assert ledger_fixtures.states() == {**PAID, "odd": "ERROR"}
    error = ledger_fixtures.one("select last_error from refunds.ledger_entries where ledger_entry_id = 'odd'")
    assert error == "gave up after 2 attempts, the last: its facts cannot be read"


def test_a_change_that_the_database_refuses_keeps_no_other_from_being_applied(ledger_fixtures: LedgerFixtures) -> None:
    enter(ledger_fixtures)
    rows = ledger_fixtures.ledger.claim(10)
    textless = Change(rows[0], LedgerState.GUARDING, LedgerEvent.GAVE_UP)
    impossible: dict[str, str] = {}
    applied = ledger_fixtures.ledger.apply([textless, *(give_up(row, "over") for row in rows[1:])], impossible)
    assert set(applied) == {row.ledger_entry_id for row in rows[1:]}
    assert list(impossible) == [rows[0].ledger_entry_id] and "error_has_text" in impossible[rows[0].ledger_entry_id]


def test_a_change_that_cannot_be_recorded_costs_its_row_an_attempt(
    shop: Shop, authority: FakeAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A card that says nothing of when it ends: the change that waits for it has no time, and is refused."""
    shop.enter(FEE, "odd")
    shop.enter(FEE, "beside")
    real = Change.as_json

    def as_json(change: Change) -> dict[str, Any]:
        odd = change.row.ledger_entry_id == "odd" and change.event is LedgerEvent.AWAITING_CUSTOMER
        return {**real(change), **({"due_at": "never"} if odd else {})}

    monkeypatch.setattr(Change, "as_json", as_json)
    shop.run()
    assert shop.stands("beside")[:2] == ("APPROVAL_REQUIRED", "customer")
    assert shop.stands("odd")[0] == "NEW"
    attempts, error = shop.fixtures.all(
        "select attempts, last_error from refunds.ledger_entries where ledger_entry_id = 'odd'"
    )[0]
    assert attempts == 1 and error.startswith("the database refused it: ")


def test_a_permission_that_cannot_be_recorded_costs_its_row_an_attempt_and_is_no_lost_lease(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Change.as_json

    def as_json(change: Change) -> dict[str, Any]:
        odd = change.row.ledger_entry_id == "odd" and change.event is LedgerEvent.ALLOWED
        return {**real(change), **({"start_id": "no id"} if odd else {})}

    monkeypatch.setattr(Change, "as_json", as_json)
    enter(ledger_fixtures)
    for _ in range(2):
        with ledger_fixtures.agent(authority.url, max_attempts=2) as agent:
            outcome = agent.run_once()
        ledger_fixtures.make_due()
    assert ledger_fixtures.states() == {**PAID, "odd": "ERROR"} and outcome.row_failed
    error = ledger_fixtures.one("select last_error from refunds.ledger_entries where ledger_entry_id = 'odd'")
    assert error.startswith("gave up after 2 attempts, the last: the database refused it: ")
    assert authority.operations["refund:odd"].start_id is None, "what is not recorded is not begun"


def test_an_error_whose_words_no_database_can_hold_is_kept_without_them(ledger_fixtures: LedgerFixtures) -> None:
    enter(ledger_fixtures)
    row = claimed(ledger_fixtures, "odd")
    ledger_fixtures.ledger.apply([give_up(row, "rejected: a\x00b\ud83d")])
    kept = ledger_fixtures.one("select last_error from refunds.ledger_entries where ledger_entry_id = 'odd'")
    assert kept == "rejected: a\ufffdb\ufffd"


def test_texts_are_made_storable_wherever_they_stand() -> None:
    given = {"a\x00": ["\udcff", {"b": ("\x00",)}], "n": 1, "when": None, "plain": "\\u0000"}
    assert storable(given) == {"a\ufffd": ["\ufffd", {"b": ["\ufffd"]}], "n": 1, "when": None, "plain": "\\u0000"}


def test_neighbours_with_the_largest_clean_batch_are_paid_in_one_run(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    paid_at = datetime.now(UTC) - timedelta(days=2)
    names = [f"m{number}" for number in range(40)]
    ledger_fixtures.ledger.add_orders([OrderFacts(f"o_{name}", paid_at, 1000, "USD") for name in [*names, "odd"]])
    rows = [replace(new_row(name, risk=CLEAN), order_ref=f"o_{name}") for name in [*names, "odd"]]
    ledger_fixtures.add(*rows)
    before_our_era(ledger_fixtures)
    with ledger_fixtures.agent(authority.url, batch=64) as agent:
        agent.run_once()
    assert ledger_fixtures.executions() == len(names)
