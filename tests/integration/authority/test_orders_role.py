"""What the intake's role must not do, and what nobody else may do in `orders`, tried one by one (deploy/roles.sql)."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import errors as pg

from sentinel.cli.scratch import listening
from sentinel.store.database import AUTHORITY, BOARD, CONSOLE, ORDERS, WORKER, with_role
from tests.conftest import at
from tests.support.fixtures import Fixtures, make_fixtures
from tests.support.harness import actor
from tests.support.order_fixtures import make_intake, order_body
from tests.support.role_attempts import hung_on_a_table_of_ones_own, let_through

TABLES = (
    "transitions", "reviews", "events", "deliveries", "effects", "approval_cursors", "simulated_shop", "alerts",
)  # fmt: skip
NEVER_DELETED = tuple(name for name in TABLES if name != "deliveries")
OTHERS = (AUTHORITY, WORKER, BOARD)
FIXED = {
    "reviews": ("tenant_id", "review_id", "source", "order_id", "body_sha256", "amount_minor", "currency", "account_ref", "order_facts",
                "received_at", "resolution", "resolved_by", "resolution_reason", "resolved_at"),
    "effects": ("tenant_id", "review_id", "kind", "lane", "operation_id", "created_at"),
    "alerts": ("tenant_id", "alert_id", "kind", "source", "order_id", "occasion", "summary", "details", "created_at"),
    "deliveries": ("order_id", "response_status", "response_body", "is_final", "expires_at"),
    "simulated_shop": ("status", "operation_id", "told"), "transitions": ("to_lane", "to_status"), "events": ("to_lane", "to_status"),
}  # fmt: skip
"""What the intake cannot change once it is written."""
OF_THE_AUTHORITY = ("tenants", "events", "operations", "operation_states", "usage", "approvals", "approval_votes", "halts", "agent_keys",
                    "policies", "operators", "switches", "public_proofs")  # fmt: skip
OF_THE_WORKER = ("ledger_entries", "executions", "orders", "outbox", "effects", "confirmations", "workers", "ledger_events", "blacklist",
                 "order_flags")  # fmt: skip
HIDDEN_FROM_THE_CONSOLE = {
    "reviews": ("*", "order_facts", "account_ref", "guard_params", "body_sha256"), "deliveries": ("*", "response_body"),
    "simulated_shop": ("*", "told"), "approval_cursors": ("*",),
}  # fmt: skip
OF_NOBODY = (
    "create table orders.mine (a int)", "create table public.mine (a int)", "create schema mine", "create role mine",
    "grant sentinel_owner to current_user", "set session_replication_role = replica", "copy (select 1) to program 'true'",
    "update public.schema_version set version_num = '0'",
)  # fmt: skip
ANALYST_DECISION = "orders.resolve_review(gen_random_uuid(), 'demo', 'o-medium', gen_random_uuid(), 'fulfil', '', null, null, null, 'console', gen_random_uuid(), gen_random_uuid())"
TRAIL = (
    "insert into orders.events (tenant_id, review_id, from_status, event, to_lane, to_status, epoch)"
    " select tenant_id, review_id, 'STARTED', 'fulfilled', 'low', 'FULFILLED', 1 from orders.reviews",
    "insert into orders.events default values",
    hung_on_a_table_of_ones_own("orders.write_events"),
    hung_on_a_table_of_ones_own("orders.write_first_events"),
    "drop trigger write_events on orders.reviews",
    "drop trigger write_first_events on orders.reviews",
    "create or replace function orders.write_events() returns trigger language plpgsql as 'begin return null; end'",
)
"""The trail of a review is written by its trigger and by nobody else, nor by a trigger of somebody's own."""


