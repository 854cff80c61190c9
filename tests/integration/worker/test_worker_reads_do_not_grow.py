"""What a worker asks of its ledger at each scrape, run and claim does not grow with the rows that need nobody."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

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


def blocks(fixtures: LedgerFixtures, statement: str, **fields: Any) -> int:
    """Blocks of tables and indexes that the statement looks at; what it changes is taken back."""
    asked = {"tenant_id": fixtures.tenant_id, **fields}
    with psycopg.connect(fixtures.url) as connection:
        found = connection.execute(f"explain (analyze, buffers, format json) {statement}".encode(), asked).fetchone()
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
