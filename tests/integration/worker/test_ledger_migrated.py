"""A ledger from before orders had budgets and sources: nothing of it is lost, and what nobody can know goes to a person."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from sentinel.platform.resources import invariants_sql
from sentinel.store.embedded import RunningServer
from sentinel.store.invariants import run_invariants
from sentinel.store.migrate import HEAD, migrate
from tests.support.fake_authority import FakeAuthority
from tests.support.harness import dump
from tests.support.ledger_world import CLEAN, LedgerWorld
from tests.support.old_databases import at_revision, empty_database
from tests.support.workflow_world import Shop
from worker.workflow.reasons import Escalation

TENANT = uuid.UUID(int=7)
YESTERDAY = datetime.now(UTC) - timedelta(days=1)
STARTED = {"operation_id": uuid.UUID(int=1), "decision_event_id": uuid.UUID(int=2), "start_id": uuid.UUID(int=3)}
ALLOWED = {"status": "ALLOWED", **STARTED, "permit_token": "p", "lease_until": "2026-01-01T00:00:00Z"}
WAITS = {"status": "APPROVAL_REQUIRED", "waiting_for": "operator"}

ENTRIES: dict[str, tuple[str, int, dict[str, Any]]] = {
    # id: (order, amount in USD, what else the row says)
    "mixed-paid": ("mixed", 30_00, {"status": "EXECUTED", **STARTED}),
    "mixed-allowed": ("mixed", 20_00, ALLOWED),
    "mixed-handled": ("mixed", 5_00, {"status": "DENIED", "reason_code": "handled_by_person"}),
    "mixed-denied": ("mixed", 45_00, {"status": "DENIED", "reason_code": "over_limit"}),
    "mixed-waits-1": ("mixed", 40_00, WAITS),
    "mixed-waits-2": ("mixed", 40_00, WAITS),
    "mixed-customer": ("mixed", 10_00, {**WAITS, "waiting_for": "customer"}),
    "doubt": ("doubt", 60_00, {"status": "ERROR", "last_error": "no answer", **STARTED}),
    "failed-early": ("doubt", 60_00, {"status": "ERROR", "last_error": "no route"}),
    "over-1": ("over", 60_00, {"status": "EXECUTED", "refund_id": "rf-over", **STARTED}),
    "over-2": ("over", 60_00, {"status": "EXECUTED", "refund_id": "rf-over", **STARTED}),
    "foreign-paid": ("foreign", 60_00, {"status": "EXECUTED", **STARTED}),
    "stranger-paid": ("stranger", 60_00, {"status": "EXECUTED", **STARTED}),
    "begun": ("begun", 60_00, {"status": "NEW", **STARTED}),
    "begun-second": ("begun", 60_00, {}),
    "refused-start": ("refused", 60_00, {"status": "NEW", **STARTED}),
    "refused-second": ("refused", 60_00, {}),
    "private-paid": ("private", 60_00, {"status": "EXECUTED", "channel": "private", **STARTED}),
    "plain": ("", 10_00, {}),
    # Two shops with the same ids, and an order without a shop beside one of them.
    "order:a:1001": ("1001", 1500_00, {"status": "EXECUTED", **STARTED}),
    "order:b:1001": ("1001", 5_00, {}),
    "bare-1001": ("1001", 100_00, {}),
    "order:a:1002": ("1002", 1500_00, {"status": "EXECUTED", **STARTED}),
    "order:b:1002": ("1002", 5_00, {}),
}
ORDERS = {
    "mixed": 100_00,
    "doubt": 100_00,
    "over": 100_00,
    "begun": 100_00,
    "refused": 100_00,
    "1001": 1500_00,
    "1002": 1500_00,
}
REVIEWS = {("a", "1001"): 1500_00, ("b", "1001"): 5_00, ("a", "1002"): 1500_00, ("b", "1002"): 5_00}


def put(admin: psycopg.Connection[Any], table: str, **fields: Any) -> None:
    """One row as that program left it."""
    marks = ", ".join(["%s"] * len(fields))
    admin.execute(f"insert into {table} ({', '.join(fields)}) values ({marks})".encode(), list(fields.values()))


def fill(admin: psycopg.Connection[Any]) -> None:
    """Rows of every kind at revision 0014. How they came there is not looked at: no trigger fires."""
    admin.execute("set session_replication_role = replica")
    put(admin, "sentinel.tenants", tenant_id=TENANT, label="shop")
    put(admin, "refunds.defaults", tenant_id=TENANT)
    for order, paid in ORDERS.items():
        put(
            admin,
            "refunds.orders",
            tenant_id=TENANT,
            order_ref=order,
            ordered_at=YESTERDAY,
            paid_minor=paid,
            currency="USD",
        )
    put(
        admin,
        "refunds.orders",
        tenant_id=TENANT,
        order_ref="foreign",
        ordered_at=YESTERDAY,
        paid_minor=10_000,
        currency="EUR",
    )
    put(admin, "refunds.orders", tenant_id=TENANT, channel="private", order_ref="private", ordered_at=YESTERDAY,
        paid_minor=60_00, currency="USD")  # fmt: skip
    put(admin, "refunds.order_flags", tenant_id=TENANT, channel="retail", order_ref="mixed", flag="open_complaint")
    for number, (entry, (order, minor, fields)) in enumerate(ENTRIES.items(), 10):
        row = {"refund_id": f"rf-{entry}", "status": "NEW", **fields}
        put(admin, "refunds.ledger_entries", tenant_id=TENANT, ledger_entry_id=entry, amount_minor=minor, currency="USD",
            order_ref=order or None, account_ref=f"acct-{entry}", risk=Jsonb(CLEAN), created_at=f"2026-01-02T00:00:{number}Z", **row)  # fmt: skip
        if row["status"] == "EXECUTED":
            put(admin, "refunds.executions", tenant_id=TENANT, execution_id=uuid.uuid4(), ledger_entry_id=entry,
                refund_id=row["refund_id"], amount_minor=minor, currency="USD", operation_id=uuid.uuid4(),
                start_id=STARTED["start_id"], start_event_id=uuid.uuid4(), claim_epoch=1)  # fmt: skip
    put(
        admin,
        "refunds.orders_taken",
        tenant_id=TENANT,
        channel="private",
        order_ref="private",
        ledger_entry_id="private-paid",
    )
    for entry, event in (("begun", "allowed"), ("refused-start", "allowed"), ("refused-start", "start_refused")):
        put(admin, "refunds.ledger_events", tenant_id=TENANT, ledger_entry_id=entry, from_status="GUARDING", event=event,
            to_status="ALLOWED", claim_epoch=1)  # fmt: skip
    for (source, order), paid in REVIEWS.items():
        put(admin, "orders.reviews", tenant_id=TENANT, review_id=uuid.uuid4(), source=source, order_id=order, body_sha256=bytes(32),
            amount_minor=paid, currency="USD", order_facts="{}", status="REFUND_FILED", lane="medium", resolution="refund",
            resolved_by="ann", resolution_reason="called", resolved_at="2026-01-02", received_at=YESTERDAY, band="medium",
            guard_params="{}", operation_id=uuid.uuid4(), decision="APPROVAL_REQUIRED")  # fmt: skip
    for number, (agent, scopes) in enumerate(KEYS):
        put(admin, "sentinel.agent_keys", tenant_id=TENANT, key_id=uuid.UUID(int=number), principal_id=uuid.uuid4(),
            key_hash=bytes([number]) * 32, hint="k", agent_id=agent, scopes=scopes)  # fmt: skip
    admin.execute("set session_replication_role = origin")


KEYS = [
    ("retail-refund-agent", ["guard", "report"]), ("order-review", ["guard"]), ("retail-refund-agent", ["approvals"]),
    ("somebody-else", ["guard"]), (None, ["guard"]),
]  # fmt: skip


@contextmanager
def filled(server: RunningServer, revision: str) -> Iterator[str]:
    """A database that was filled at 0014 and stands at a revision now."""
    with empty_database(server) as url:
        at_revision(url, "0014")
        with psycopg.connect(url, autocommit=True) as admin:
            fill(admin)
        at_revision(url, revision)
        yield url


@pytest.fixture(params=["0014", "0015"])
def old_url(pg_server: RunningServer, request: pytest.FixtureRequest) -> Iterator[str]:
    """A filled database of a program before this one."""
    with filled(pg_server, request.param) as url:
        yield url


def counts(admin: psycopg.Connection[Any]) -> dict[str, int]:
    """Rows by table, but for the tables of ways that rows may go."""
    tables = admin.execute(
        "select format('%I.%I', schemaname, tablename) from pg_tables where schemaname in ('sentinel', 'refunds', 'orders')"
        " and tablename not like '%transitions'"
    ).fetchall()
    return {name: admin.execute(f"select count(*) from {name}".encode()).fetchone()[0] for (name,) in tables}  # type: ignore[index]


def rows(admin: psycopg.Connection[Any], query: str) -> list[tuple[Any, ...]]:
    return admin.execute(query.encode()).fetchall()


def money(admin: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    """What each entry and execution is about and how far it is."""
    return rows(
        admin,
        "select ledger_entry_id, refund_id, status, amount_minor, currency, channel, order_ref, account_ref, e.start_id, e.operation_id,"
        " permit_token, reason_code, waiting_for, x.execution_id, x.amount_minor from refunds.ledger_entries e"
        " left join refunds.executions x using (tenant_id, ledger_entry_id, refund_id, currency, amount_minor) order by 1",
    )


def migrated(url: str) -> psycopg.Connection[Any]:
    """The database at this program's revision."""
    assert migrate(url)[1] == HEAD
    return psycopg.connect(url, autocommit=True)


