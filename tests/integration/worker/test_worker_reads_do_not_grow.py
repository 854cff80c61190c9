"""What a worker asks of its ledger at each scrape, run and claim does not grow with the rows that need nobody."""

from __future__ import annotations

import json
import re
from typing import Any

import psycopg
import pytest
from psycopg.sql import SQL, Literal
from psycopg.types.json import Jsonb

from tests.support.ledger_fixtures import LedgerFixtures, new_row
from worker.refunds import reconcile, sql
from worker.refunds.risk_facts import MANY_ORDERS

pytestmark = pytest.mark.fresh_database  # counts what is read
FEW, MANY = 100, 6_000
"""Rows that are executed."""
LOOKS = {"the gauges": sql.FIGURES, "what is open": sql.COUNT_OPEN}
ALL_OF_ONE = """
select count(*) from refunds.ledger_entries
where tenant_id = %(tenant_id)s and status in ('NEW', 'APPROVAL_REQUIRED', 'GUARDING', 'ALLOWED')
"""


def add_executed(fixtures: LedgerFixtures, first: int, last: int) -> None:
    """Executed entries, as they are after the fact."""
    with fixtures.admin.transaction():
        fixtures.admin.execute("set local session_replication_role = replica")
        fixtures.admin.execute(
            "insert into refunds.ledger_entries (tenant_id, ledger_entry_id, refund_id, status, amount_minor, currency)"
            " select %s, 'done_' || n, 'rf_done_' || n, 'EXECUTED', 1, 'USD' from generate_series(%s::integer, %s::integer) n",
            [fixtures.tenant_id, first, last],
        )
    fixtures.admin.execute("analyze refunds.ledger_entries")


def blocks(fixtures: LedgerFixtures, statement: str, plan: str = "auto", **fields: Any) -> int:
    """Blocks of tables and indexes that the prepared statement looks at; what it changes is taken back."""
    asked = {"tenant_id": fixtures.tenant_id, **fields}
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", statement)))
    prepared = re.sub(r"%\((\w+)\)s", lambda found: f"${names.index(found[1]) + 1}", statement)
    values = SQL(", ").join(Literal(asked[name]) for name in names)
    with psycopg.connect(fixtures.url) as connection:
        connection.execute(f"set plan_cache_mode = {plan}".encode())
        connection.execute(f"prepare asked as {prepared}".encode())
        found = connection.execute(
            SQL("explain (analyze, buffers, format json) execute asked({})").format(values)
        ).fetchone()
        connection.rollback()
    assert found is not None
    return int(found[0][0]["Plan"]["Shared Hit Blocks"] + found[0][0]["Plan"]["Shared Read Blocks"])


def growth(fixtures: LedgerFixtures, statements: dict[str, str]) -> dict[str, tuple[int, int]]:
    """Blocks of each with few and with many executed rows behind three that are open."""
    fixtures.add(*(new_row(f"open_{n}") for n in range(3)))
    add_executed(fixtures, 1, FEW)
    few = {name: blocks(fixtures, statement) for name, statement in statements.items()}
    add_executed(fixtures, FEW + 1, MANY)
    return {name: (few[name], blocks(fixtures, statement)) for name, statement in statements.items()}


def test_what_is_open_is_counted_without_a_look_at_what_ended(ledger_fixtures: LedgerFixtures) -> None:
    read = growth(ledger_fixtures, LOOKS)
    assert {name: seen for name, seen in read.items() if seen[1] > 2 * seen[0]} == {}, read
    assert (ledger_fixtures.ledger.open_counts().due, ledger_fixtures.ledger.figures().due) == (3, 3)


def test_mutant_that_asks_for_all_open_states_at_once_is_caught(ledger_fixtures: LedgerFixtures) -> None:
    few, many = growth(ledger_fixtures, {"at once": ALL_OF_ONE})["at once"]
    assert many > 2 * few


ALL_THAT_IS_DUE = """
select ledger_entry_id from refunds.ledger_entries
where tenant_id = %(tenant_id)s and status in ('NEW', 'APPROVAL_REQUIRED') and next_attempt_at <= least(statement_timestamp(), %(until)s)
  and agent_id = coalesce(%(agent)s::text, agent_id)
order by next_attempt_at, ledger_entry_id limit %(limit)s
"""


def claim_blocks(fixtures: LedgerFixtures, statement: str) -> list[int]:
    """Blocks of one claim for agent "a", of which nothing is due, planned for it and for anybody."""
    asked = {"agent": "a", "until": None, "limit": 10, "worker_id": "w", "lease_seconds": 30.0}
    return [blocks(fixtures, statement, plan, **asked) for plan in ("force_custom_plan", "force_generic_plan")]


