"""An order is never paid back more than was paid for it: whatever sees what when, and however a refund is handled."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import psycopg
import pytest
from psycopg import errors as pg
from psycopg.types.json import Jsonb

from sentinel.platform.resources import invariants_sql
from sentinel.store.invariants import run_invariants
from tests.mutants import cut, without_constraint
from tests.support.fake_authority import FakeAuthority
from tests.support.fake_exchange import Exchange
from tests.support.fixtures import Fixtures
from tests.support.ledger_fixtures import CLEAN, LedgerFixtures, looping, new_row, wait_until
from tests.support.workflow_fixtures import BRANCHES, FEE, Shop
from worker.refunds import sql
from worker.refunds.ledger import Ledger
from worker.refunds.rows import NewRow, OrderFacts
from worker.refunds.workflow.graph import Escalation
from worker.settlement import EffectRefused, NoAnswer

RETAIL = BRANCHES["retail/standard"]
PAID, HALF = 100_00, 60_00
ORDERS, OTHERS = 60, 140

OVERPAID = """
select o.source, o.order_ref, sum(e.amount_minor), o.paid_minor from refunds.orders o
join refunds.ledger_entries e on e.tenant_id = o.tenant_id and e.channel = o.channel and e.source = o.source
  and e.order_ref = o.order_ref and e.currency = o.currency
where e.ledger_entry_id in (select ledger_entry_id from refunds.executions)
   or e.status = 'DENIED' and e.reason_code = 'handled_by_person' or e.status = 'ERROR' and e.start_id is not null