def test_no_row_is_lost_and_none_is_about_something_else(old_url: str) -> None:
    with psycopg.connect(old_url, autocommit=True) as admin:
        before, entries = counts(admin), money(admin)
    with migrated(old_url) as admin:
        after = counts(admin)
        assert money(admin) == entries
    changed = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
    if "refunds.order_budgets" not in before:
        # The facts of the two ids were the first shop's that filed a refund: they are each shop's own now.
        assert changed == {"refunds.orders": (9, 11)}
    else:
        assert changed == {}
    assert (after["refunds.order_budgets"], after["orders.refunds"]) == (13, 4)


BUDGETS = """
select channel, source, order_ref, paid_minor, reserved_minor, executed_minor, handled_minor, in_doubt_minor, beyond_minor,
  uncounted_entries from refunds.order_budgets order by 1, 2, 3"""


def test_each_order_has_the_budget_of_what_its_rows_had_taken(old_url: str) -> None:
    with migrated(old_url) as admin:
        found = {"/".join(filter(None, row[:3])): row[3:] for row in rows(admin, BUDGETS)}
        assert found == {
            # paid, reserved, executed, handled, in doubt, beyond, uncounted
            "retail/mixed": (100_00, 60_00, 30_00, 5_00, 0, 0, 0),
            "retail/doubt": (100_00, 0, 0, 0, 60_00, 0, 0),
            "retail/over": (100_00, 0, 120_00, 0, 0, 20_00, 0),
            "retail/foreign": (100_00, 0, 0, 0, 0, 0, 1),
            "retail/stranger": (None, 0, 60_00, 0, 0, 0, 0),
            "retail/begun": (100_00, 60_00, 0, 0, 0, 0, 0),
            "retail/refused": (100_00, 0, 0, 0, 0, 0, 0),
            "private/private": (60_00, 0, 60_00, 0, 0, 0, 0),
            "retail/a/1001": (None, 0, 1500_00, 0, 0, 0, 0),
            "retail/b/1001": (None, 0, 0, 0, 0, 0, 0),
            "retail/1001": (None, 0, 0, 0, 0, 0, 0),
            "retail/a/1002": (1500_00, 0, 1500_00, 0, 0, 0, 0),
            "retail/b/1002": (5_00, 0, 0, 0, 0, 0, 0),
        }
        wrong = {
            v.name: v.damaged for v in run_invariants(admin, invariants_sql()) if v.violations and "order_" in v.name
        }
        assert {name: ids for name, ids in wrong.items() if "budget" in name} == {}, (
            "the parts are the sums of the entries"
        )
        assert wrong["order_over_refunded"] == ("order over of retail",)
        twice = next(v for v in run_invariants(admin, invariants_sql()) if v.name == "executed_twice")
        assert len(twice.damaged) == 1 and "rf-over" in twice.damaged[0]
        admin.execute("set session_replication_role = replica")
        with pytest.raises(psycopg.errors.UniqueViolation, match="executions_refund_once"):
            admin.execute(
                "insert into refunds.executions (tenant_id, execution_id, ledger_entry_id, refund_id, amount_minor, currency,"
                " operation_id, start_id, start_event_id, claim_epoch) select tenant_id, gen_random_uuid(), 'plain', refund_id, 1, 'USD',"
                " gen_random_uuid(), start_id, start_event_id, 1 from refunds.executions where ledger_entry_id = 'mixed-paid'")  # fmt: skip


