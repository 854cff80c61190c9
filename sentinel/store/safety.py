"""Checks that a database and role are safe to serve from: at start and in readiness.

`safety_faults` checks the server and the role, `session_faults` the very connection that a program uses: a pooler in
between, or a login that may take another role, is not visible in the address.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg

from sentinel.core.errors import EngineUnavailable, SentinelError
from sentinel.store.database import (
    BOARD,
    IDLE_TIMEOUT_MS,
    LOCK_TIMEOUT_MS,
    OWNER,
    POOLER,
    STATEMENT_TIMEOUT_MS,
    Pool,
    UndeclaredPooler,
    behind_pooler,
    describe,
    first_line,
    open_connection,
    with_role,
)
from sentinel.store.migrate import SchemaNotReady, current_revision, require_head
from sentinel.store.queries import call_with_retry

SETTINGS = "select name, setting from pg_settings where name = any(%s)"
ROLE = """
select current_user, r.rolsuper, r.rolbypassrls,
  exists (select from pg_class c join pg_namespace n on n.oid = c.relnamespace
          where n.nspname in ('sentinel', 'refunds', 'orders') and c.relowner = r.oid)
from pg_roles r where r.rolname = current_user
"""
PROTECTING = {
    "sentinel.approval_votes": "append_only", "sentinel.approvals": "check_approval", "sentinel.check_reports": "append_only",
    "sentinel.contradictions": "append_only", "sentinel.dead_letters": "never_forgotten", "sentinel.decision_terms": "append_only",
    "sentinel.event_endpoints": "check_endpoint never_forgotten", "sentinel.event_rows": "append_only", "sentinel.feed": "append_only",
    "sentinel.gate_reports": "append_only", "sentinel.operation_rows": "append_only", "sentinel.policies": "append_only",
    "sentinel.switches": "check_switch", "sentinel.window_parts": "append_only",
    "refunds.confirmations": "check_confirmation stays", "refunds.effects": "check_effect never_forgotten",
    "refunds.executions": "append_only check_effects_done check_executions",
    "refunds.ledger_entries": "check_transition doubt_effects open_order_budgets set_budget_part update_order_budgets write_ledger_events",
    "refunds.ledger_events": "append_only", "refunds.orders": "update_order_paid_corrected update_order_paid_entered",
    "refunds.retries": "append_only", "refunds.settlement_findings": "append_only", "refunds.shared_steps": "append_only",
    "refunds.step_trails": "append_only", "refunds.wrong_executions": "append_only",
    "orders.alerts": "check_alert never_forgotten", "orders.analyst_decisions": "append_only",
    "orders.effects": "check_effect check_new_effect check_shipped never_forgotten", "orders.events": "append_only",
    "orders.reviews": "check_fulfilled check_new_review check_review never_forgotten write_events write_first_events",
    "orders.simulated_shop": "append_only",
}  # fmt: skip
"""All triggers of each table: each of them keeps records from being rewritten, deleted or left incomplete."""

# Names the tables whose triggers are missing or disabled, in the schemas that this program may use.
TRIGGERS = """
select coalesce(string_agg(distinct wanted.name, ', ' order by wanted.name), '')
from unnest(%(tables)s::text[], %(triggers)s::text[]) as wanted(name, trigger)
where has_schema_privilege(split_part(wanted.name, '.', 1), 'usage') and not exists (select from pg_trigger t
                  where t.tgrelid = case when has_schema_privilege(split_part(wanted.name, '.', 1), 'usage')
                                              then to_regclass(wanted.name) end and t.tgname = wanted.trigger and t.tgenabled in ('O', 'A'))
