"""Tenants: listing and creating them. A tenant's label is a public name, its id is not public."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from datetime import datetime

import psycopg

from sentinel.core.errors import Conflict, InvalidInput
from sentinel.store.database import Pool
from sentinel.store.ids import new_id
from sentinel.store.queries import all_rows, call_with_retry, one_row


@dataclass(frozen=True, slots=True)
class TenantRow:
    """A tenant; `label` is lower-case letters, digits and dashes."""

    tenant_id: uuid.UUID
    label: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class PublicTenant:
    """A tenant as the public board's role may see it."""

    tenant_id: uuid.UUID
    label: str


LIST_TENANTS = "select tenant_id, label, created_at from sentinel.tenants order by created_at, tenant_id"
TENANT = "select tenant_id, label from sentinel.tenants where tenant_id = %(tenant_id)s"
PUBLIC_TENANTS = "select tenant_id, label from sentinel.public_tenants order by tenant_id"
INSERT_TENANT = """
insert into sentinel.tenants (tenant_id, label)
select %(tenant_id)s, %(label)s where not exists (select from sentinel.tenants where label = %(label)s)
"""
# The ledger of a single-tenant installation belongs to its first tenant without anybody saying so.
FIRST_IS_DEFAULT = "insert into refunds.defaults (tenant_id) values (%(tenant_id)s) on conflict do nothing"
_CREATING = "select sentinel.take_tenants_lock()"


def tenant_label_of(pool: Pool, tenant_id: uuid.UUID) -> str | None:
    """A tenant's public name, or None where there is no such tenant."""
    found = one_row(pool, PublicTenant, TENANT, {"tenant_id": tenant_id})
    return found.label if found else None


def list_tenants(pool: Pool) -> list[TenantRow]:
    """All tenants, oldest first."""
    return all_rows(pool, TenantRow, LIST_TENANTS)


def public_tenants(pool: Pool) -> list[PublicTenant]:
    """All tenants as the board's role sees them."""
    return all_rows(pool, PublicTenant, PUBLIC_TENANTS)


def _insert_tenant(pool: Pool, *, tenant_id: uuid.UUID, label: str) -> bool:
    """Add a tenant; the first one becomes the refund ledger's default. False when the label is taken."""
    fields = {"tenant_id": tenant_id, "label": label}

    def call(connection: psycopg.Connection[tuple[object, ...]]) -> bool:
        with connection.transaction():
            # Labels are looked up by people: two creations of one label must see each other.
            connection.execute(_CREATING)
            created = connection.execute(INSERT_TENANT, fields).rowcount == 1
            if created:
                connection.execute(FIRST_IS_DEFAULT, fields)
            return created

    return call_with_retry(pool, call)


_LABEL = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


def create_tenant(pool: Pool, label: str) -> uuid.UUID:
    """The new tenant's id. Raises `InvalidInput`, or `Conflict` when the label is taken."""
    if not _LABEL.fullmatch(label):
        raise InvalidInput.of("label", "must be up to 63 lower-case letters, digits and dashes")
    tenant_id = new_id()
    if not _insert_tenant(pool, tenant_id=tenant_id, label=label):
        raise Conflict(f"there is a tenant {label} already")
    return tenant_id