def backlog(fixtures: LedgerFixtures, first: int, last: int) -> None:
    """Rows of agent "b" that are due."""
    fixtures.admin.execute(
        "insert into refunds.ledger_entries (tenant_id, ledger_entry_id, refund_id, amount_minor, currency, agent_id)"
        " select %s, 'b_' || n, 'rf_b_' || n, 1, 'USD', 'b' from generate_series(%s::integer, %s::integer) n",
        [fixtures.tenant_id, first, last],
    )
    fixtures.admin.execute("analyze refunds.ledger_entries")


@pytest.mark.parametrize("statement", ["CLAIM_DUE_OF_AGENT", "PEEK_DUE_OF_AGENT"])
def test_a_bound_worker_does_not_look_through_what_is_due_of_another_agent(
    ledger_fixtures: LedgerFixtures, statement: str
) -> None:
    ledger_fixtures.add(*(new_row(f"mine_{n}", agent_id="a") for n in range(3)))
    assert len(ledger_fixtures.ledger.claim(10, None, "a")) == 3
    backlog(ledger_fixtures, 1, 20)
    few = claim_blocks(ledger_fixtures, getattr(sql, statement))
    backlog(ledger_fixtures, 21, MANY)
    many = claim_blocks(ledger_fixtures, getattr(sql, statement))
    assert max(many) <= max(few) + 10, (few, many)


def test_mutant_that_asks_for_any_agent_or_one_in_one_statement_is_caught(ledger_fixtures: LedgerFixtures) -> None:
    backlog(ledger_fixtures, 1, 20)
    few = claim_blocks(ledger_fixtures, ALL_THAT_IS_DUE)
    backlog(ledger_fixtures, 21, MANY)
    assert max(claim_blocks(ledger_fixtures, ALL_THAT_IS_DUE)) > max(few) + 100


WORDS = "The parcel came too late for the party, and I should like my money back."
OF_OTHERS = """
with entered as (
  insert into refunds.ledger_entries (tenant_id, ledger_entry_id, refund_id, status, amount_minor, currency, account_ref, order_ref, requested_at)
  select %(tenant_id)s, 'other_' || n, 'rf_other_' || n, 'DENIED', 1, 'USD', case when n %% 2 = 0 then 'acct_other_' || n end, 'other_' || n,
    now() - interval '60 days'
  from generate_series(1, %(number)s) n)
insert into refunds.orders (tenant_id, order_ref, account_ref, ordered_at, paid_minor, currency)
select %(tenant_id)s, 'other_' || n, 'acct_other_' || n, now() - interval '90 days', 100, 'USD' from generate_series(1, %(number)s) n
"""
OLD_ORDERS = """
insert into refunds.orders (tenant_id, order_ref, account_ref, ordered_at, paid_minor, currency)
select %s, 'o_' || n, 'acct_asked', now() - interval '90 days', 100, 'USD' from generate_series(%s::integer, %s::integer) n
"""
_WITH_WORDS = """
insert into refunds.ledger_entries (tenant_id, ledger_entry_id, refund_id, status, amount_minor, currency, reason, account_ref, requested_at)
select %s, 'said_' || n, 'rf_said_' || n, 'EXECUTED', 1, 'USD', '{words}', {account}, now() - interval '{ago}'
from generate_series(%s::integer, %s::integer) n
"""
BESIDE = {
    "orders of its account": OLD_ORDERS,
    "rows that said the same long ago": _WITH_WORDS.format(words=WORDS, account="'acct_' || n", ago="60 days"),
    "rows without an account that say the same": _WITH_WORDS.format(words=WORDS, account="null", ago="1 hour"),
}


def facts_blocks(fixtures: LedgerFixtures, beside: str) -> tuple[int, int]:
    """Blocks that the facts of one row look at, with few and with many of these beside it."""
    fixtures.add(new_row("asked", reason=WORDS))
    read = []
    for first, last in ((1, FEW), (FEW + 1, MANY)):
        with fixtures.admin.transaction():
            fixtures.admin.execute("set local session_replication_role = replica")
            if first == 1:
                fixtures.admin.execute(OF_OTHERS, {"tenant_id": fixtures.tenant_id, "number": MANY})
            fixtures.admin.execute(beside.encode(), [fixtures.tenant_id, first, last])
        fixtures.admin.execute("vacuum analyze refunds.ledger_entries, refunds.orders")
        read.append(
            max(
                blocks(fixtures, sql.GATHER_FACTS, plan, ids=["asked"])
                for plan in ("force_custom_plan", "force_generic_plan")
            )
        )
    return read[0], read[1]


@pytest.mark.parametrize("beside", BESIDE)
def test_the_facts_of_a_row_are_read_without_a_look_at_all_its_account_has_or_all_who_said_so(
    ledger_fixtures: LedgerFixtures, beside: str
) -> None:
    few, many = facts_blocks(ledger_fixtures, BESIDE[beside])
    assert many < 3 * few + 100, (few, many)


