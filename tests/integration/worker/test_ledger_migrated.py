"""A ledger of an older program is upgraded: every row that it wrote stays as it is."""

from __future__ import annotations

import json
import uuid
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from sentinel.store.embedded import RunningServer
from sentinel.store.migrate import BASELINE, HEAD, migrate
from tests.support.harness import dump
from tests.support.ledger_fixtures import LedgerFixtures
from tests.support.old_databases import empty_database, run_migrations
from worker.refunds.rows import ResolvedDoubt

TENANT = uuid.UUID(int=7)
YESTERDAY = datetime.now(UTC) - timedelta(days=1)
STARTED = {"operation_id": uuid.UUID(int=1), "decision_event_id": uuid.UUID(int=2), "start_id": uuid.UUID(int=3)}


def put(admin: psycopg.Connection[Any], table: str, **fields: Any) -> None:
    """One row as that program left it."""
    marks = ", ".join(["%s"] * len(fields))
    admin.execute(f"insert into {table} ({', '.join(fields)}) values ({marks})".encode(), list(fields.values()))


def rows(admin: psycopg.Connection[Any], query: str) -> list[tuple[Any, ...]]:
    return admin.execute(query.encode()).fetchall()


def fill(admin: psycopg.Connection[Any]) -> None:
    """What a program of the baseline writes: two sources on purpose, parts of a budget, who filed, halts and counts of a breaker."""
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
    orders = {name: rows(admin, f"table {name}") for name in ("orders.reviews", "orders.refunds")}
    # Its names are other ones by now; its rows are not.
    (decisions,) = admin.execute(
        "select coalesce(to_regclass('orders.analyst_decisions'), to_regclass('orders.words'))::text"
    ).fetchone() or ("",)
    orders["decisions"] = rows(
        admin,
        f"select * from {decisions} as d (tenant_id, review_id, id, was, decision, operator_id, by, reason, via, at)",
    )
    return {name: told for name, told in dump(admin).items() if name.startswith(kept)} | orders


def test_what_a_program_of_the_baseline_wrote_stays_as_it_is(pg_server: RunningServer) -> None:
    with empty_database(pg_server) as url:
        run_migrations(url, BASELINE)
        with psycopg.connect(url, autocommit=True) as admin:
            fill(admin)
            before = written(admin)
            assert migrate(url) == (BASELINE, HEAD)
            after = written(admin)
    assert {
        name: [_without_null(row) for row in found] for name, found in after.items() if found or name in before
    } == {name: [_without_null(row) for row in found] for name, found in before.items()}, (
        "columns and tables that came later are empty"
    )
    assert len(before["refunds.order_budgets"]) == 2


def _without_null(row: Any) -> Any:
    """A row's fields that have a value."""
    found = json.loads(row) if isinstance(row, str) else row
    return {name: value for name, value in found.items() if value is not None} if isinstance(found, dict) else found


def test_an_effect_at_stripe_that_is_on_record_is_given_the_payment_of_its_order(pg_server: RunningServer) -> None:
    """It may have been asked of that one: what the order names later must not become its payment."""
    with empty_database(pg_server) as url:
        run_migrations(url, "0034")
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute("set session_replication_role = replica")
            put(admin, "sentinel.tenants", tenant_id=TENANT, label="shop")
            put(admin, "refunds.orders", tenant_id=TENANT, order_ref="1", ordered_at=YESTERDAY, paid_minor=1, currency="USD",
                payment_ref="pi_1")  # fmt: skip
            for name, system in (("paid", "stripe"), ("ticketed", "ticket")):
                put(admin, "refunds.ledger_entries", tenant_id=TENANT, ledger_entry_id=name, refund_id=name, amount_minor=1,
                    currency="USD", order_ref="1")  # fmt: skip
                put(admin, "refunds.effects", tenant_id=TENANT, ledger_entry_id=name, effect_number=1, system=system,
                    operation_reference=uuid.uuid4(), reference=uuid.uuid4(), must_total=1, claim_epoch=1)  # fmt: skip
            admin.execute("set session_replication_role = origin")
            assert migrate(url) == ("0034", HEAD)
            found = rows(admin, "select ledger_entry_id, payment_ref from refunds.effects order by 1")
    assert found == [("paid", "pi_1"), ("ticketed", None)]


