"""Refusing a database on which our promises would not hold: asked once, before anything is served."""

from __future__ import annotations

import psycopg

from sentinel.core.errors import EngineUnavailable, SentinelError
from sentinel.store.database import BOARD, describe, first_line, with_role
from sentinel.store.migrate import SchemaNotReady, require_head

SETTINGS = "select name, setting from pg_settings where name = any(%s)"
ROLE = """
select current_user, r.rolsuper, r.rolbypassrls,
  exists (select from pg_class c join pg_namespace n on n.oid = c.relnamespace
          where n.nspname in ('sentinel', 'refunds', 'orders') and c.relowner = r.oid)
from pg_roles r where r.rolname = current_user
"""
# Every protecting trigger of the schemas that this program may enter must be there and enabled.
TRIGGERS = """
select coalesce(string_agg(wanted.name, ', ' order by wanted.name), '') from (values
    ('sentinel.events', 'append_only'), ('sentinel.operations', 'append_only'), ('sentinel.feed', 'append_only'),
    ('sentinel.approval_votes', 'append_only'), ('sentinel.check_reports', 'append_only'),
    ('sentinel.policies', 'append_only'), ('sentinel.approvals', 'check_approval'),
    ('orders.reviews', 'check_review'), ('orders.effects', 'check_effect'), ('orders.events', 'append_only')
  ) as wanted(name, trigger)
where has_schema_privilege(split_part(wanted.name, '.', 1), 'usage') and not exists (select from pg_trigger t
                  where t.tgrelid = case when has_schema_privilege(split_part(wanted.name, '.', 1), 'usage')
                                              then to_regclass(wanted.name) end and t.tgname = wanted.trigger and t.tgenabled in ('O', 'A'))
"""

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
    """The login may not act as a role that the program needs, or the role may not read what it is there to read."""

    code = "missing-grant"


class UnsafeDatabase(SentinelError):
    """The database is set so that an acknowledged decision could be lost or history rewritten."""

    code = "unsafe-database"


def faults_of(connection: psycopg.Connection) -> list[str]:
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
    missing = connection.execute(TRIGGERS).fetchone()
    if missing and missing[0]:
        faults.append(f"protecting triggers (append-only, approvals) are missing or disabled on {missing[0]}")
    return faults


def require_safe(connection: psycopg.Connection) -> None:
    """Raise `UnsafeDatabase` naming every fault."""
    faults = faults_of(connection)
    if faults:
        raise UnsafeDatabase("; ".join(faults))


def require_ready(url: str, role: str) -> None:
    """Raise unless the database is reachable, at head and safe, as a program's own role.

    `EngineUnavailable` when nobody answers, `SchemaNotReady` when it must be migrated first, `UnsafeDatabase` otherwise.
    """
    try:
        with psycopg.connect(with_role(url, role), autocommit=True) as connection:
            require_head(connection)
            require_safe(connection)
    except psycopg.OperationalError as error:
        reason, where = first_line(error), f"cannot use the database at {describe(url)}"
        if f'permission denied to set role "{role}"' in reason:
            raise MissingGrant(
                f"{where}: its login may not act as {role}: `grant {role} to <login>` as an administrator"
            ) from error
        if f'role "{role}"' in reason:
            raise SchemaNotReady(f"{where}: its roles are missing: run `sentinel migrate` first") from error
        raise EngineUnavailable(f"{where}: {reason}") from error


def require_board(url: str) -> None:
    """Raise unless the login may act as the board's role and that role may read its views. Raises as `require_ready`, and `MissingGrant`."""
    require_ready(url, BOARD)
    with psycopg.connect(with_role(url, BOARD), autocommit=True) as connection:
        missing = connection.execute(READABLE, [list(PUBLIC_VIEWS)]).fetchone()
    if missing and missing[0]:
        raise MissingGrant(
            f"{BOARD} may not read {missing[0]}: run `sentinel migrate`, which gives each role its grants"
        )