def test_rows_that_waited_are_paid_within_their_order_or_go_to_a_person(old_url: str, authority: FakeAuthority) -> None:
    """Before: the second shop's 5.00 were measured by the first one's 1500.00, and what had been started was not counted."""
    migrated(old_url).close()
    world = LedgerWorld(old_url, TENANT)
    try:
        world.admin.execute("update refunds.order_flags set closed_at = clock_timestamp()")
        Shop(world, authority.url).run()
        stand = {
            name: (status, reason)
            for name, status, reason in world.all(
                "select ledger_entry_id, status, reason_code from refunds.ledger_entries"
            )
        }
        assert {name: stand[name] for name in WAITED} == WAITED
        assert world.all(
            "select order_ref, source from refunds.order_budgets b where executed_minor + reserved_minor + in_doubt_minor > paid_minor"
        ) == [("over", "")], "what was overpaid before, and nothing else"
    finally:
        world.close()


WAITED = {
    "begun-second": ("APPROVAL_REQUIRED", Escalation.ORDER_OVERDRAWN),
    "order:b:1001": ("APPROVAL_REQUIRED", Escalation.ORDER_PAID_UNKNOWN),
    "bare-1001": ("APPROVAL_REQUIRED", Escalation.ORDER_PAID_UNKNOWN),
    "begun": ("EXECUTED", "within_policy_limit"),
    "refused-start": ("EXECUTED", "within_policy_limit"),
    "refused-second": ("APPROVAL_REQUIRED", Escalation.ORDER_OVERDRAWN),
    "order:b:1002": ("EXECUTED", "within_policy_limit"),
    "plain": ("EXECUTED", "within_policy_limit"),
}


