"""What each program's role must be refused, as data (deploy/roles.sql), and trying it; order review's is with its own test."""

from __future__ import annotations

from collections.abc import Iterable

import psycopg
from psycopg import errors as pg

from sentinel.store.database import AUTHORITY, BOARD, CONSOLE, PUBLIC, WORKER, with_role
from tests.support.fixtures import Fixtures

GLOBAL_HALT_OWNER = (AUTHORITY, WORKER, CONSOLE, PUBLIC, BOARD)
NO_OPERATORS = (AUTHORITY, WORKER, PUBLIC, BOARD)
"""Everybody but the console, which is where people decide."""
REFUSALS = (pg.InsufficientPrivilege, pg.InvalidGrantOperation)


def each(statement: str, names: str) -> tuple[str, ...]:
    """The statement for each of the names, which stand where its `{0}` is."""
    return tuple(statement.format(name) for name in names.split())


def hung_on_a_table_of_ones_own(function: str) -> str:
    """A trigger of one's own that would run a trail's function on made-up rows."""
    return (
        "create temp table mine (a int); create trigger mine after update on mine referencing old table as moved_from"
        f" new table as moved_to for each statement execute function {function}()"
    )


APPEND_ONLY = "event_rows operation_rows feed approval_votes check_reports policies decision_terms window_parts"
HAPPENED = "executions ledger_events"
HISTORY = (
    *each(
        "update sentinel.{0} set tenant_id = tenant_id",
        APPEND_ONLY.removesuffix(" policies decision_terms window_parts"),
    ),
    "update sentinel.policies set canonical = ''",
    "update sentinel.decision_terms set pack_template = ''",
    "update sentinel.window_parts set buckets = '{}'",
    *each("delete from sentinel.{0}", APPEND_ONLY),
    *each("truncate sentinel.{0}", APPEND_ONLY),
    *each("alter table sentinel.{0} disable trigger append_only", APPEND_ONLY),
    *each("update refunds.{0} set tenant_id = tenant_id", HAPPENED),
    *each("delete from refunds.{0}", HAPPENED),
    *each("truncate refunds.{0}", HAPPENED),
    *each(
        "delete from sentinel.{0}",
        "budgets usage_parts operation_states halts approvals public_ids public_id_marks",
    ),
    "update sentinel.public_ids set value = ''",
    "update sentinel.public_id_secret set secret = repeat('x', 64)",
    "delete from refunds.ledger_entries",
)
"""Nothing that happened is changed or taken away."""

TRAILS = (
    "insert into refunds.ledger_events (tenant_id, ledger_entry_id, from_status, event, to_status, claim_epoch)"
    " values (gen_random_uuid(), 'lge_r', 'NEW', 'executed', 'EXECUTED', 1)",
    "insert into refunds.ledger_events default values",
    hung_on_a_table_of_ones_own("refunds.write_ledger_events"),
)
"""A trail is written by its trigger and by nobody else, nor by a trigger of somebody's own."""

OBJECTS = (
    *each("create table {0}.mine (a int)", "sentinel refunds public"),
    "create schema mine", "create function sentinel.mine() returns int language sql as 'select 1'",
    "create or replace function sentinel.halt_over(tenant uuid, agent text, act text, scene text) returns uuid language sql as 'select null::uuid'",
    "create or replace function refunds.write_ledger_events() returns trigger language plpgsql as 'begin return null; end'",
    "alter function sentinel.halt_lock() owner to current_user", "drop trigger append_only on sentinel.event_rows",
    "drop trigger write_ledger_events on refunds.ledger_entries", "alter table sentinel.budgets drop constraint usage_within_cap",
    "create role mine", "alter role sentinel_owner login", "grant sentinel_owner to current_user",
    "set session_replication_role = replica", "copy (select 1) to program 'true'",
    "alter database roles_tried set synchronous_commit = off", "update public.schema_version set version_num = '0'",
)  # fmt: skip
"""The schema and the server belong to nobody who runs."""

SOMEBODY = "gen_random_uuid(), gen_random_uuid()"
KEY = "tenant_id key_id principal_id key_hash hint label agent_id scopes owner_operator_id created_at"
PEOPLE = (
    *each("select * from sentinel.{0}", "operator_sessions operator_tokens sign_in_attempts second_factors known_devices operators"),
    *each("select * from sentinel.{0}", "public_ids public_id_marks"),
    "select password_hash from sentinel.operators", "update sentinel.operators set role = 'admin'",
    *each("insert into sentinel.{0} select * from sentinel.{0}", "halts approval_votes agent_keys"),
    "update sentinel.halts set lifted_by = 'me', lifted_at = now()", "update sentinel.approvals set decided_by = 'me'",
    *each("update sentinel.agent_keys set {0} = {0}", f"{KEY} expires_at revoked_at"), "insert into sentinel.known_devices values ('', '')",
    f"select sentinel.set_halt({SOMEBODY}, 'tenant', '', 'kill', '', '', gen_random_uuid())",
    f"select sentinel.lift_halt({SOMEBODY}, '', '', gen_random_uuid())",
    f"select sentinel.resolve_in_doubt({SOMEBODY}, true, '', '', gen_random_uuid())",
    f"select sentinel.resolve_approval({SOMEBODY}, gen_random_uuid(), 'approve', '', null, 'console', {SOMEBODY})",
    f"select sentinel.resolve_approval({SOMEBODY}, gen_random_uuid(), 'handled', '', null, 'console', {SOMEBODY}, 'x')",
)  # fmt: skip
"""What people do, and their secrets, are the console's."""