group by o.source, o.order_ref, o.paid_minor having sum(e.amount_minor) > o.paid_minor
"""
"""Orders with more executed, handled or in doubt than was paid: our own sums, by no view and no budget row."""


def order(name: str, paid: int = PAID, source: str = "", currency: str = "USD") -> OrderFacts:
    return OrderFacts(name, datetime.now(UTC) - timedelta(days=1), paid, currency, source=source)


def refund(name: str, of: str, value: int = HALF, **over: Any) -> NewRow:
    return new_row(name, value, order_ref=of, channel="retail", scenario="standard", **over)


def add_uncommitted(ledger: Ledger, rows: list[NewRow], connection: psycopg.Connection[Any]) -> None:
    """What `add_rows` does, left open: nobody sees it yet, and its rows are the earlier ones."""
    given = [{"position": n, **{name: getattr(row, name) for name in row.__slots__}} for n, row in enumerate(rows)]
    connection.execute(sql.ADD_ROWS.encode(), {"tenant_id": ledger.tenant_id, "rows": Jsonb(given)})


@contextmanager
def silent_for_guards(authority: FakeAuthority) -> Iterator[threading.Event]:
    """Every guard waits until the event is set."""
    speaks = threading.Event()

    def misbehave(exchange: Exchange) -> bool:
        if exchange.path.endswith("action/guard"):
            speaks.wait(10)
        return False

    authority.misbehave = misbehave
    try:
        yield speaks
    finally:
        speaks.set()


def overlap(shop: Shop, authority: FakeAuthority, workers: int) -> None:
    """Two rows for each order: those of a large statement, which began first and is seen last, and those of a small one."""
    fixtures = shop.fixtures
    fixtures.ledger.add_orders([order(f"o{n}") for n in range(ORDERS)])
    large = [refund(f"large{n}", f"o{n}") for n in range(ORDERS)]
    large += [new_row(f"other{n}", 100, order_ref=None) for n in range(OTHERS)]
    shop.settings.update(guard_timeout_seconds=20.0, batch=64)
    with ExitStack() as stack, psycopg.connect(fixtures.url) as behind, silent_for_guards(authority) as speaks:
        add_uncommitted(fixtures.ledger, large, behind)
        fixtures.ledger.add_rows([refund(f"small{n}", f"o{n}") for n in range(ORDERS)])
        for _ in range(workers):
            stack.enter_context(looping(stack.enter_context(shop.agent())))
        wait_until(lambda: authority.calls.count("action/guard") > 0)
        behind.commit()
        held = (
            "select count(*) from refunds.ledger_entries where status = 'GUARDING' and ledger_entry_id like 'large%%'"
        )
        wait_until(lambda: fixtures.one(held) > 0 and fixtures.one(f"{held} and guard_request is null") == 0, 20)
        speaks.set()
        open_rows = "select count(*) from refunds.ledger_entries where order_ref is not null and status in ('NEW', 'GUARDING', 'ALLOWED')"
        wait_until(lambda: fixtures.one(open_rows) == 0, 60)


@pytest.mark.parametrize("workers", [1, 4])
def test_of_two_rows_that_overlap_one_is_paid_and_the_other_is_put_to_a_person(
    shop: Shop, authority: FakeAuthority, workers: int
) -> None:
    overlap(shop, authority, workers)
    assert shop.fixtures.all(OVERPAID) == []
    ended = dict(
        shop.fixtures.all(
            "select status || ' ' || reason_code, count(*) from refunds.ledger_entries where order_ref is not null group by 1"
        )
    )
    assert ended == {
        "EXECUTED within_policy_limit": ORDERS,
        f"APPROVAL_REQUIRED {Escalation.ORDER_OVERDRAWN}": ORDERS,
    }


def looks_only(fixtures: LedgerFixtures) -> None:
    """The mutant: whether there is room is what the early look said, before the authority was asked."""
    cut(cast(Fixtures, fixtures), "refunds.changes_within_budget", "one.amount_minor <= left_minor", "true")


def test_mutant_that_checks_and_then_acts_overdraws(shop: Shop, authority: FakeAuthority) -> None:
    looks_only(shop.fixtures)
    without_constraint(cast(Fixtures, shop.fixtures), "refunds.order_budgets", "order_budget_not_exceeded")
    overlap(shop, authority, 4)
    assert shop.fixtures.all(OVERPAID), "the early look was enough: the rows did not stand side by side"


def test_the_constraint_alone_holds_what_a_forgetful_function_lets_pass(shop: Shop, authority: FakeAuthority) -> None:
    looks_only(shop.fixtures)
    shop.fixtures.ledger.add_orders([order("o")])
    shop.fixtures.add(refund("a", "o"))
    shop.run()
    shop.fixtures.add(refund("b", "o"))
    shop.fixtures.admin.execute("update refunds.orders set paid_minor = 12000")  # the early look finds room …
    row = shop.fixtures.ledger.claim(1)[0]
    shop.fixtures.admin.execute("update refunds.orders set paid_minor = 10000")  # … that is not there any more
    with pytest.raises(pg.CheckViolation, match="order_budget_not_exceeded"):
        shop.fixtures.admin.execute(
            "update refunds.ledger_entries set status = 'APPROVAL_REQUIRED', waiting_for = 'operator', event_number = event_number + 1,"
            " last_event = 'approval_required', budget_part = 'reserved' where ledger_entry_id = %s",
            [row.ledger_entry_id],
        )


def test_a_clock_that_steps_back_while_the_first_waits_changes_nothing(shop: Shop, authority: FakeAuthority) -> None:
    for n in range(6):
        shop.fixtures.ledger.add_orders([order(f"o{n}", 300_00)])
        shop.fixtures.add(refund(f"first{n}", f"o{n}", 180_00))
        shop.run()
        shop.fixtures.add(refund(f"second{n}", f"o{n}", 180_00))
        shop.fixtures.admin.execute(
            "update refunds.ledger_entries set created_at = created_at - interval '20 seconds' where ledger_entry_id = %s",
            [f"second{n}"],
        )
        shop.run()
        for name in ("first", "second"):
            authority.approve(f"refund:{name}{n}")
    for _ in range(2):
        shop.fixtures.admin.execute(
            "update refunds.ledger_entries set next_attempt_at = clock_timestamp() where status = 'APPROVAL_REQUIRED'"
        )
        shop.run()
    assert shop.fixtures.all(OVERPAID) == []
    assert [shop.stands(f"first{n}")[0] for n in range(6)] == ["EXECUTED"] * 6
    assert "EXECUTED" not in [shop.stands(f"second{n}")[0] for n in range(6)]


def test_parts_up_to_the_whole_are_paid_and_one_minor_unit_over_is_not(shop: Shop) -> None:
    shop.fixtures.ledger.add_orders([order("o")])
    for n, value in enumerate((40_00, 40_00, 20_00)):
        shop.fixtures.add(refund(f"part{n}", "o", value))
    shop.run()
    shop.fixtures.add(refund("over", "o", 1))
    shop.run()
    assert [shop.stands(f"part{n}")[0] for n in range(3)] == ["EXECUTED"] * 3
    assert shop.stands("over") == ("APPROVAL_REQUIRED", "operator", Escalation.ORDER_OVERDRAWN)


@pytest.mark.parametrize("says", [EffectRefused("account closed"), NoAnswer("timed out")], ids=["refused", "silent"])
def test_what_is_in_doubt_is_not_paid_again_under_another_refund_id(shop: Shop, says: Any) -> None:
    shop.settings["max_attempts"] = 2
    shop.fixtures.ledger.add_orders([order(f"o{n}") for n in range(6)])
    shop.spies["simulated_refund"].says = [says] * 60
    shop.fixtures.add(*(refund(f"first{n}", f"o{n}") for n in range(6)))
    shop.run(4)
    # A refusal ends the row, in doubt; silence never does, and the row keeps what it reserved.
    stands, part = ("ERROR", "in_doubt") if isinstance(says, EffectRefused) else ("ALLOWED", "reserved")
    assert {shop.stands(f"first{n}")[0] for n in range(6)} == {stands}
    shop.fixtures.add(*(refund(f"again{n}", f"o{n}") for n in range(6)))
    shop.run(2)
    assert {shop.stands(f"again{n}") for n in range(6)} == {("APPROVAL_REQUIRED", "operator", "order_overdrawn")}
    assert shop.fixtures.one(f"select sum({part}_minor) from refunds.order_budgets") == 6 * HALF
    assert shop.fixtures.executions() == 0


def test_what_does_not_fit_does_not_stand_in_the_way_of_what_does(shop: Shop) -> None:
    """In one statement, the earlier one first: 60.00 and 40.00 of 100.00, and the 50.00 between them."""
    shop.fixtures.ledger.add_orders([order("o"), order("other")])
    shop.fixtures.add(refund("a", "o", 60_00), refund("b", "o", 50_00), refund("c", "o", 40_00), refund("d", "other"))
    with shop.agent() as agent:
        assert not agent.run_once().failed
    assert shop.fixtures.states() == {"a": "EXECUTED", "b": "APPROVAL_REQUIRED", "c": "EXECUTED", "d": "EXECUTED"}
    assert shop.stands("b")[2] == Escalation.ORDER_OVERDRAWN


def test_a_permission_that_was_not_taken_for_what_is_over_by_now_is_put_back_at_once(
    shop: Shop, authority: FakeAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no room when it is recorded, and there is when it is asked why: another refund was let go between the two."""
    shop.fixtures.ledger.add_orders([order("o")])
    shop.fixtures.add(refund("a", "o"))
    look = Ledger.why_refused

    def paid(minor: int) -> None:
        shop.fixtures.admin.execute("update refunds.orders set paid_minor = %s", [minor])

    def looks_late(ledger: Ledger, ids: Sequence[str]) -> dict[str, str]:
        paid(PAID)
        return look(ledger, ids)

    authority.misbehave = lambda exchange: exchange.path.endswith("action/guard") and paid(HALF - 1) is not None
    monkeypatch.setattr(Ledger, "why_refused", looks_late)
    with shop.agent() as agent:
        assert not agent.run_once().failed
    authority.misbehave = lambda exchange: False
    assert shop.fixtures.all("select status, attempts, waits, claimed_by, last_error from refunds.ledger_entries") == [
        ("NEW", 0, 0, None, "another refund of its order was counted first")
    ]
    shop.run()
    assert shop.stands("a")[0] == "EXECUTED"