def of_the_intake() -> Iterator[str]:
    """What the intake's role must be refused."""
    for table in TABLES:
        yield f"truncate orders.{table}"
        yield f"alter table orders.{table} add column mine int"
    for table in NEVER_DELETED:
        yield f"delete from orders.{table}"
    for table, columns in FIXED.items():
        yield from (f"update orders.{table} set {column} = {column}" for column in columns)
    for trigger, table in (("check_review", "reviews"), ("check_new_review", "reviews"), ("append_only", "events"),
                           ("check_effect", "effects"), ("check_new_effect", "effects"), ("check_shipped", "effects"), ("never_forgotten", "reviews"), ("check_alert", "alerts")):  # fmt: skip
        yield f"alter table orders.{table} disable trigger {trigger}"
        yield f"drop trigger {trigger} on orders.{table}"
    yield "alter table orders.effects drop constraint effects_no_fulfilment_of_high"
    yield "insert into orders.transitions values ('high', 'HELD', 'fulfilled', 'high', 'FULFILLED')"
    yield "create or replace function orders.check_effect() returns trigger language plpgsql as 'begin return new; end'"
    yield from TRAIL
    yield f"select {ANALYST_DECISION}"
    yield "select orders.file_refund(r, null, '', 'console') from orders.reviews r"
    for told in ("has_live_refund", "has_undecided_refund", "refund_in_doubt"):
        yield f"select orders.{told}(tenant_id, review_id) from orders.reviews"
    for table in OF_THE_AUTHORITY:
        yield f"select * from sentinel.{table}"
        yield f"delete from sentinel.{table}"
    yield "select sentinel.record_decisions('{}', '{}', '{}', '{}', '{}')"
    yield "select sentinel.resolve_approval(gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 'approve', '', null, 'console', gen_random_uuid(), gen_random_uuid())"
    yield "select sentinel.lift_halt(gen_random_uuid(), gen_random_uuid(), '', '', gen_random_uuid())"
    for table in OF_THE_WORKER:
        yield f"select * from refunds.{table}"
        yield f"insert into refunds.{table} default values"
        yield f"delete from refunds.{table}"
    yield "update refunds.ledger_entries set status = 'EXECUTED'"
    yield "update refunds.defaults set tenant_id = gen_random_uuid()"
    yield "select * from refunds.proof_images"
    yield from OF_NOBODY


def attempts() -> Iterator[tuple[str, str]]:
    """(role, statement) of everything that must be refused."""
    for statement in of_the_intake():
        yield ORDERS, statement
    for role in OTHERS:
        for table in TABLES:
            yield role, f"select * from orders.{table}"
            yield role, f"insert into orders.{table} default values"
            yield role, f"delete from orders.{table}"
        yield role, f"select {ANALYST_DECISION}"
    for table in TABLES:
        yield CONSOLE, f"insert into orders.{table} default values"
        yield (
            CONSOLE,
            f"update orders.{table} set tenant_id = tenant_id"
            if table != "transitions"
            else "update orders.transitions set to_lane = 'low'",
        )
        yield CONSOLE, f"delete from orders.{table}"
    # An analyst's decision is the only thing of the console's that moves an order.
    yield CONSOLE, "update orders.reviews set status = 'FULFILLED'"
    yield CONSOLE, "update orders.reviews set resolution = 'fulfil', resolved_at = now()"
    yield CONSOLE, "update orders.alerts set delivered_at = now(), delivered_by = 'me'"
    yield CONSOLE, "select orders.file_refund(null, null, '', 'console')"
    for table, columns in HIDDEN_FROM_THE_CONSOLE.items():
        yield from ((CONSOLE, f"select {column} from orders.{table}") for column in columns)


@pytest.fixture(scope="module")
def reviewed(pg_server, migrated_template) -> Iterator[Fixtures]:  # type: ignore[no-untyped-def]
    """One database with an order in each lane, for all attempts: none of them may change it."""
    with psycopg.connect(pg_server.admin_url, autocommit=True) as connection:
        connection.execute(f"create database orders_role_tried template {migrated_template}".encode())
    fixtures = make_fixtures(at(pg_server.admin_url, "orders_role_tried"))
    with listening(fixtures.app) as authority_url:
        intake = make_intake(fixtures, authority_url)
        for lane in ("low", "medium", "high"):
            assert intake.deliver(order_body(f"o-{lane}", lane)).status_code in (200, 202)
        intake.close()
    yield fixtures
    fixtures.close()
    with psycopg.connect(pg_server.admin_url, autocommit=True) as connection:
        connection.execute("drop database orders_role_tried with (force)")


def test_the_intake_can_do_no_more_than_its_work_and_nobody_else_does_it(reviewed: Fixtures) -> None:
    tried = list(attempts())
    print(f"N={len(tried)}")
    found = let_through(reviewed, tried)
    assert found == [], "\n".join(found)


