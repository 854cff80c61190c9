"""Where an order is refunded once without a person's decision, it is: also for rows that are looked at at the same time."""

from __future__ import annotations

import pytest

from tests.support.effects_server import taken_over
from tests.support.fake_authority import FakeAuthority
from tests.support.fake_exchange import Exchange
from tests.support.harness import at_once
from tests.support.ledger_fixtures import claimed
from tests.support.workflow_fixtures import FEE, Shop
from worker.refunds.rows import Change, LedgerEvent, LedgerState
from worker.refunds.transitions import STARTED_ELSEWHERE, after_not_executed, give_up
from worker.refunds.workflow.graph import Escalation
from worker.refunds.workflow.steps import execute_by_system
from worker.settlement import NoAnswer

ORDERS = tuple("abcdef")


def two_of_each(shop: Shop) -> None:
    """Two rows for each order, all of them confirmed by their customers."""
    for name in ORDERS:
        shop.enter(FEE, name, value=90)
        shop.enter(FEE, f"{name}-again", value=80, order_ref=f"ord_{name}", account_ref=f"acct_{name}", has_order=False)
    shop.run()
    assert shop.cards() == 2 * len(ORDERS), "no row knows of the other yet"
    shop.answer(*(name + which for name in ORDERS for which in ("", "-again")))


def refunded_twice(shop: Shop) -> list[str]:
    """The checker: orders with more than one execution."""
    rows = shop.fixtures.all(
        "select e.order_ref from refunds.executions join refunds.ledger_entries e using (tenant_id, ledger_entry_id)"
        " group by 1 having count(*) > 1"
    )
    return [row[0] for row in rows]


@pytest.mark.parametrize("workers", [1, 4])
def test_of_two_rows_for_one_order_one_is_paid_and_the_other_is_put_to_a_person(shop: Shop, workers: int) -> None:
    two_of_each(shop)
    assert at_once([shop.run] * workers) == [None] * workers
    assert refunded_twice(shop) == []
    assert shop.fixtures.executions() == len(ORDERS)
    stands = sorted(shop.stands(name + which)[0::2] for name in ORDERS for which in ("", "-again"))
    assert stands == [("APPROVAL_REQUIRED", Escalation.REFUNDED_BEFORE)] * len(ORDERS) + [
        ("EXECUTED", "within_policy_limit")
    ] * len(ORDERS)


def test_a_person_may_have_the_other_paid_too(shop: Shop, authority: FakeAuthority) -> None:
    two_of_each(shop)
    shop.run()
    [waiting] = [name for name in ("a", "a-again") if shop.stands(name)[0] != "EXECUTED"]
    authority.approve(f"refund:{waiting}")
    shop.fixtures.make_due()
    shop.run()
    assert shop.stands(waiting)[0] == "EXECUTED"
    assert refunded_twice(shop) == ["ord_a"]


def test_a_row_taken_up_again_keeps_the_order_it_has_taken(shop: Shop, authority: FakeAuthority) -> None:
    shop.enter(FEE, "a", value=90)
    shop.run()
    shop.answer("a")
    spy = shop.spies["private_refund"]
    settle, spy.settle = spy.settle, lambda row, reference: spy.look_up(reference)  # type: ignore[method-assign, assignment]
    shop.run()
    assert shop.fixtures.one("select ledger_entry_id from refunds.orders_taken") == "a"
    assert shop.stands("a")[0] != "EXECUTED"
    spy.settle = settle  # type: ignore[method-assign]
    for _ in range(3):
        shop.fixtures.make_due()
        shop.run()
    assert shop.stands("a")[0] == "EXECUTED"


@pytest.mark.parametrize("end", ["handled", "in doubt"])
def test_what_ends_as_handled_or_in_doubt_while_another_row_is_asked_about_has_the_order(
    shop: Shop, authority: FakeAuthority, end: str
) -> None:
    shop.enter(FEE, "first", value=90)
    shop.run()
    shop.enter(FEE, "second", value=80, order_ref="ord_first", account_ref="acct_first", has_order=False)
    shop.run()
    shop.answer("second")

    def ends_meanwhile(exchange: Exchange) -> bool:
        if exchange.path.endswith("action/guard") and (exchange.body or {})["idempotency_key"] == "refund:second":
            ended(shop, "first", end)
            authority.misbehave = lambda exchange: False
        return False

    authority.misbehave = ends_meanwhile
    shop.run()
    assert shop.stands("second")[0::2] == ("APPROVAL_REQUIRED", Escalation.REFUNDED_BEFORE)
    assert shop.nothing_paid()
    assert shop.fixtures.one("select ledger_entry_id from refunds.orders_taken") == "first"


@pytest.mark.parametrize("end", ["handled", "in doubt"])
def test_what_has_ended_as_handled_or_in_doubt_is_known_before_anybody_is_asked(shop: Shop, end: str) -> None:
    shop.enter(FEE, "first", value=90)
    shop.run()
    ended(shop, "first", end)
    shop.enter(FEE, "second", value=80, order_ref="ord_first", account_ref="acct_first", has_order=False)
    shop.run()
    assert shop.stands("second") == ("APPROVAL_REQUIRED", "operator", Escalation.REFUNDED_BEFORE)
    assert shop.cards() == 1, "the second row's customer is not asked"


