"""What one guard, start or report reads, and one look at what waits or was decided, does not grow with what is there: no plan looks
through a table.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ops_console.read_models.events import LOOKED_AT, page_texts
from ops_console.read_models.ledger_search import page_sql as ledger_page
from ops_console.read_models.order_search import ENDED
from ops_console.read_models.order_search import page_sql as orders_page
from sentinel.authority import halts
from sentinel.authority.approval_queue import (
    MOST_LOOKED,
    decided_sql,
    list_approvals,
    list_sql,
    part_end_sql,
    pending_sql,
)
from sentinel.authority.approvals import COLUMNS, DECIDED_SINCE_OF, decided_since
from sentinel.authority.decisions import RECORD_CONTRADICTION, RECORD_DECISIONS, REPORT_OUTCOMES
from sentinel.authority.halts import KNOWN_TARGETS, known_targets
from sentinel.authority.policies import HIGHEST_LIMIT_USAGE, OPERATIONS_LOOKED_AT
from sentinel.authority.switches import IN_FORCE
from sentinel.store.batch_statement import run_statement
from sentinel.store.database import AUTHORITY, CONSOLE
from sentinel.store.ids import new_id
from tests import mutants
from tests.integration.authority.test_batches import rows_of
from tests.support.fixtures import Fixtures, guard_body, make_fixtures
from tests.support.not_executed import ended, lift_all
from tests.support.permit_pile import pile_up
from tests.support.roomy import roomy_policies

pytestmark = pytest.mark.fresh_database  # counts what is read
FEW, MANY = 100, 10_000
"""Operations; half as many rows of budgets."""
UNTENDED = "select format('alter table %s set (autovacuum_enabled = false)', oid::regclass) from pg_class where relkind = 'r' and relnamespace in ('sentinel'::regnamespace, 'refunds'::regnamespace, 'orders'::regnamespace)"
"""What the server does to tables by itself is counted in the same place."""
READ = "select coalesce(sum(heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read), 0)::bigint from pg_statio_user_tables"


def blocks(fixtures: Fixtures, connection: psycopg.Connection[Any], call: Callable[[], Any]) -> int:
    """Blocks of tables and their indexes that `call` looks at on this connection."""
    for earlier in (fixtures.admin, connection):  # what it did before is counted before
        earlier.execute("select pg_stat_force_next_flush()")
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


# a contradiction --------------------------------------------------------------------------------------------------------

PUT_PARTS = """
insert into sentinel.usage_parts (tenant_id, limit_key, bucket, window_seconds, cap_minor)
select u.tenant_id, u.limit_key, u.bucket - nth * interval '5 minutes', u.window_seconds, u.cap_minor
from (select distinct on (tenant_id, limit_key) * from sentinel.usage where window_seconds = 3600 order by tenant_id, limit_key, bucket desc) as u
cross join generate_series(1, %(number)s) as nth on conflict do nothing
"""


def read_by_a_contradiction(fixtures: Fixtures, connection: psycopg.Connection[Any], parts: int) -> int:
    """Blocks that it reads where limits of an hour have been in use for so many parts of their window."""
    body, answer, _ = ended(fixtures)
    permit = fixtures.one(
        "select permit_id from sentinel.operation_states where decision_event_id = %s", answer["decision_event_id"]
    )
    fixtures.admin.execute(PUT_PARTS.encode(), {"number": parts})
    named = {
        "seq": 0,
        "ask": json.dumps(report_of(fixtures, body, permit)),
        "halt_id": new_id(),
        "halt_event_id": new_id(),
    }
    found = blocks(fixtures, connection, lambda: connection.execute(RECORD_CONTRADICTION, named))
    assert (
        fixtures.one(
            "select count(*) from sentinel.contradictions where event_id = %s", json.loads(named["ask"])["event_id"]
        )
        == 1
    )
    lift_all(fixtures)
    return found


def test_a_contradiction_reads_no_more_of_limits_that_have_been_in_use_for_years(roomy: Fixtures) -> None:
    """The finding: after two years it took longer than a statement may, and meanwhile nobody got a decision."""
    with roomy.as_role(AUTHORITY) as connection:
        _, few, many = [read_by_a_contradiction(roomy, connection, parts) for parts in (FEW, FEW, 2 * MANY)]
    print(f"blocks: {few} with {FEW} parts, {many} with {2 * MANY}")
    assert 0 < many < few + 100


# looks at approvals -----------------------------------------------------------------------------------------------------

EXPIRED, IN_HISTORY = 20, 20_000
"""Approvals that ran out."""
PUT_APPROVALS = """
insert into sentinel.approvals (tenant_id, approval_id, operation_id, principal_id, agent_id, action, resource, digest, reasons,
  policy_digest, required_role, required_people, status, created_at, expires_at, decided_at, handled_reference)