QUESTION = (
    "digest reasons required_people required_role offers_approve expires_at requester_operator_id policy_digest follows"
)
"""The columns of an approval that say what is asked: nobody changes a question."""

OF_ONE: dict[str, tuple[str, ...]] = {
    AUTHORITY: (
        *each("update sentinel.operation_states set {0} = {0}",
              "tenant_id operation_id terms_id decision_event_id once_key tightened"),
        *each("update sentinel.approvals set {0} = {0}", f"{QUESTION} handled_reference decided_by reason"),
        "insert into sentinel.tenants values (gen_random_uuid(), 'mine')",
        "update sentinel.budgets set subject = ''",
        *each("select * from refunds.{0}", "ledger_entries executions orders outbox workers"),
        "insert into refunds.executions select * from refunds.executions",
    ),
    WORKER: (
        *each("select * from sentinel.{0}", "tenants events operations operation_states usage approvals halts agent_keys"
              " policies public_proofs"),
        "select sentinel.record_decisions('{}', '{}', '{}', '{}', '{}')", "select sentinel.halt_lock()",
        *each("update refunds.ledger_entries set {0} = {0}",
              "amount_minor currency refund_id tenant_id agent_id action ledger_entry_id risk"),
        "insert into refunds.transitions values ('NEW', 'executed', 'EXECUTED')",
        "update refunds.transitions set to_status = 'EXECUTED'",
    ),
    CONSOLE: (
        *each("insert into sentinel.{0} select * from sentinel.{0}",
              "operation_rows budgets usage_parts feed feed_heads approvals policies check_reports"),
        "insert into sentinel.operation_states default values",
        *each("update sentinel.operation_states set {0} = {0}", "tightened permit_id permit_expires_at start_id started_at"
              " start_event_id approval_id terms_id once_key report_digest reserved_minor limit_keys limit_owner limit_buckets parts_id limit_overrides"),
        *each("update sentinel.approvals set {0} = {0}", QUESTION),
        "insert into refunds.executions select * from refunds.executions",
        "insert into refunds.ledger_entries (ledger_entry_id) values ('mine')",
        "update refunds.ledger_entries set status = 'EXECUTED'", "select permit_token from refunds.ledger_entries",
        "select * from refunds.ledger_entries", "select sentinel.record_decisions('{}', '{}', '{}', '{}', '{}')",
        "select sentinel.run_housekeeping(1, '{}')", "update sentinel.approval_votes set verdict = 'approve'",
        *each("update sentinel.agent_keys set {0} = {0}", f"{KEY} last_used_at"), "delete from sentinel.agent_keys",
        "update sentinel.known_devices set account_hash = account_hash",
    ),
    PUBLIC: (
        *each("select * from refunds.{0}", "ledger_entries executions orders outbox workers confirmations"),
        *each("select * from sentinel.{0}", "tenants operators operations operation_states events feed usage approvals halts"
              " agent_keys policies public_ids public_feed"),
        "select contact from refunds.confirmations", "update refunds.confirmations set status = 'confirmed'",
        "insert into refunds.ledger_entries (ledger_entry_id) values ('mine')",
        "select sentinel.record_decisions('{}', '{}', '{}', '{}', '{}')",
        "update sentinel.approvals set status = 'approved'", "update sentinel.halts set lifted_at = now()",
    ),
    BOARD: (
        *each("select * from refunds.{0}", "ledger_entries executions orders outbox workers"),
        *each("select * from sentinel.{0}", "tenants operators operations operation_states events feed usage approvals halts"
              " agent_keys policies"),
        "insert into sentinel.public_tenants values (gen_random_uuid(), 'mine')",
        "update sentinel.public_tenants set label = 'mine'", "delete from sentinel.public_tenants",
        "select sentinel.record_decisions('{}', '{}', '{}', '{}', '{}')",
    ),
}  # fmt: skip
"""What is refused to one role besides."""


def attempts() -> list[tuple[str, str]]:
    """(role, statement) of everything that must be refused, each once."""
    tables = (
        *((role, (*HISTORY, *TRAILS, *OBJECTS)) for role in GLOBAL_HALT_OWNER),
        *((role, PEOPLE) for role in NO_OPERATORS),
        *((role, ("select * from sentinel.public_id_secret",)) for role in NO_OPERATORS if role != PUBLIC),
        *OF_ONE.items(),
    )
    return list(dict.fromkeys((role, statement) for role, statements in tables for statement in statements))


def let_through(fixtures: Fixtures, tried: Iterable[tuple[str, str]]) -> list[str]:
    """Which statements were not refused for lack of rights; each runs in a transaction that is undone."""
    by_role: dict[str, list[str]] = {}
    for role, statement in tried:
        by_role.setdefault(role, []).append(statement)
    found = []
    for role, statements in by_role.items():
        with psycopg.connect(with_role(fixtures.url, role)) as connection:
            found += [f"{role}: {said}" for one in statements if (said := _said(connection, one))]
    return found


def _said(connection: psycopg.Connection, statement: str) -> str:
    """The statement and how it got through; "" where it was refused."""
    try:
        connection.execute(statement.encode())
        return statement
    except REFUSALS:
        return ""
    except psycopg.Error as error:
        return f"{statement}: {type(error).__name__}: {error}"
    finally:
        connection.rollback()