"""
_PAIRS = [(table, trigger) for table, triggers in PROTECTING.items() for trigger in triggers.split()]

REQUIRED = {
    "fsync": ("on",),
    "full_page_writes": ("on",),
    # "local" and stricter all wait for the local disk; only "off" acknowledges what a crash can lose.
    "synchronous_commit": ("on", "local", "remote_write", "remote_apply"),
    "default_transaction_isolation": ("read committed",),
    "transaction_read_only": ("off",),
}


READABLE = "select coalesce(string_agg(view, ', ' order by view), '') from unnest(%s::text[]) as view where not has_table_privilege(view, 'select')"

PUBLIC_VIEWS = ("sentinel.public_feed", "sentinel.public_proofs", "sentinel.public_tenants")


class MissingGrant(SentinelError):
    """The login may not act as a role that the program needs, or the role may not read what it needs to read."""

    code = "missing-grant"


class UnsafeDatabase(SentinelError):
    """The database is configured so that an acknowledged decision could be lost or history rewritten."""

    code = "unsafe-database"


def safety_faults(connection: psycopg.Connection) -> list[str]:
    """What is unsafe about this connection's server and role, a line each; empty when all is well."""
    found: dict[str, str] = dict(connection.execute(SETTINGS, [list(REQUIRED)]).fetchall())
    faults = [
        f"PostgreSQL runs with {name} = {found[name]}; it must be {' or '.join(wanted)}"
        for name, wanted in REQUIRED.items()
        if name in found and found[name] not in wanted
    ]
    role = connection.execute(ROLE).fetchone()
    if role is None or role[1] or role[2]:
        faults.append(
            f"the role {role[0] if role else '?'} is a superuser or bypasses row security; use the program's own role"
        )
    elif role[3]:
        faults.append(f"the role {role[0]} owns tables and could rewrite history; use the program's own role")
    missing = connection.execute(
        TRIGGERS, {"tables": [table for table, _ in _PAIRS], "triggers": [trigger for _, trigger in _PAIRS]}
    ).fetchone()
    if missing and missing[0]:
        faults.append(f"protecting triggers (append-only, approvals) are missing or disabled on {missing[0]}")
    return faults


# Whose connection this is, and what its login may become by SET ROLE.
SESSION = """
select current_user::text, session_user::text, l.rolsuper or l.rolcreaterole or l.rolbypassrls as powerful,
  exists (select from pg_roles o where o.rolname = %(owner)s and pg_has_role(session_user, o.oid, 'member')) as owns,
  l.rolconnlimit
from pg_roles l where l.rolname = session_user
"""
TIME_LIMITS = {
    "statement_timeout": STATEMENT_TIMEOUT_MS,
    "lock_timeout": LOCK_TIMEOUT_MS,
    "idle_in_transaction_session_timeout": IDLE_TIMEOUT_MS,
}
"""Milliseconds; 0 would be no limit."""


def session_faults(connection: psycopg.Connection[Any], role: str, *, connections: int) -> list[str]:
    """The faults of this very connection, a line each: its role, what its login may become, its time limits.

    `connections` is the number of connections that the program may open; 0 skips that check.
    """
    row = connection.execute(SESSION, {"owner": OWNER}).fetchone()
    if row is None:
        return ["the login of this connection is not known to the server"]
    acting, login, powerful, owns, limit = row
    faults = _limit_faults(connection)
    if acting != role:
        faults.insert(0, f"the connection acts as {acting} and not as {role}: {_how_to_act(login, role)}")
    if powerful or owns:
        what = f"may become {OWNER}" if owns and not powerful else "is an administrator's"
        faults.append(
            f"the login {login} {what}, so that the program could rewrite history: give it a login that has the role {role} and no other"
        )
    if not behind_pooler() and 0 < limit < connections:
        faults.append(
            f"the program may open {connections} connections and {login} is allowed {limit}: lower its pools, or"
            f" `alter role {login} connection limit {connections}`"
        )
    return faults


def _how_to_act(login: str, role: str) -> str:
    if behind_pooler():
        return f"with {POOLER}=transaction the login needs `alter role {login} set role = {role}`"
    return f"its start-up options did not arrive; behind a pooler set {POOLER}=transaction"


def _limit_faults(connection: psycopg.Connection[Any]) -> list[str]:
    found = dict(connection.execute(SETTINGS, [[*TIME_LIMITS, "TimeZone"]]).fetchall())
    faults = [
        f"{name} is {f'{found[name]} ms' if int(found[name]) else 'off'}; it must be {most} ms or less"
        f" (`alter role <login> set {name} = '{most}ms'`)"
        for name, most in TIME_LIMITS.items()
        if not 0 < int(found[name]) <= most
    ]
    if found["TimeZone"] not in ("UTC", "Etc/UTC", "GMT"):
        faults.append(f"TimeZone is {found['TimeZone']}; it must be UTC (`alter role <login> set timezone = 'UTC'`)")
    return faults


