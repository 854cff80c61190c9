"""Operators: the people of a tenant, by address and role. Passwords are argon2id hashes made elsewhere."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg

from ops_console.accounts.second_factors import STEP_SECONDS
from sentinel.store.database import Pool
from sentinel.store.queries import all_rows, call_with_retry, one_row
from sentinel.store.sql_template import SqlTemplate


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """An operator without the password."""

    tenant_id: uuid.UUID
    operator_id: uuid.UUID
    email: str
    role: str
    active: bool
    created_at: datetime


@dataclass(frozen=True, slots=True)
class PersonRow:
    """An operator as an admin sees one. `sessions` counts the live ones; `changed_by` is the address of the admin who
    made or changed the account, until a second admin confirms it. `must_set_password`: somebody else set the password.
    """

    operator_id: uuid.UUID
    email: str
    role: str
    active: bool
    created_at: datetime
    last_signed_in_at: datetime | None
    has_second_factor: bool
    sessions: int
    changed_by: str | None
    must_set_password: bool


@dataclass(frozen=True, slots=True)
class Credentials:
    """What signing in needs to know of an operator. `factor` is the sealed secret of a confirmed second factor.

    `last_step` is the time step of the last code used, `now_step` the current one. `changed_by_another` is the time, as
    text, when somebody else last changed the account; it is only compared for equality.
    """

    tenant_id: uuid.UUID
    tenant_label: str
    operator_id: uuid.UUID
    email: str
    role: str
    active: bool
    password_hash: str
    password_one_time: bool
    factor: str | None
    last_step: int
    now_step: int
    changed_by_another: str | None


_COLUMNS = "tenant_id, operator_id, email, role, active, created_at"
FIND_BY_EMAIL = SqlTemplate("""
select {columns} from sentinel.operators where tenant_id = %(tenant_id)s and email = lower(%(email)s)
""").fill(columns=_COLUMNS)
LIST_OPERATORS = SqlTemplate(
    "select {columns} from sentinel.operators where tenant_id = %(tenant_id)s order by created_at, operator_id"
).fill(columns=_COLUMNS)
_CREDENTIALS = SqlTemplate("""
select o.tenant_id, t.label as tenant_label, o.operator_id, o.email, o.role, o.active, o.password_hash, o.password_one_time,
       f.secret as factor, coalesce(f.last_step, 0) as last_step,
       floor(extract(epoch from clock_timestamp()) / {step_seconds})::bigint as now_step,
       o.changed_by_another_at::text as changed_by_another
from sentinel.operators o join sentinel.tenants t using (tenant_id)
left join sentinel.second_factors f
  on f.tenant_id = o.tenant_id and f.operator_id = o.operator_id and f.confirmed_at is not null
""").fill(step_seconds=STEP_SECONDS)
# Two rows are enough to know that the address is ambiguous.
CREDENTIALS = f"""{_CREDENTIALS}
where o.email = %(email)s and (%(tenant)s::text is null or t.label = %(tenant)s or t.tenant_id::text = %(tenant)s)
order by o.tenant_id limit 2
"""
CREDENTIALS_OF = f"{_CREDENTIALS} where o.tenant_id = %(tenant_id)s and o.operator_id = %(operator_id)s"
LIST_PEOPLE = """
select o.operator_id, o.email, o.role, o.active, o.created_at, o.last_signed_in_at,
       exists (select from sentinel.second_factors f where f.tenant_id = o.tenant_id and f.operator_id = o.operator_id
               and f.confirmed_at is not null) as has_second_factor,
       (select count(*) from sentinel.operator_sessions s
        where s.tenant_id = o.tenant_id and s.operator_id = o.operator_id and s.revoked_at is null
          and s.expires_at > clock_timestamp()
          and s.last_seen_at > clock_timestamp() - make_interval(secs => %(idle_seconds)s::double precision)) as sessions,
       c.email as changed_by, o.password_one_time as must_set_password
from sentinel.operators o
left join sentinel.operators c on c.tenant_id = o.tenant_id and c.operator_id = o.changed_by
where o.tenant_id = %(tenant_id)s and (%(operator_id)s::uuid is null or o.operator_id = %(operator_id)s)
  and (not %(to_be_confirmed)s or o.active and c.email is not null)