def test_while_a_person_is_asked_about_a_refund_no_other_of_its_order_is_permitted(shop: Shop) -> None:
    shop.enter(FEE, "first", value=90)
    shop.flag("first", FEE, "open_complaint")
    shop.run()
    assert shop.stands("first") == ("APPROVAL_REQUIRED", "operator", Escalation.OPEN_COMPLAINT)
    close_flags(shop)
    another(shop, "second", of="first")
    shop.run()
    assert shop.stands("second") == ("APPROVAL_REQUIRED", "operator", Escalation.REFUNDED_BEFORE)
    assert shop.cards() == 0, "no customer is asked"


def test_what_the_person_approves_is_paid_although_another_waits(shop: Shop, authority: FakeAuthority) -> None:
    shop.enter(FEE, "first", value=90)
    shop.flag("first", FEE, "open_complaint")
    shop.run()
    close_flags(shop)
    another(shop, "second", of="first")
    shop.run()
    authority.approve("refund:first")
    shop.fixtures.make_due()
    shop.run()
    shop.answer("first")
    shop.run()
    assert (shop.stands("first")[0], shop.stands("second")[0]) == ("EXECUTED", "APPROVAL_REQUIRED")


def test_a_permission_that_is_asked_for_while_a_person_is_asked_is_not_taken(
    shop: Shop, authority: FakeAuthority
) -> None:
    shop.enter(FEE, "second", value=80)
    shop.run()
    shop.answer("second")

    def asked_meanwhile(exchange: Exchange) -> bool:
        if exchange.path.endswith("action/guard") and (exchange.body or {})["idempotency_key"] == "refund:second":
            authority.misbehave = lambda exchange: False
            another(shop, "first", of="second")
            shop.flag("second", FEE, "open_complaint")
            shop.run()
            assert shop.stands("first")[0::2] == ("APPROVAL_REQUIRED", Escalation.OPEN_COMPLAINT)
            close_flags(shop)
        return False

    authority.misbehave = asked_meanwhile
    shop.run()
    assert shop.stands("second")[0::2] == ("APPROVAL_REQUIRED", Escalation.REFUNDED_BEFORE)
    assert shop.nothing_paid()


@pytest.mark.parametrize("account", ["acct_second", "acct_stranger"])
def test_of_two_refunds_of_one_batch_none_is_permitted_while_a_person_is_asked_about_the_other(
    shop: Shop, account: str
) -> None:
    shop.enter(FEE, "second", value=80)
    shop.run()
    shop.answer("second")
    another(shop, "first", of="second", account_ref=account)
    shop.run()
    if account == "acct_second":
        assert (shop.stands("first")[1], shop.stands("second")[0]) == ("customer", "EXECUTED"), "nobody was asked"
    else:
        assert shop.stands("first")[0::2] == ("APPROVAL_REQUIRED", Escalation.ACCOUNT_MISMATCH)
        assert shop.stands("second")[0::2] == ("APPROVAL_REQUIRED", Escalation.REFUNDED_BEFORE)
        assert shop.nothing_paid()


@pytest.mark.parametrize("end", ["not executed", "denied"])
def test_what_ended_without_a_payment_gives_its_order_back(shop: Shop, end: str) -> None:
    shop.enter(FEE, "first", value=90)
    shop.run()
    shop.answer("first")
    shop.spies["private_refund"].says = [NoAnswer("silent")]
    shop.run()
    assert shop.stands("first")[0] == "ALLOWED"
    if end == "denied":
        shop.fixtures.make_due()
        row = claimed(shop.fixtures, "first")
        change = Change(row, LedgerState.GUARDING, LedgerEvent.DENIED, decision="DENY", reason_code="blacklisted")
    else:
        change = after_not_executed(taken_over(shop.fixtures, "first"))
    assert shop.fixtures.one("select ledger_entry_id from refunds.orders_taken") == "first"
    assert set(shop.fixtures.ledger.apply([change])) == {"first"}
    assert shop.fixtures.all("select ledger_entry_id from refunds.orders_taken") == []
    another(shop, "second", of="first")
    shop.run()
    shop.answer("second")
    shop.run()
    assert shop.stands("second")[0] == "EXECUTED", "nobody is told that the order was refunded before"
    assert shop.fixtures.one("select ledger_entry_id from refunds.orders_taken") == "second"


def another(shop: Shop, name: str, *, of: str, account_ref: str | None = None) -> None:
    """Another refund of the order of a row."""
    account = account_ref or f"acct_{of}"
    shop.enter(FEE, name, value=70, order_ref=f"ord_{of}", account_ref=account, has_order=False)


def close_flags(shop: Shop) -> None:
    """Let nothing stand against an order any more."""
    shop.fixtures.admin.execute("update refunds.order_flags set closed_at = clock_timestamp()")


def ended(shop: Shop, name: str, end: str) -> None:
    """End a waiting row as the authority's answer would: a person handled it, or it was started elsewhere."""
    shop.fixtures.admin.execute(
        "update refunds.ledger_entries set next_attempt_at = clock_timestamp() where ledger_entry_id = %s", [name]
    )
    row = claimed(shop.fixtures, name)
    change = (
        Change(row, LedgerState.GUARDING, LedgerEvent.DENIED, decision="DENY", reason_code="handled_by_person")
        if end == "handled"
        else give_up(row, "started elsewhere", reason=STARTED_ELSEWHERE, in_doubt=True)
    )
    assert set(shop.fixtures.ledger.apply([change])) == {name}


def test_mutant_that_only_looks_before_it_asks_pays_twice(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute_by_system, "_takes_order", lambda context: False)
    two_of_each(shop)
    shop.run()
    assert refunded_twice(shop), "the gate alone was enough: the rows did not stand side by side"