@dataclass(frozen=True, slots=True)
class DatabaseStatus:
    """A program's database now: its revision, whether it is writable, and configuration faults."""

    revision: str = ""
    writable: bool = False
    faults: tuple[str, ...] = ()


WRITABLE = "select not pg_is_in_recovery() and current_setting('transaction_read_only') = 'off'"


def database_status(pool: Pool, role: str, *, connections: int = 0) -> DatabaseStatus:
    """The database's status, read through a pooled connection in one transaction. Raises `EngineUnavailable`.

    `connections` as for `session_faults`. An undeclared pooler is returned as a fault and not raised.
    """

    def call(connection: psycopg.Connection[Any]) -> DatabaseStatus:
        with connection.transaction():
            revision = current_revision(connection)
            writable = connection.execute(WRITABLE).fetchone() == (True,)
            if revision is not None and writable:
                faults = (*session_faults(connection, role, connections=connections), *safety_faults(connection))
                return DatabaseStatus(revision, writable, faults)
        if not writable:
            connection.close()  # the next look is at another connection, as after `READ_ONLY`
        return DatabaseStatus(revision or "", writable)

    try:
        return call_with_retry(pool, call)
    except UndeclaredPooler as error:
        return DatabaseStatus(faults=(error.detail,))


def require_safe(connection: psycopg.Connection[Any], role: str, *, connections: int) -> None:
    """Raise `UnsafeDatabase` naming every fault."""
    faults = [*session_faults(connection, role, connections=connections), *safety_faults(connection)]
    if faults:
        raise UnsafeDatabase("; ".join(faults))


def require_ready(
    url: str, role: str, *, connections: int = 0, also: Callable[[psycopg.Connection[Any]], None] = lambda _: None
) -> None:
    """Raise unless the database is reachable, at head and safe, as a program's own role with `connections` at most; then call `also`.

    Raises as `require_schema`, and `UnsafeDatabase`. A read-only database raises `EngineUnavailable` like an
    unreachable one: after a failover, or once its disk has room, it is writable again without a restart of the program.
    """

    def look(connection: psycopg.Connection[Any]) -> None:
        if connection.execute(WRITABLE).fetchone() != (True,):
            raise EngineUnavailable(
                f"cannot use the database at {describe(url)}: it is read-only: a replica, or transaction_read_only = on"
            )
        require_safe(connection, role, connections=connections)
        also(connection)

    try:
        require_schema(url, role, look)
    except UndeclaredPooler as error:
        raise UnsafeDatabase(error.detail) from error


def require_schema(url: str, role: str, look: Callable[[psycopg.Connection[Any]], None] = lambda _: None) -> None:
    """Raise unless the database is reachable as a program's own role and at head; then call `look` in that transaction.

    Raises `InvalidAddress` for a malformed URL, `EngineUnavailable` when no server answers, `SchemaNotReady` when it
    must be migrated first, and `MissingGrant` when its login may not act as the role.
    """
    try:
        with open_connection(with_role(url, role)) as connection, connection.transaction():
            require_head(connection)
            look(connection)
    except psycopg.OperationalError as error:
        reason, where = first_line(error), f"cannot use the database at {describe(url)}"
        if f'permission denied to set role "{role}"' in reason:
            raise MissingGrant(
                f"{where}: its login may not act as {role}: `grant {role} to <login>` as an administrator"
            ) from error
        if f'role "{role}"' in reason:
            raise SchemaNotReady(f"{where}: its roles are missing: run `sentinel migrate` first") from error
        raise EngineUnavailable(f"{where}: {reason}") from error


def require_board(url: str, *, connections: int = 0) -> None:
    """Raise unless the login may act as the board's role and that role may read its views. Raises as `require_ready`, and `MissingGrant`."""

    def require_readable(connection: psycopg.Connection[Any]) -> None:
        missing = connection.execute(READABLE, [list(PUBLIC_VIEWS)]).fetchone()
        if missing and missing[0]:
            raise MissingGrant(
                f"{BOARD} may not read {missing[0]}: run `sentinel migrate`, which gives each role its grants"
            )

    require_ready(url, BOARD, connections=connections, also=require_readable)