order by not o.active, o.email limit %(most)s
"""
# Locks the operator's row in a statement before CHANGE_PASSWORD, which then sees the sessions that were being opened
# while this waited for the lock.
_ONE_AT_A_TIME = """
select from sentinel.operators where tenant_id = %(tenant_id)s and operator_id = %(operator_id)s for no key update
"""
# A new password revokes all sessions but the one in which it was changed, and drops a second factor whose set-up was
# begun but not confirmed.
CHANGE_PASSWORD = """
with done as (
  update sentinel.operators set password_hash = %(password_hash)s, password_one_time = false, password_used_at = null
  where tenant_id = %(tenant_id)s and operator_id = %(operator_id)s and password_hash = %(old_hash)s
  returning tenant_id, operator_id, email
), ended as (
  update sentinel.operator_sessions s set revoked_at = clock_timestamp()
  from done where s.tenant_id = done.tenant_id and s.operator_id = done.operator_id and s.revoked_at is null
    and s.session_id is distinct from %(session_id)s::uuid
), dropped as (
  delete from sentinel.second_factors f
  using done where f.tenant_id = done.tenant_id and f.operator_id = done.operator_id and f.confirmed_at is null
)
select sentinel.append_event(tenant_id, %(event_id)s, 'operator_password_changed', null, null, clock_timestamp(),
  jsonb_build_object('by', email, 'operator', email, 'operator_id', operator_id)) from done
"""


def find_operator(pool: Pool, tenant_id: uuid.UUID, email: str) -> OperatorRow | None:
    """The tenant's operator of that address (any case), or None."""
    return one_row(pool, OperatorRow, FIND_BY_EMAIL, {"tenant_id": tenant_id, "email": email})


def list_operators(pool: Pool, tenant_id: uuid.UUID) -> list[OperatorRow]:
    """All operators of a tenant, oldest first."""
    return all_rows(pool, OperatorRow, LIST_OPERATORS, {"tenant_id": tenant_id})


def credentials(pool: Pool, email: str, tenant: str | None) -> Credentials | None:
    """Return the operator of an address, with `tenant` as label or id; None if unknown, or in several tenants and none is named."""
    found = all_rows(pool, Credentials, CREDENTIALS, {"email": email, "tenant": tenant})
    return found[0] if len(found) == 1 else None


def credentials_of(pool: Pool, tenant_id: uuid.UUID, operator_id: uuid.UUID) -> Credentials | None:
    """The credentials of one operator by id, or None."""
    return one_row(pool, Credentials, CREDENTIALS_OF, {"tenant_id": tenant_id, "operator_id": operator_id})


MOST_PEOPLE = 1000
"""How many of a tenant's people are listed."""


def list_people(
    pool: Pool, tenant_id: uuid.UUID, *, idle_seconds: float, operator_id: uuid.UUID | None = None, to_be_confirmed: bool = False
) -> list[PersonRow]:  # fmt: skip
    """The first `MOST_PEOPLE` of a tenant as an admin sees them, by address, deactivated ones last; with `operator_id`,
    only that one. `to_be_confirmed`: only active accounts that wait for a second administrator.
    """
    fields = {
        "tenant_id": tenant_id, "operator_id": operator_id, "idle_seconds": idle_seconds, "to_be_confirmed": to_be_confirmed,
        "most": MOST_PEOPLE,
    }  # fmt: skip
    return all_rows(pool, PersonRow, LIST_PEOPLE, fields)


def change_password(
    pool: Pool, known: Credentials, password_hash: str, *, keep_session: uuid.UUID | None, event_id: uuid.UUID
) -> bool:
    """Replace the password of `known` and revoke every session but `keep_session`. False if it was replaced meanwhile."""
    fields = {
        "tenant_id": known.tenant_id, "operator_id": known.operator_id, "old_hash": known.password_hash,
        "password_hash": password_hash, "session_id": keep_session, "event_id": event_id,
    }  # fmt: skip

    def call(connection: psycopg.Connection[Any]) -> bool:
        with connection.transaction():
            connection.execute(_ONE_AT_A_TIME, fields)
            return connection.execute(CHANGE_PASSWORD, fields).rowcount == 1

    return call_with_retry(pool, call)