def test_the_order_of_one_source_lends_nothing_to_anothers_of_the_same_id(shop: Shop) -> None:
    shop.fixtures.ledger.add_orders([order("7", 1500_00, "shop-a"), order("7", 5_00, "shop-b")])
    shop.fixtures.add(
        refund("a", "7", 100_00, source="shop-a"),
        refund("b", "7", 100_00, source="shop-b"),
        refund("c", "7", 100_00, source="shop-c"),
        refund("nobody", "7", 100_00),
    )
    shop.run()
    assert shop.stands("a")[0] == "EXECUTED"
    assert shop.stands("b")[2] == Escalation.ORDER_OVERDRAWN
    assert {shop.stands(name)[2] for name in ("c", "nobody")} == {Escalation.ORDER_PAID_UNKNOWN}


def test_another_currency_goes_to_a_person(shop: Shop) -> None:
    shop.fixtures.ledger.add_orders([order("o", currency="EUR")])
    shop.fixtures.add(refund("r", "o"))
    shop.run()
    assert shop.stands() == ("APPROVAL_REQUIRED", "operator", Escalation.ORDER_OTHER_CURRENCY)


def test_an_order_that_becomes_known_or_is_corrected_has_the_budget_that_its_source_says(shop: Shop) -> None:
    budget = "select paid_minor, executed_minor, beyond_minor from refunds.order_budgets where order_ref = 'o'"
    shop.fixtures.add(refund("r", "o"))
    assert shop.fixtures.all(budget) == [(None, 0, 0)]
    shop.fixtures.ledger.add_orders([order("o")])
    shop.run()
    assert shop.fixtures.all(budget) == [(PAID, HALF, 0)]
    shop.fixtures.ledger.add_orders([order("o", 50_00)])
    assert shop.fixtures.all(budget) == [(50_00, HALF, 10_00)], "what is done stays done, and is named"
    shop.fixtures.add(refund("more", "o", 1))
    shop.run()
    assert shop.stands("more")[2] == Escalation.ORDER_OVERDRAWN