def test_mutant_with_one_grant_too_many_is_caught(reviewed: Fixtures) -> None:
    for grant, revoke, attempt in (
        ("grant update (amount_minor) on orders.reviews to sentinel_orders", "revoke update (amount_minor) on orders.reviews from sentinel_orders",
         (ORDERS, "update orders.reviews set amount_minor = amount_minor")),
        ("grant usage on schema orders to sentinel_worker; grant select on orders.reviews to sentinel_worker",
         "revoke select on orders.reviews from sentinel_worker; revoke usage on schema orders from sentinel_worker",
         (WORKER, "select * from orders.reviews")),
        ("grant execute on function orders.resolve_review to sentinel_orders", "revoke execute on function orders.resolve_review from sentinel_orders",
         (ORDERS, f"select {ANALYST_DECISION}")),
        ("grant insert on orders.events to sentinel_orders", "revoke insert on orders.events from sentinel_orders", (ORDERS, TRAIL[0])),
        ("grant execute on function orders.write_events to sentinel_orders",
         "revoke execute on function orders.write_events from sentinel_orders", (ORDERS, TRAIL[2])),
    ):  # fmt: skip
        assert attempt in list(attempts())
        reviewed.admin.execute(grant.encode())
        try:
            assert let_through(reviewed, [attempt]) != []
        finally:
            reviewed.admin.execute(revoke.encode())


RUN = """select p.proname from pg_proc p join pg_namespace n on n.oid = p.pronamespace
  where n.nspname = 'orders' and has_function_privilege(%s, p.oid, 'execute')"""


def test_each_program_runs_its_own_functions_and_no_others(reviewed: Fixtures) -> None:
    def may_run(role: str) -> set[str]:
        return {name for (name,) in reviewed.admin.execute(RUN, [role])}

    for role in OTHERS:
        assert may_run(role) == set()
    assert may_run(CONSOLE) == {
        "resolve_review",
        "refund_name",
        "has_live_refund",
        "has_undecided_refund",
        "refund_in_doubt",
    }
    assert may_run("sentinel_owner") - may_run(ORDERS) == {
        "resolve_review", "file_refund", "write_events", "write_first_events", "resolve_returned", "refund_refusal", "record_analyst_decision", "request_hold",
        "abandon_fulfilment", "refund_is_live", "placed_at", "question_is_refused", "hold_unasked", "has_live_refund", "retry_refund",
        "refund_is_undecided", "has_undecided_refund", "refund_key_is_taken", "refund_operation", "refund_in_doubt",
        "try_that_holds_refund",
    }  # fmt: skip


INVENTED = (
    ("update orders.reviews set guard_params = '{}' where order_id = 'o-low'", "reviews_question_fixed"),
    ("update orders.reviews set epoch = 0 where order_id = 'o-low'", "reviews_epoch_grows"),
    ("update orders.reviews set lane = 'low', last_event = 'allowed' where order_id = 'o-medium'", "reviews_transition"),
    ("update orders.reviews set status = 'REFUND_FILED', last_event = 'refund_filed', lane = 'high' where order_id = 'o-high'", None),
    ("update orders.effects set state = 'intended' where state = 'done'", "effects_transition"),
)  # fmt: skip


def test_what_the_grants_let_through_the_constraints_refuse(reviewed: Fixtures) -> None:
    """A column that the intake must write can still not be written to anything: the trail, the question, the lane."""
    with psycopg.connect(with_role(reviewed.url, ORDERS)) as connection:
        for statement, constraint in INVENTED:
            with pytest.raises(pg.IntegrityError) as refused:
                connection.execute(statement.encode())
            assert constraint in (None, refused.value.diag.constraint_name), statement
            connection.rollback()


def test_only_a_persons_decision_moves_an_order_for_the_console(reviewed: Fixtures) -> None:
    """The console's one function, given nobody's id, moves nothing."""
    person = actor(reviewed, "viewer")
    statement = ANALYST_DECISION.replace("gen_random_uuid(), 'demo'", "%s, 'demo'").replace(
        "'o-medium', gen_random_uuid()", "'o-medium', %s"
    )
    with psycopg.connect(with_role(reviewed.url, CONSOLE)) as connection:
        for operator in ("00000000-0000-0000-0000-000000000000", person.operator_id):
            found = connection.execute(f"select * from {statement}".encode(), [reviewed.tenant_id, operator]).fetchone()
            assert found is not None
            assert found[0] not in ("fulfil", "refund", "hold", "recorded"), found
            assert connection.execute(
                "select status, resolution from orders.reviews where order_id = 'o-medium'"
            ).fetchone() == ("QUEUED", None)
            connection.rollback()
