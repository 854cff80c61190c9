"""What a worker asks of its ledger at each scrape, run and claim does not grow with the rows that need nobody."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pytest
from psycopg.sql import SQL, Literal

from tests.support.ledger_fixtures import LedgerFixtures, new_row
from worker.refunds import sql

pytestmark = pytest.mark.fresh_database  # counts what is read
FEW, MANY = 100, 20_000
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