select %(tenant_id)s, gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 'agent', 'refund.create', 'refund/' || n, %(digest)s::text,
  '{amount_needs_approval}', %(digest)s::text, 'approver', 1, %(status)s::text, clock_timestamp() - interval '1 hour',
  clock_timestamp() + interval '1 hour', case when %(status)s::text <> 'pending' then clock_timestamp() end, %(reference)s::text
from generate_series(1, %(number)s::integer) as n returning approval_id
"""
LOOKS = {
    "what is pending": (list_sql(status="pending", behind=False), "pending", ""),
    "what was handled": (decided_sql("handled", behind=False), "handled", ""),
    "what was approved": (decided_sql("approved", behind=False), "approved", ""),
    "changes of people": (decided_sql("decided", behind=False, changes=True), "decided", ""),
    "what an agent asked that asks seldom": (list_sql(status=None, behind=False, of_agent=True), "", "seldom"),
    "what was approved of one that asks much": (
        list_sql(status="approved", behind=False, of_agent=True),
        "approved",
        "agent",
    ),
}
"""The statement, and the status and agent that it is asked with; each finds one approval."""
COMPUTED = f"""
select * from (select {COLUMNS} from sentinel.approvals a where a.tenant_id = %(tenant_id)s) a
where a.status = %(status)s order by a.approval_id desc limit %(limit)s
"""


def put_approvals(fixtures: Fixtures, number: int, status: str, reference: str | None = None) -> list[uuid.UUID]:
    """Approvals as they are after the fact, without their votes; their ids."""
    asked = {"tenant_id": fixtures.tenant_id, "digest": "sha256:" + "0" * 64, "number": number, "status": status}
    with fixtures.admin.transaction():
        fixtures.admin.execute("set local session_replication_role = replica")
        return [row[0] for row in fixtures.admin.execute(PUT_APPROVALS, asked | {"reference": reference}).fetchall()]


def looks(fixtures: Fixtures, statements: dict[str, tuple[str, str, str]]) -> dict[str, int]:
    """Blocks that each statement looks at on a new connection, and that it finds one."""
    read: dict[str, int] = {}
    with fixtures.as_role(CONSOLE) as connection:
        for name, (statement, status, agent) in statements.items():
            asked = {
                "tenant_id": fixtures.tenant_id,
                "operator_id": None,
                "status": status,
                "agent_id": agent,
                "limit": 50,
            }

            def look(statement: str = statement, asked: dict[str, Any] = asked) -> None:
                assert len(connection.execute(statement.encode(), asked).fetchall()) == 1

            look()
            read[name] = blocks(fixtures, connection, look)
    return read


@pytest.fixture
def one_of_each(roomy: Fixtures) -> Fixtures:
    """One approval for each of the looks, and a few that ran out."""
    for status, reference in (("pending", None), ("rejected", "ticket 7"), ("approved", None)):
        put_approvals(roomy, 1, status, reference)
    roomy.admin.execute("update sentinel.approvals set agent_id = 'seldom' where handled_reference is not null")
    (change,) = put_approvals(roomy, 1, "expired")
    roomy.admin.execute(
        "insert into sentinel.protected_changes (tenant_id, approval_id, request) values (%s, %s, '{}')",
        [roomy.tenant_id, change],
    )
    put_approvals(roomy, EXPIRED, "expired")
    return roomy


def test_a_look_for_few_approvals_reads_no_more_where_more_were_decided(one_of_each: Fixtures) -> None:
    few = looks(one_of_each, LOOKS)
    put_approvals(one_of_each, IN_HISTORY, "expired")
    many = looks(one_of_each, LOOKS)
    one_of_each.admin.execute("analyze sentinel.approvals")
    later = looks(one_of_each, LOOKS)
    print(f"blocks for one look: {few} with {EXPIRED} that ran out, {many} with {IN_HISTORY}, {later} as planned then")
    assert {name: read for name, read in few.items() if max(many[name], later[name]) >= read + 100} == {}


def decided_of(fixtures: Fixtures, principal_id: uuid.UUID, agent_id: str | None, limit: int) -> list[uuid.UUID]:
    """What was decided of them, in portions as a stream catches up."""
    since, found = datetime(1970, 1, 1, tzinfo=UTC), []
    while True:
        portion = decided_since(fixtures.authority.pool, fixtures.tenant_id, since, limit, principal_id=principal_id, agent_id=agent_id)  # fmt: skip
        found += [one.request_id for one in portion]
        if len(portion) < limit:
            return found
        since = portion[-1].decided_at


def test_what_was_decided_of_one_asker_is_read_without_what_was_decided_of_others(one_of_each: Fixtures) -> None:
    mine, theirs = put_approvals(one_of_each, 2, "approved")
    me, bound = uuid.uuid4(), "seldom"
    one_of_each.admin.execute("update sentinel.approvals set principal_id = %s where approval_id = %s", [me, mine])
    one_of_each.admin.execute("update sentinel.approvals set agent_id = %s where approval_id = %s", [bound, theirs])
    (handled,) = one_of_each.admin.execute("select approval_id from sentinel.approvals where handled_reference is not null").fetchone()  # fmt: skip
    asked = {"tenant_id": one_of_each.tenant_id, "since": datetime(1970, 1, 1, tzinfo=UTC), "principal_id": me, "agent_id": bound,
             "limit": 100}  # fmt: skip

    def read() -> list[int]:
        with one_of_each.as_role(AUTHORITY) as connection:
            found = []
            for plan in ("force_custom_plan", "force_generic_plan"):
                connection.execute(f"set plan_cache_mode = {plan}".encode())
                connection.execute(DECIDED_SINCE_OF.encode(), asked, prepare=True)
                found.append(
                    blocks(
                        one_of_each,
                        connection,
                        lambda: connection.execute(DECIDED_SINCE_OF.encode(), asked, prepare=True),
                    )
                )
        return found

    few = read()
    put_approvals(one_of_each, IN_HISTORY, "expired")
    one_of_each.admin.execute("analyze sentinel.approvals")
    many = read()
    assert max(many) < max(few) + 50, (few, many)
    for limit in (1, 100):
        assert decided_of(one_of_each, me, bound, limit) == [handled, *sorted((mine, theirs), key=[mine, theirs].index)]
        assert decided_of(one_of_each, me, None, limit) == [mine]
        assert decided_of(one_of_each, uuid.uuid4(), bound, limit) == [handled, theirs]


def test_what_one_agent_asked_is_all_of_its_own_in_pages(one_of_each: Fixtures) -> None:
    pool, tenant_id = one_of_each.console_pool, one_of_each.tenant_id
    put_approvals(one_of_each, 3, "rejected", "ticket 8")
    put_approvals(one_of_each, 3, "rejected")
    one_of_each.admin.execute(
        "update sentinel.approvals set expires_at = clock_timestamp() where ctid in"
        " (select ctid from sentinel.approvals where status = 'pending' limit 1)"
    )
    put_approvals(one_of_each, 2, "pending")
    everything = list_approvals(pool, tenant_id, limit=1000)
    asked: list[tuple[str | None, bool | None]] = [
        *((status, None) for status in (None, "pending", "approved", "rejected", "expired")), ("rejected", True), ("rejected", False),
    ]  # fmt: skip
    for status, handled in asked:
        wanted = [
            one.approval_id for one in everything
            if one.agent_id == "agent" and status in (None, one.status) and handled in (None, one.handled_reference is not None)
        ]  # fmt: skip
        found: list[uuid.UUID] = []
        while page := list_approvals(
            pool, tenant_id, status=status, handled=handled, agent_id="agent", limit=2, before=found[-1] if found else None
        ):  # fmt: skip
            found += [one.approval_id for one in page]
        assert wanted and found == wanted, (status, handled)


def test_mutant_that_asks_for_a_computed_status_is_caught(one_of_each: Fixtures) -> None:
    computed = {"what is pending": (COMPUTED, "pending", "")}
    few = looks(one_of_each, computed)
    put_approvals(one_of_each, IN_HISTORY, "expired")
    assert looks(one_of_each, computed)["what is pending"] >= few["what is pending"] + 100


# looks of one tenant beside another's -------------------------------------------------------------------------------------

# Copies of one operation and its decision, under other names.
OPERATIONS_OF = """
with template as (
  select o, e from sentinel.operation_rows o join sentinel.event_rows e on e.operation_id = o.operation_id where e.kind = 'decision' limit 1
), copies as materialized (
  select gen_random_uuid() as operation, gen_random_uuid() as event, o, e from template, generate_series(1, %(number)s::integer)
), operations as (
  insert into sentinel.operation_rows select new.* from copies cross join lateral jsonb_populate_record(o, jsonb_build_object(
    'tenant_id', %(tenant_id)s::uuid, 'operation_id', operation, 'idempotency_key', operation)) as new
)
insert into sentinel.event_rows select new.* from copies cross join lateral jsonb_populate_record(e, jsonb_build_object(
  'tenant_id', %(tenant_id)s::uuid, 'operation_id', operation, 'event_id', event)) as new
