"""What each program's role must not do, tried one by one in the database (deploy/roles.sql)."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import errors as pg

from sentinel.store.database import AUTHORITY, BOARD, CONSOLE, ORDERS, WORKER, with_role
from tests.conftest import at
from tests.harness import decide
from tests.world import World, guard_body, make_world

EVERYBODY = (AUTHORITY, WORKER, CONSOLE, BOARD)
APPEND_ONLY = ("events", "operations", "feed", "approval_votes", "check_reports", "policies")
SECRET_TABLES = ("operator_sessions", "operator_tokens", "sign_in_attempts", "second_factors")


@pytest.fixture(scope="module")
def full(pg_server, migrated_template) -> Iterator[World]:  # type: ignore[no-untyped-def]
    """One database with a little of everything, for all attempts: none of them may change it."""
    with psycopg.connect(pg_server.admin_url, autocommit=True) as connection:
        connection.execute(f"create database roles_tried template {migrated_template} strategy file_copy".encode())
    world = make_world(at(pg_server.admin_url, "roles_tried"))
    done = guard_body(value=40)
    world.start(done, world.guard(done))
    world.report(done)
    world.guard(guard_body(value=41))
    decide(world, world.guard(guard_body(value=200))["approval_id"])
    world.guard(guard_body(value=300))
    world.keep_house()
    world.admin.execute(
        "insert into refunds.ledger_entries (tenant_id, ledger_entry_id, refund_id, amount_minor, currency, action, agent_id,"
        " requested_at, risk) select tenant_id, 'lge_r', 'rf_r', 100, 'USD', 'refund.create', 'a', now(), '{}' from sentinel.tenants limit 1")  # fmt: skip
    yield world
    world.close()
    with psycopg.connect(pg_server.admin_url, autocommit=True) as connection:
        connection.execute("drop database roles_tried with (force)")


def attempts() -> Iterator[tuple[str, str]]:
    """(role, statement) of everything that must be refused."""
    for role in EVERYBODY:
        for table in APPEND_ONLY:
            yield (
                role,
                f"update sentinel.{table} set tenant_id = tenant_id"
                if table != "policies"
                else "update sentinel.policies set canonical = ''",
            )
            yield role, f"delete from sentinel.{table}"
            yield role, f"truncate sentinel.{table}"
            yield role, f"alter table sentinel.{table} disable trigger append_only"
        for table in ("executions", "ledger_events"):
            yield role, f"update refunds.{table} set tenant_id = tenant_id"
            yield role, f"delete from refunds.{table}"
            yield role, f"truncate refunds.{table}"
        yield role, "delete from sentinel.usage"
        yield role, "delete from sentinel.reservations"
        yield role, "delete from sentinel.operation_states"
        yield role, "delete from sentinel.halts"
        yield role, "delete from sentinel.approvals"
        yield role, "delete from refunds.ledger_entries"
        yield role, "create table sentinel.mine (a int)"
        yield role, "create table refunds.mine (a int)"
        yield role, "create table public.mine (a int)"
        yield role, "create schema mine"
        yield role, "create function sentinel.mine() returns int language sql as 'select 1'"
        yield (
            role,
            "create or replace function sentinel.halt_over(tenant uuid, agent text, act text, scene text) returns uuid language sql as 'select null::uuid'",
        )
        yield role, "alter function sentinel.halt_lock() owner to current_user"
        yield role, "drop trigger append_only on sentinel.events"
        yield role, "alter table sentinel.usage drop constraint usage_within_cap"
        yield role, "create role mine"
        yield role, "alter role sentinel_owner login"
        yield role, "grant sentinel_owner to current_user"
        yield role, "set session_replication_role = replica"
        yield role, "copy (select 1) to program 'true'"
        yield role, "alter database roles_tried set synchronous_commit = off"
        yield role, "update public.schema_version set version_num = '0'"
    for role in (AUTHORITY, WORKER, BOARD):
        for table in SECRET_TABLES:
            yield role, f"select * from sentinel.{table}"
        yield role, "select password_hash from sentinel.operators"
        yield role, "select * from sentinel.operators"
        yield role, "update sentinel.operators set role = 'admin'"
        yield role, "insert into sentinel.halts select * from sentinel.halts"
        yield role, "update sentinel.halts set lifted_by = 'me', lifted_at = now()"
        yield role, "insert into sentinel.approval_votes select * from sentinel.approval_votes"
        yield role, "update sentinel.approvals set decided_by = 'me'"
        yield role, "insert into sentinel.agent_keys select * from sentinel.agent_keys"
        yield role, "update sentinel.agent_keys set revoked_at = null"
        for function in (
            "set_halt(gen_random_uuid(), gen_random_uuid(), 'tenant', '', 'kill', '', '', gen_random_uuid())",
            "lift_halt(gen_random_uuid(), gen_random_uuid(), '', '', gen_random_uuid())",
            "resolve_in_doubt(gen_random_uuid(), gen_random_uuid(), true, '', '', gen_random_uuid())",
            "resolve_approval(gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 'approve', '', null, 'console', gen_random_uuid(), gen_random_uuid())",
            "resolve_approval(gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 'handled', '', null, 'console', gen_random_uuid(), gen_random_uuid(), 'x')",
        ):
            yield role, f"select sentinel.{function}"
    for column in ("tenant_id", "operation_id", "policy_id", "policy_digest", "decision_event_id", "once_key"):
        yield AUTHORITY, f"update sentinel.operation_states set {column} = {column}"
    for column in (
        "digest",
        "reasons",
        "required_people",
        "required_role",
        "offers_approve",
        "handled_reference",
        "expires_at",
        "requester_operator_id",
        "decided_by",
        "reason",
        "policy_digest",
    ):
        yield AUTHORITY, f"update sentinel.approvals set {column} = {column}"
    yield AUTHORITY, "insert into sentinel.tenants values (gen_random_uuid(), 'mine')"
    yield AUTHORITY, "update sentinel.reservations set amount_minor = 1"
    yield AUTHORITY, "update sentinel.usage set window_seconds = 0"
    for table in ("ledger_entries", "executions", "orders", "outbox", "workers"):
        yield AUTHORITY, f"select * from refunds.{table}"
        yield BOARD, f"select * from refunds.{table}"
    yield AUTHORITY, "insert into refunds.executions select * from refunds.executions"
    for table in (
        "tenants",
        "events",
        "operations",
        "operation_states",
        "usage",
        "approvals",
        "halts",
        "agent_keys",
        "policies",
        "public_proofs",
    ):
        yield WORKER, f"select * from sentinel.{table}"
    yield WORKER, "select sentinel.record_decisions('{}')"
    yield WORKER, "select sentinel.halt_lock()"
    for column in (
        "amount_minor",
        "currency",
        "refund_id",
        "tenant_id",
        "agent_id",
        "action",
        "ledger_entry_id",
        "risk",
    ):
        yield WORKER, f"update refunds.ledger_entries set {column} = {column}"
    yield WORKER, "insert into refunds.transitions values ('NEW', 'executed', 'EXECUTED')"
    yield WORKER, "update refunds.transitions set to_status = 'EXECUTED'"
    for table in (
        "operations",
        "operation_states",
        "usage",
        "reservations",
        "feed",
        "feed_heads",
        "approvals",
        "policies",
        "check_reports",
    ):
        yield CONSOLE, f"insert into sentinel.{table} select * from sentinel.{table}"
    for column in (
        "permit_id",
        "permit_expires_at",
        "start_id",
        "started_at",
        "start_event_id",
        "approval_id",
        "policy_digest",
        "once_key",
        "report_digest",
    ):
        yield CONSOLE, f"update sentinel.operation_states set {column} = {column}"
    for column in (
        "digest",
        "reasons",
        "required_people",
        "required_role",
        "offers_approve",
        "expires_at",
        "requester_operator_id",
        "policy_digest",
    ):
        yield CONSOLE, f"update sentinel.approvals set {column} = {column}"
    yield CONSOLE, "insert into refunds.executions select * from refunds.executions"
    yield CONSOLE, "insert into refunds.ledger_entries (ledger_entry_id) values ('mine')"
    yield CONSOLE, "update refunds.ledger_entries set status = 'EXECUTED'"
    yield CONSOLE, "select permit_token from refunds.ledger_entries"
    yield CONSOLE, "select * from refunds.ledger_entries"
    yield CONSOLE, "select sentinel.record_decisions('{}')"
    yield CONSOLE, "select sentinel.keep_house(1, '{}')"
    yield CONSOLE, "update sentinel.approval_votes set verdict = 'approve'"
    for table in (
        "tenants",
        "operators",
        "operations",
        "operation_states",
        "events",
        "feed",
        "usage",
        "approvals",
        "halts",
        "agent_keys",
        "policies",
    ):
        yield BOARD, f"select * from sentinel.{table}"
    yield BOARD, "insert into sentinel.public_tenants values (gen_random_uuid(), 'mine')"
    yield BOARD, "update sentinel.public_tenants set label = 'mine'"
    yield BOARD, "delete from sentinel.public_tenants"
    yield BOARD, "select sentinel.record_decisions('{}')"


REFUSALS = (pg.InsufficientPrivilege, pg.InvalidGrantOperation)


def let_through(world: World, tried: list[tuple[str, str]]) -> list[str]:
    """Which statements were not refused for lack of rights; each runs in a transaction that is undone."""
    found = []
    for role in dict.fromkeys(who for who, _ in tried):
        with psycopg.connect(with_role(world.url, role)) as connection:
            for statement in [text for who, text in tried if who == role]:
                try:
                    connection.execute(statement.encode())
                    found.append(f"{role}: {statement}")
                except REFUSALS:
                    pass
                except psycopg.Error as error:
                    found.append(f"{role}: {statement}: {type(error).__name__}: {error}")
                connection.rollback()
    return found


def test_no_program_can_do_more_than_its_work(full: World) -> None:
    tried = list(attempts())
    print(f"N={len(tried)}")
    assert let_through(full, tried) == []


APPROVE = "update sentinel.approvals set status = 'approved', decided_at = now() where status = 'pending'"


@pytest.mark.parametrize("role", [AUTHORITY, CONSOLE])
def test_no_program_approves_without_the_voices_of_people(full: World, role: str) -> None:
    with full.as_role(role) as connection:
        with pytest.raises(pg.CheckViolation) as refused:
            connection.execute(APPROVE)
        assert refused.value.diag.constraint_name == "approval_has_voices"
        with pytest.raises(pg.CheckViolation) as refused:
            connection.execute("update sentinel.approvals set status = 'expired' where status = 'approved'")
        assert refused.value.diag.constraint_name == "approval_decided_once"


def test_the_authority_enters_no_approval_that_is_decided_already(full: World) -> None:
    columns = [
        name
        for (name,) in full.admin.execute(
            "select attname from pg_attribute where attrelid = 'sentinel.approvals'::regclass and attnum > 0 order by attnum"
        )
    ]
    values = ", ".join({"approval_id": "gen_random_uuid()"}.get(name, name) for name in columns)
    with full.as_role(AUTHORITY) as connection, pytest.raises(pg.CheckViolation):
        connection.execute(
            f"insert into sentinel.approvals ({', '.join(columns)}) select {values} from sentinel.approvals where status = 'approved'".encode()
        )


def test_twin_without_the_trigger_lets_the_authority_approve(database_url: str) -> None:
    world = make_world(database_url)
    try:
        world.guard(guard_body(value=200))
        world.admin.execute("drop trigger check_approval on sentinel.approvals")
        with world.as_role(AUTHORITY) as connection:
            assert connection.execute(APPROVE).rowcount == 1
        assert "approval_without_quorum" in world.broken_invariants()
    finally:
        world.close()


def test_twin_with_one_grant_too_many_is_caught(full: World) -> None:
    full.admin.execute("grant update on sentinel.halts to sentinel_authority")
    try:
        assert let_through(full, [(AUTHORITY, "update sentinel.halts set lifted_by = 'me', lifted_at = now()")]) != []
    finally:
        full.admin.execute("revoke update on sentinel.halts from sentinel_authority")


@pytest.mark.parametrize("role", [*EVERYBODY, ORDERS])
def test_no_program_becomes_the_owner_or_another_program(full: World, role: str) -> None:
    """As a login that was granted exactly this role, which is how a deployment connects."""
    login = f"login_of_{role}"
    full.admin.execute(f"create role {login} login in role {role}".encode())
    try:
        with psycopg.connect(with_role(full.url.replace("sentinel_admin", login), role), autocommit=True) as connection:
            assert connection.execute("select current_user").fetchone() == (role,)
            for other in {"sentinel_owner", "sentinel_admin", *EVERYBODY, ORDERS} - {role}:
                with pytest.raises(pg.InsufficientPrivilege):
                    connection.execute(f"set role {other}".encode())
    finally:
        full.admin.execute(f"drop role {login}".encode())


def test_the_board_reads_its_three_views_and_nothing_private_is_in_them(full: World) -> None:
    with full.as_role(BOARD) as connection:
        for view in ("public_proofs", "public_feed", "public_tenants"):
            rows = connection.execute(f"select * from sentinel.{view}".encode())
            assert {column.name for column in rows.description or ()} <= {
                "tenant_id", "event_id", "agent_id", "body", "hash", "occurred_at", "position", "label"}  # fmt: skip
        kinds = connection.execute(
            "select count(*) from sentinel.public_proofs where body not like '%\"proof_id\"%'"
        ).fetchone()
        assert kinds == (0,)


def test_nothing_of_ours_is_open_to_the_public_role(full: World) -> None:
    open_to_all = full.admin.execute(
        "select n.nspname || '.' || p.proname from pg_proc p join pg_namespace n on n.oid = p.pronamespace"
        " where n.nspname in ('sentinel', 'refunds', 'orders') and has_function_privilege('public', p.oid, 'execute')"
        " union all select c.oid::regclass::text from pg_class c join pg_namespace n on n.oid = c.relnamespace"
        " where n.nspname in ('sentinel', 'refunds', 'orders') and c.relkind in ('r', 'v') and has_table_privilege('public', c.oid, 'select')"
        " union all select nspname from pg_namespace where nspname in ('sentinel', 'refunds', 'orders') and has_schema_privilege('public', oid, 'usage')"
    ).fetchall()  # fmt: skip
    assert open_to_all == []


def test_everything_of_ours_belongs_to_the_owner_that_nobody_logs_in_as(full: World) -> None:
    owners = full.admin.execute(
        "select distinct r.rolname, r.rolcanlogin, r.rolsuper from pg_class c join pg_namespace n on n.oid = c.relnamespace"
        " join pg_roles r on r.oid = c.relowner where n.nspname in ('sentinel', 'refunds', 'orders')").fetchall()  # fmt: skip
    assert owners == [("sentinel_owner", False, False)]


OWNERS_RIGHTS = {"open_confirmations", "latest_confirmations", "answer_confirmation", "resolve_review"}
"""The worker opens a card that it cannot answer, the console answers one that it cannot write, and an analyst's word moves a
review that the console cannot touch: no grant by column says that."""


def test_only_the_confirm_cards_functions_run_with_their_owners_rights_and_none_looks_elsewhere(full: World) -> None:
    definers = dict(full.admin.execute(
        "select p.proname, p.proconfig from pg_proc p join pg_namespace n on n.oid = p.pronamespace"
        " where n.nspname in ('sentinel', 'refunds', 'orders') and p.prosecdef").fetchall())  # fmt: skip
    assert set(definers) == OWNERS_RIGHTS
    assert all(config == ["search_path=pg_catalog, pg_temp"] for config in definers.values())