def test_mutant_that_looks_at_every_order_of_a_busy_account_is_caught(
    ledger_fixtures: LedgerFixtures, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = sql.GATHER_FACTS.replace(f"count(*) > {MANY_ORDERS}", "count(*) < 0")
    assert broken != sql.GATHER_FACTS
    monkeypatch.setattr(sql, "GATHER_FACTS", broken)
    ledger_fixtures.admin.execute("drop index refunds.ledger_without_account")
    few, many = facts_blocks(ledger_fixtures, BESIDE["orders of its account"])
    assert many >= 3 * few + 100, (few, many)


@pytest.mark.parametrize("orders", [1, MANY_ORDERS + 1])
def test_what_an_account_asked_and_got_by_its_orders_alone_is_counted_however_many_it_has(
    ledger_fixtures: LedgerFixtures, orders: int
) -> None:
    fixtures = ledger_fixtures
    fixtures.add(new_row("asked"), new_row("by_order", account_ref=None, order_ref="o_1"), new_row("other", account_ref=None, order_ref="o_x"))  # fmt: skip
    with fixtures.admin.transaction():
        fixtures.admin.execute("set local session_replication_role = replica")
        fixtures.admin.execute(OLD_ORDERS, [fixtures.tenant_id, 1, orders])
        fixtures.admin.execute(
            "update refunds.ledger_entries set status = 'EXECUTED', budget_part = 'executed' where order_ref is not null"
        )
        fixtures.admin.execute(
            "update refunds.ledger_entries set requested_at = requested_at - interval '1 hour' where order_ref = 'o_1'"
        )
    known = fixtures.ledger.facts(["asked"])["asked"]
    assert (
        known.derived
        and json.loads(known.derived).items() >= {"customer_attempts_24h": 2, "account_refunds_30d": 1}.items()
    )


EXECUTIONS = """
with entries as (
  select e.*, substr(e.ledger_entry_id, 6)::integer as nth from refunds.ledger_entries e
  where e.status = 'EXECUTED' and not exists (select from refunds.executions x where x.ledger_entry_id = e.ledger_entry_id)
), ordered as (
  insert into refunds.orders (tenant_id, order_ref, ordered_at, paid_minor, currency)
  select tenant_id, ledger_entry_id, now() - interval '90 days', 100, 'USD' from entries)
insert into refunds.executions (tenant_id, execution_id, ledger_entry_id, refund_id, amount_minor, currency, operation_id, start_id,
  start_event_id, claim_epoch, executed_at)
select tenant_id, gen_random_uuid(), ledger_entry_id, refund_id, 1, 'USD', gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 1,
  case when nth < 3 then now() else now() - interval '1 hour' * nth end
from entries order by nth desc
"""
WITH_CURSOR = "insert into refunds.reconcile_cursors (tenant_id, looked_to) values (%s, now() - interval '1 second')"


def reconcile_blocks(fixtures: LedgerFixtures, statement: str) -> tuple[int, int]:
    """Blocks of a round of reconciliation with two new executions, with few and with many old ones, whatever the plan."""
    fixtures.admin.execute(WITH_CURSOR, [fixtures.tenant_id])
    asked = {"routes": Jsonb([]), "master": "small_refund.enabled", "overlap": 15, "since_last": True}
    read = []
    for first, last in ((1, FEW), (FEW + 1, MANY)):
        add_executed(fixtures, first, last)
        with fixtures.admin.transaction():
            fixtures.admin.execute("set local session_replication_role = replica")
            fixtures.admin.execute(
                "update refunds.ledger_entries set order_ref = ledger_entry_id, budget_part = 'executed' where status = 'EXECUTED'"
            )
            fixtures.admin.execute(EXECUTIONS)
        fixtures.admin.execute("vacuum analyze refunds.ledger_entries, refunds.orders, refunds.executions")
        read.append(
            max(blocks(fixtures, statement, plan, **asked) for plan in ("force_custom_plan", "force_generic_plan"))
        )
    return read[0], read[1]


def test_a_round_of_reconciliation_reads_what_is_new_and_not_the_ledger(ledger_fixtures: LedgerFixtures) -> None:
    """The finding: every three seconds the whole ledger and all orders were read, until with some millions no round ended in time."""
    few, many = reconcile_blocks(ledger_fixtures, reconcile.FIND)
    assert many < few + 50, (few, many)


def test_mutant_that_joins_the_ledger_is_caught(ledger_fixtures: LedgerFixtures) -> None:
    broken = reconcile.FIND.replace(" offset 0) e", ") e").replace("    and x.executed_at <= 'infinity' and", "    and")
    assert broken != reconcile.FIND
    few, many = reconcile_blocks(ledger_fixtures, broken)
    assert many >= few + 50, (few, many)