def test_the_keys_of_our_own_programs_may_vouch_and_no_other_key(old_url: str) -> None:
    with migrated(old_url) as admin:
        found = rows(admin, "select agent_id, scopes from sentinel.agent_keys order by key_id")
    own = {"retail-refund-agent", "order-review"}
    assert found == [
        (agent, [*scopes, "worker"] if agent in own and "guard" in scopes else scopes) for agent, scopes in KEYS
    ]


def fill_by_the_program_before(admin: psycopg.Connection[Any]) -> None:
    """What a program of revision 0015 writes: two sources on purpose, parts of a budget, who filed, halts and counts of a breaker."""
    admin.execute("set session_replication_role = replica")
    put(admin, "sentinel.tenants", tenant_id=TENANT, label="shop")
    put(admin, "refunds.defaults", tenant_id=TENANT)
    for source, paid, taken in (("", 90_00, 60_00), ("a", 80_00, 10_00)):
        put(
            admin,
            "refunds.orders",
            tenant_id=TENANT,
            source=source,
            order_ref="1",
            ordered_at=YESTERDAY,
            paid_minor=paid,
            currency="USD",
        )
        put(admin, "refunds.order_budgets", tenant_id=TENANT, channel="retail", source=source, order_ref="1", currency="USD",
            paid_minor=paid, reserved_minor=taken)  # fmt: skip
        put(admin, "refunds.ledger_entries", tenant_id=TENANT, ledger_entry_id=f"order:{source}:1", refund_id=f"rf-{source}",
            amount_minor=taken, currency="USD", source=source, order_ref="1", budget_part="reserved", **STARTED)  # fmt: skip
    # Tried again after its start was surely refused: it has a start id, and takes nothing.
    put(admin, "refunds.ledger_entries", tenant_id=TENANT, ledger_entry_id="retried", refund_id="rf-retried", amount_minor=80_00,
        currency="USD", source="a", order_ref="1", last_event="retried", **STARTED)  # fmt: skip
    for event in ("allowed", "start_refused", "gave_up", "retried"):
        put(
            admin,
            "refunds.ledger_events",
            tenant_id=TENANT,
            ledger_entry_id="retried",
            from_status="x",
            event=event,
            to_status="y",
            claim_epoch=1,
        )
    review = uuid.uuid4()
    put(admin, "orders.reviews", tenant_id=TENANT, review_id=review, source="a", order_id="1", body_sha256=bytes(32), amount_minor=80_00,
        currency="USD", order_facts="{}", status="REFUND_FILED", lane="medium", resolution="refund", resolved_by="ann",
        resolution_reason="called", resolved_at=YESTERDAY, band="medium", guard_params="{}", operation_id=uuid.uuid4(),
        decision="APPROVAL_REQUIRED")  # fmt: skip
    put(admin, "orders.refunds", tenant_id=TENANT, review_id=review, attempt=1, ledger_entry_id="order:a:1", filed_by=uuid.uuid4(),
        reason="called", via="console")  # fmt: skip
    put(admin, "orders.words", tenant_id=TENANT, review_id=review, from_status="QUEUED", word="refund", operator_id=uuid.uuid4(),
        said_by="ann", reason="called", via="console")  # fmt: skip
    put(admin, "sentinel.halts", tenant_id=TENANT, halt_id=uuid.uuid4(), scope="agent", target="x", level="pause", reason="r",
        set_by="velocity breaker p/b", set_at=YESTERDAY, breaker_key="p/b|x")  # fmt: skip
    put(admin, "sentinel.velocity", tenant_id=TENANT, breaker_key="p/b|x", bucket=YESTERDAY, currency="USD", scope="agent", target="x",
        operations=3, amount_minor=9)  # fmt: skip
    put(admin, "sentinel.contradictions", tenant_id=TENANT, operation_id=uuid.uuid4(), event_id=uuid.uuid4(), report_digest="d",
        halt_id=uuid.uuid4(), once_held=True, reported_at=YESTERDAY)  # fmt: skip
    admin.execute("set session_replication_role = origin")


def written(admin: psycopg.Connection[Any]) -> dict[str, Any]:
    """All rows of the tables that such a program writes money's state into, by table."""
    kept = ("refunds.", "sentinel.velocity", "sentinel.halts", "sentinel.contradictions")
    orders = {name: rows(admin, f"table {name}") for name in ("orders.reviews", "orders.refunds", "orders.words")}
    return {name: told for name, told in dump(admin).items() if name.startswith(kept)} | orders


def test_what_the_program_before_this_one_wrote_stays_as_it_is(pg_server: RunningServer) -> None:
    with empty_database(pg_server) as url:
        at_revision(url, "0015")
        with psycopg.connect(url, autocommit=True) as admin:
            fill_by_the_program_before(admin)
            before = written(admin)
        with migrated(url) as admin:
            assert written(admin) == before
    assert len(before["refunds.order_budgets"]) == 2