"""
ENTRIES_OF = """
insert into refunds.ledger_entries (tenant_id, ledger_entry_id, refund_id, status, amount_minor, currency)
select %(tenant_id)s, gen_random_uuid(), 'rf', 'DENIED', 1, 'USD' from generate_series(1, %(number)s::integer)
"""
ORDERS_OF = """
insert into orders.reviews (tenant_id, review_id, source, order_id, body_sha256, amount_minor, currency, order_facts)
select %(tenant_id)s, gen_random_uuid(), 'shop', gen_random_uuid(), sha256(''), 1, 'USD', '{}' from generate_series(1, %(number)s::integer)
"""
OTHERS = 20_000
"""Of each, of another tenant."""
LIMIT_LOOKED_AT = {
    "most": 3, "looked": OPERATIONS_LOOKED_AT, "prefixes": ["refunds/account_total|"], "windows": ["rolling"], "seconds": [86400],
    "buckets": [3600], "zones": ["UTC"], "parts": [2], "caps": ['{"USD": 30000}'],
}  # fmt: skip
PAGES: dict[str, tuple[str, dict[str, Any], int]] = {
    "what may be halted": (KNOWN_TARGETS, {}, 3),
    "what is used of limits": (HIGHEST_LIMIT_USAGE, LIMIT_LOOKED_AT, 0),
    "the ledger": (ledger_page((), behind=False), {}, 1),
    "what was denied": (ledger_page(("status",), behind=False), {"status": "DENIED"}, 1),
    "orders": (orders_page((), is_open=False, behind=False), {}, 1),
    "orders of a lane": (orders_page(("lane",), is_open=False, behind=False), {"lane": "high"}, 0),
    "orders that ended": (ENDED, {}, 0),
}
"""The statement of a page, what it is asked with besides, and how many rows it finds of a tenant of one of each."""


def fill_beside(fixtures: Fixtures, tenant_id: uuid.UUID, number: int) -> None:
    """So many operations, ledger rows and orders of a tenant, without their trails."""
    with fixtures.admin.transaction():
        fixtures.admin.execute("set local session_replication_role = replica")
        for statement in (OPERATIONS_OF, ENTRIES_OF, ORDERS_OF):
            fixtures.admin.execute(statement.encode(), {"tenant_id": tenant_id, "number": number})


def pages_read(fixtures: Fixtures, tenant_id: uuid.UUID) -> dict[str, int]:
    """Blocks of each of `PAGES`."""
    read = {}
    with fixtures.as_role(CONSOLE) as connection:
        for name, (statement, besides, rows) in PAGES.items():
            asked = {"tenant_id": tenant_id, "limit": 50, **besides}

            def look(statement: str = statement, asked: dict[str, Any] = asked, rows: int = rows) -> None:
                assert len(connection.execute(statement.encode(), asked).fetchall()) == rows

            read[name] = blocks(fixtures, connection, look)
    return read


def test_the_pages_of_a_tenant_with_little_read_no_more_where_another_has_much(roomy: Fixtures) -> None:
    roomy.guard(guard_body(value=1))
    small, large = uuid.uuid4(), uuid.uuid4()
    fill_beside(roomy, small, 1)
    fill_beside(roomy, large, FEW)
    few = pages_read(roomy, small)
    fill_beside(roomy, large, OTHERS)
    many = pages_read(roomy, small)
    for table in ("sentinel.operation_rows", "sentinel.event_rows", "refunds.ledger_entries", "orders.reviews"):
        roomy.admin.execute(f"analyze {table}".encode())
    later = pages_read(roomy, small)
    print(f"blocks: {few} beside {FEW}, {many} beside {OTHERS}, {later} as planned then")
    assert {name: read for name, read in few.items() if max(many[name], later[name]) >= read + 40} == {}


# looks of a tenant with a long history beside others ----------------------------------------------------------------------

SELDOM_EVENTS = """
insert into sentinel.event_rows (tenant_id, event_id, kind, agent_id, body, hash, occurred_at)
select %(tenant_id)s, gen_random_uuid(), 'halt_set', 'agent', '{}', sha256(''), clock_timestamp() from generate_series(1, %(number)s::integer)
"""
SWITCH = """
insert into sentinel.switches (tenant_id, name, is_on, canary_percent, changed_at, changed_by, reason)
values (%(tenant_id)s, 'small_refund.enabled', false, 0, clock_timestamp(), 'admin', 'test')
"""
GATE_REPORTS = """
insert into sentinel.gate_reports (tenant_id, report_id, scenario, switch, policy_digest, passed, cases, correct, lower_bound_ppm,
  wrong_executions, not_covered, report, created_at, recorded_by)
