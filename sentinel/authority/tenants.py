"""Tenants: listing and creating them. A tenant's label is public, its id is not."""

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
# The first tenant becomes the refund ledger's default, so that a single-tenant installation needs no setting for it.
FIRST_IS_DEFAULT = "insert into refunds.defaults (tenant_id) values (%(tenant_id)s) on conflict do nothing"
_CREATING = "select sentinel.take_tenants_lock()"


def tenant_label_of(pool: Pool, tenant_id: uuid.UUID) -> str | None:
    """Return a tenant's label, its public name, or None if there is no such tenant."""
    found = one_row(pool, PublicTenant, TENANT, {"tenant_id": tenant_id})
    return found.label if found else None


def list_tenants(pool: Pool) -> list[TenantRow]:
    """Return all tenants, oldest first."""
    return all_rows(pool, TenantRow, LIST_TENANTS)


def public_tenants(pool: Pool) -> list[PublicTenant]:
    """Return all tenants as the public board's database role sees them."""
    return all_rows(pool, PublicTenant, PUBLIC_TENANTS)


def _insert_tenant(pool: Pool, *, tenant_id: uuid.UUID, label: str) -> bool:
    """Add a tenant; the first one becomes the refund ledger's default. False when the label is taken."""
    fields = {"tenant_id": tenant_id, "label": label}

    def call(connection: psycopg.Connection[tuple[object, ...]]) -> bool:
        with connection.transaction():
            # Labels must be unique, and no constraint enforces it: the lock makes concurrent creations see each other.
            connection.execute(_CREATING)
            created = connection.execute(INSERT_TENANT, fields).rowcount == 1
            if created:
                connection.execute(FIRST_IS_DEFAULT, fields)
            return created

    return call_with_retry(pool, call)


_LABEL = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


def create_tenant(pool: Pool, label: str) -> uuid.UUID:
    """Create a tenant and return its id. Raises `InvalidInput`, or `Conflict` if the label is taken."""
    if not _LABEL.fullmatch(label):
        raise InvalidInput.of("label", "must be up to 63 lower-case letters, digits and dashes")
    tenant_id = new_id()
    if not _insert_tenant(pool, tenant_id=tenant_id, label=label):
        raise Conflict(f"there is already a tenant {label}")
    return tenant_id
