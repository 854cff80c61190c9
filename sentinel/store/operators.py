"""Operators: the people of a tenant, by address and role. Passwords are argon2id hashes made elsewhere."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime

from sentinel.store.database import Pool
from sentinel.store.rows import all_rows, changed, one_row

ROLES = ("viewer", "approver", "admin")
"""Least first; each may do what those before it may."""


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
class Credentials:
    """What signing in needs to know of an operator."""

    tenant_id: uuid.UUID
    tenant_label: str
    operator_id: uuid.UUID
    email: str
    role: str
    active: bool
    password_hash: str


_COLUMNS = "tenant_id, operator_id, email, role, active, created_at"
FIND_BY_EMAIL = f"""
select {_COLUMNS} from sentinel.operators where tenant_id = %(tenant_id)s and email = lower(%(email)s)
"""
LIST_OPERATORS = (
    f"select {_COLUMNS} from sentinel.operators where tenant_id = %(tenant_id)s order by created_at, operator_id"
)
# Two rows are enough to know that the address alone does not say who it is.
CREDENTIALS = """
select o.tenant_id, t.label as tenant_label, o.operator_id, o.email, o.role, o.active, o.password_hash
from sentinel.operators o join sentinel.tenants t using (tenant_id)
where o.email = %(email)s and (%(tenant)s::text is null or t.label = %(tenant)s or t.tenant_id::text = %(tenant)s)
order by o.tenant_id limit 2
"""
INSERT_OPERATOR = """
insert into sentinel.operators (tenant_id, operator_id, email, password_hash, role)
values (%(tenant_id)s, %(operator_id)s, lower(%(email)s), %(password_hash)s, %(role)s)
on conflict on constraint operators_email_once do nothing
"""
SET_ROLE = """
update sentinel.operators set role = %(role)s where tenant_id = %(tenant_id)s and operator_id = %(operator_id)s
"""
SET_ACTIVE = """
update sentinel.operators set active = %(active)s where tenant_id = %(tenant_id)s and operator_id = %(operator_id)s
"""
# A new password ends every session that the old one opened.
SET_PASSWORD = """
with done as (
  update sentinel.operators set password_hash = %(password_hash)s
  where tenant_id = %(tenant_id)s and operator_id = %(operator_id)s returning tenant_id, operator_id
)
update sentinel.operator_sessions s set revoked_at = clock_timestamp()
from done where s.tenant_id = done.tenant_id and s.operator_id = done.operator_id and s.revoked_at is null
"""


def find_operator(pool: Pool, tenant_id: uuid.UUID, email: str) -> OperatorRow | None:
    """The tenant's operator of that address (any case), or None."""
    return one_row(pool, OperatorRow, FIND_BY_EMAIL, {"tenant_id": tenant_id, "email": email})


def list_operators(pool: Pool, tenant_id: uuid.UUID) -> list[OperatorRow]:
    """All operators of a tenant, oldest first."""
    return all_rows(pool, OperatorRow, LIST_OPERATORS, {"tenant_id": tenant_id})


def credentials(pool: Pool, email: str, tenant: str | None) -> Credentials | None:
    """Who an address is, with `tenant` as label or id; None when unknown, or in several tenants and none is named."""
    found = all_rows(pool, Credentials, CREDENTIALS, {"email": email, "tenant": tenant})
    return found[0] if len(found) == 1 else None


def insert_operator(
    pool: Pool, *, tenant_id: uuid.UUID, operator_id: uuid.UUID, email: str, password_hash: str, role: str
) -> bool:
    """Add an operator. False when the tenant has that address."""
    fields = {
        "tenant_id": tenant_id, "operator_id": operator_id, "email": email, "password_hash": password_hash, "role": role,
    }  # fmt: skip
    return changed(pool, INSERT_OPERATOR, fields) == 1


def set_role(pool: Pool, tenant_id: uuid.UUID, operator_id: uuid.UUID, role: str) -> None:
    """Give another role; open sessions have it at their next request."""
    changed(pool, SET_ROLE, {"tenant_id": tenant_id, "operator_id": operator_id, "role": role})


def set_active(pool: Pool, tenant_id: uuid.UUID, operator_id: uuid.UUID, active: bool) -> None:
    """Let in or shut out; shut out ends sessions and tokens at their next request."""
    changed(pool, SET_ACTIVE, {"tenant_id": tenant_id, "operator_id": operator_id, "active": active})


def set_password(pool: Pool, tenant_id: uuid.UUID, operator_id: uuid.UUID, password_hash: str) -> None:
    """Replace the password and end every session."""
    changed(pool, SET_PASSWORD, {"tenant_id": tenant_id, "operator_id": operator_id, "password_hash": password_hash})