def test_a_row_without_an_order_is_paid_as_ever(shop: Shop) -> None:
    shop.fixtures.add(new_row("r", 126_00, risk=CLEAN))
    shop.run()
    assert shop.stands()[0] == "EXECUTED"
    assert shop.fixtures.one("select count(*) from refunds.order_budgets") == 0


def test_a_refund_is_executed_once_whatever_the_row(shop: Shop) -> None:
    shop.enter(RETAIL, "r")
    shop.run()
    shop.fixtures.admin.execute("alter table refunds.executions disable trigger check_executions")
    again = (
        "insert into refunds.executions select (e).* from (select jsonb_populate_record(x, jsonb_build_object("
        "'execution_id', gen_random_uuid(), 'ledger_entry_id', 'other', 'operation_id', gen_random_uuid())) as e"
        " from refunds.executions x) forged"
    )
    with pytest.raises(pg.UniqueViolation, match="executions_refund_once"):
        shop.fixtures.admin.execute(again)
    shop.fixtures.admin.execute("set session_replication_role = replica; drop index refunds.executions_refund_once")
    shop.fixtures.admin.execute(again)
    verdicts = {v.name: v for v in run_invariants(shop.fixtures.admin, invariants_sql())}
    assert len(verdicts["executed_twice"].damaged) == 1, "what was executed twice all the same is named"


def test_no_program_can_write_a_budget_or_let_go_of_a_doubt_on_its_way(shop: Shop) -> None:
    shop.enter(FEE, "r")
    with shop.fixtures.pool.connection() as worker:
        for statement in (
            "update refunds.order_budgets set paid_minor = 1000000",
            "insert into refunds.order_budgets select * from refunds.order_budgets",
        ):
            with pytest.raises(pg.InsufficientPrivilege):
                worker.execute(statement.encode())
        with pytest.raises(pg.CheckViolation, match="no way from no part"):
            worker.execute(b"update refunds.ledger_entries set budget_part = 'handled' where ledger_entry_id = 'r'")