def ended(admin: psycopg.Connection[Any], name: str, *, events: tuple[str, ...] = (), **over: Any) -> None:
    """A row in ERROR whose start is on record, as a program of 0035 left it; `events` are those of its trail."""
    fields = {
        "refund_id": name, "amount_minor": 1, "currency": "USD", "status": "ERROR", "last_event": "gave_up", "last_error": "x",
        "guard_request": "{}", "act_until": YESTERDAY, **STARTED, **over,
    }  # fmt: skip
    put(admin, "refunds.ledger_entries", tenant_id=TENANT, ledger_entry_id=name, **fields)
    for event in events:
        put(admin, "refunds.ledger_events", tenant_id=TENANT, ledger_entry_id=name, from_status="x", event=event, to_status="y",
            claim_epoch=1)  # fmt: skip


def test_what_ended_before_without_an_order_is_asked_about_and_says_how_its_doubt_ended(
    pg_server: RunningServer,
) -> None:
    with empty_database(pg_server) as url:
        run_migrations(url, "0035")
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute("set session_replication_role = replica")
            put(admin, "sentinel.tenants", tenant_id=TENANT, label="shop")
            ended(
                admin, "refused", events=("allowed",), last_event="settlement_refused", reason_code="settlement_refused"
            )
            ended(admin, "gave-up")
            ended(admin, "not-begun", start_id=None)
            ended(admin, "never-sent", act_until=None)
            ended(admin, "start-refused", events=("allowed", "start_refused"))
            ended(admin, "not-executed", last_event="not_executed", reason_code="not_executed")
            ended(admin, "called-not-executed", reason_code="not_executed")
            admin.execute("set session_replication_role = origin")
            assert migrate(url) == ("0035", HEAD)
        with closing(LedgerFixtures(url, TENANT)) as fixtures:
            assert {row.ledger_entry_id for row in fixtures.ledger.in_doubt()} == {"refused", "gave-up"}
            said = {"refused": ResolvedDoubt(False, "not executed"), "gave-up": ResolvedDoubt(True, "executed")}
            assert set(fixtures.ledger.settle_in_doubt(said)) == {"refused", "gave-up"}
            assert fixtures.ledger.retry(["refused", "gave-up"], who="a", why="w") == {
                "refused": "not_executed", "gave-up": "handled"
            }  # fmt: skip


def test_what_ended_before_without_a_payment_has_given_its_order_back(pg_server: RunningServer) -> None:
    stands: dict[str, dict[str, Any]] = {
        "denied": {"status": "DENIED"}, "unpaid": {"last_event": "not_executed", "reason_code": "not_executed"},
        "handled": {"status": "DENIED", "reason_code": "handled_by_person", "budget_part": "handled"},
        "doubtful": {"budget_part": "in_doubt"}, "paid": {"status": "EXECUTED", "budget_part": "executed"},
    }  # fmt: skip
    with empty_database(pg_server) as url:
        run_migrations(url, "0035")
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute("set session_replication_role = replica")
            put(admin, "sentinel.tenants", tenant_id=TENANT, label="shop")
            for name, over in stands.items():
                ended(admin, name, channel="private", order_ref=name, **over)
                put(
                    admin,
                    "refunds.orders_taken",
                    tenant_id=TENANT,
                    channel="private",
                    order_ref=name,
                    ledger_entry_id=name,
                )
            admin.execute("set session_replication_role = origin")
            assert migrate(url) == ("0035", HEAD)
            taken = {name for (name,) in rows(admin, "select ledger_entry_id from refunds.orders_taken")}
    assert taken == {"handled", "doubtful", "paid"}