select gen_random_uuid(), gen_random_uuid(), 'small', 'small_refund.enabled', %(digest)s, true, 1, 1, 1000000, 0, 0, '{}', clock_timestamp(), 'ci'
from generate_series(1, %(number)s::integer)
"""
NOBODYS = {"digest": "sha256:" + "0" * 64, "reference": None}
ANY_EVENT = {
    "kind": "halt_set", "before": uuid.UUID(int=2**128 - 1), "oldest": uuid.UUID(int=0), "look": LOOKED_AT, "operation_id": None,
}  # fmt: skip
SELDOM_LOOKS: dict[str, tuple[str, dict[str, Any], int]] = {
    "the queue": (pending_sql(of_kind=False, behind=False), {"operator_id": None, "limit": 50}, 1),
    "a part of the queue": (part_end_sql(of_kind=False, behind=False), {"offset": MOST_LOOKED - 1, "limit": 2}, 0),
    "rare events": (page_texts("rare kind", ("kind",))[0], ANY_EVENT | {"limit": 50}, 1),
    "switches in force": (IN_FORCE, {"owners": [], "names": ["small_refund.enabled"], "agent_id": None}, 1),
}
"""As `PAGES`."""


def test_what_is_rare_in_a_long_history_is_read_without_what_others_have(roomy: Fixtures) -> None:
    """The finding: the queue of a tenant whose approvals are decided was read past every pending one of another tenant."""
    roomy.guard(guard_body(value=1))
    small, large = uuid.uuid4(), uuid.uuid4()

    def fill(statement: str, tenant_id: uuid.UUID, number: int, status: str = "pending") -> None:
        with roomy.admin.transaction():
            roomy.admin.execute("set local session_replication_role = replica")
            fields = {"tenant_id": tenant_id, "number": number, "status": status}
            roomy.admin.execute(statement.encode(), fields | NOBODYS)

    def read() -> dict[str, int]:
        found = {}
        with roomy.as_role(CONSOLE) as connection:
            for name, (statement, besides, rows) in SELDOM_LOOKS.items():
                asked = {"tenant_id": small, **besides}

                def look(statement: str = statement, asked: dict[str, Any] = asked, rows: int = rows) -> None:
                    assert len(connection.execute(statement.encode(), asked).fetchall()) == rows

                found[name] = blocks(roomy, connection, look)
        return found

    for statement in (PUT_APPROVALS, SELDOM_EVENTS, SWITCH):
        fill(statement, small, 1)
    few = read()
    fill(PUT_APPROVALS, small, OTHERS // 4, "expired")
    fill(OPERATIONS_OF, small, OTHERS // 4)
    for statement in (PUT_APPROVALS, SELDOM_EVENTS, GATE_REPORTS):
        fill(statement, large, OTHERS)
    many = read()
    roomy.admin.execute("analyze")
    later = read()
    print(f"blocks: {few} with little, {many} with much, {later} as planned then")
    assert {name: blocks for name, blocks in few.items() if max(many[name], later[name]) >= blocks + 40} == {}


def test_a_page_is_shown_without_suggestions_where_they_cannot_be_found(
    roomy: Fixtures, monkeypatch: pytest.MonkeyPatch
) -> None:
    roomy.guard(guard_body(value=1))
    assert {one.scope for one in known_targets(roomy.console_pool, roomy.tenant_id)} == {
        "action",
        "agent",
        "agent_action",
    }
    monkeypatch.setattr(
        halts, "KNOWN_TARGETS", "select 'agent' as scope, (1 / (%(tenant_id)s::uuid is null)::integer)::text as target"
    )
    assert known_targets(roomy.console_pool, roomy.tenant_id) == []
