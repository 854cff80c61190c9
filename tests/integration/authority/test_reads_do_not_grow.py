"""What one guard, start or report reads does not grow with what is there: no plan looks through a table."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from sentinel.authority.decisions import RECORD_DECISIONS, REPORT_OUTCOMES
from sentinel.store.batch_statement import run_statement
from sentinel.store.database import AUTHORITY
from tests import mutants
from tests.integration.authority.test_batches import rows_of
from tests.support.fixtures import Fixtures, guard_body, make_fixtures
from tests.support.permit_pile import pile_up
from tests.support.roomy import roomy_policies

pytestmark = pytest.mark.fresh_database  # counts what is read
FEW, MANY = 100, 10_000
"""Operations; half as many rows of budgets."""
UNTENDED = "select format('alter table %s set (autovacuum_enabled = false)', oid::regclass) from pg_class where relkind = 'r' and relnamespace = 'sentinel'::regnamespace"
"""What the server does to tables by itself is counted in the same place."""
READ = "select coalesce(sum(heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read), 0)::bigint from pg_statio_user_tables"


def blocks(fixtures: Fixtures, connection: psycopg.Connection[Any], call: Callable[[], Any]) -> int:
    """Blocks of tables and their indexes that `call` looks at on this connection."""
    connection.execute("select pg_stat_force_next_flush()")
    before = fixtures.one(READ)
    call()
    connection.execute("select pg_stat_force_next_flush()")
    return int(fixtures.one(READ) - before)


def a_round(fixtures: Fixtures, connection: psycopg.Connection[Any], number: int) -> int:
    """Blocks for one row: `number` new permissions together that start with the answer and one that does not, and their reports."""
    bodies = [guard_body(value=1, start_id=str(uuid.uuid4())) for _ in range(number)]
    alone = guard_body(value=1)

    def work() -> None:
        for batch in ([alone], bodies):
            answers = run_statement(connection, RECORD_DECISIONS, rows_of(fixtures, batch), 2000)
            assert {answer.decision for answer in answers} == {"ALLOW"}
        reports = [report_of(fixtures, body, answer.permit_id) for body, answer in zip(bodies, answers, strict=True)]
        assert {one.result for one in run_statement(connection, REPORT_OUTCOMES, reports, 2000)} == {"received"}

    return blocks(fixtures, connection, work) // (number + 1)


def report_of(fixtures: Fixtures, body: dict[str, Any], permit: uuid.UUID | None) -> dict[str, Any]:
    """A row of `sentinel.report_input`."""
    names = ("idempotency_key", "action", "agent_id", "resource", "risk_class")
    return {name: body[name] for name in names} | {
        "tenant_id": str(fixtures.tenant_id), "permit_id": str(permit), "outcome": "success", "content_digest": uuid.uuid4().hex,
        "report_id": str(uuid.uuid4()), "event_id": str(uuid.uuid4()), "principal_id": None, "bound_agent": body["agent_id"],
    }  # fmt: skip


def growth(fixtures: Fixtures, number: int) -> tuple[int, int]:
    """Blocks for one row with few and with many operations and budgets there, on connections that planned when there were few."""
    pile_up(fixtures, FEW)
    with fixtures.as_role(AUTHORITY) as connection:
        for _ in range(3):
            a_round(fixtures, connection, number)
        few = a_round(fixtures, connection, number)
        pile_up(fixtures, MANY)
        a_round(fixtures, connection, number)
        return few, a_round(fixtures, connection, number)


@pytest.fixture
def roomy(database_url: str, tmp_path: Path) -> Iterator[Fixtures]:
    """Fixtures whose totals are never full."""
    with closing(make_fixtures(database_url, policies=roomy_policies(tmp_path))) as fixtures:
        for (statement,) in fixtures.admin.execute(UNTENDED).fetchall():
            fixtures.admin.execute(statement)
        yield fixtures


def test_a_guard_and_its_report_read_no_more_where_there_is_more(roomy: Fixtures) -> None:
    few, many = growth(roomy, 4)
    with roomy.as_role(AUTHORITY) as connection:  # planned now
        for _ in range(3):
            a_round(roomy, connection, 4)
        later = a_round(roomy, connection, 4)
    print(f"blocks for one row: {few} with {FEW} operations, {many} with {MANY}, {later} as planned then")
    assert 0 < max(many, later) < few + 100  # one level more of some indexes


def test_mutant_that_joins_budgets_is_caught(roomy: Fixtures) -> None:
    mutants.cut(roomy, "sentinel.hold_sums", "u.ctid = f.found_at and", "(u.ctid = f.found_at or u.subject || '' = f.subject and u.policy_id = f.policy_id) and")  # fmt: skip
    few, many = growth(roomy, 4)
    assert many >= few + 100
