"""Add a tenant under a public label."""

from __future__ import annotations

import re
import uuid

from sentinel.authority.tenants import create_tenant as create
from sentinel.core.errors import Conflict, InvalidInput
from sentinel.store.database import Pool
from sentinel.store.ids import new_id

_LABEL = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


def create_tenant(pool: Pool, label: str) -> uuid.UUID:
    """The new tenant's id. Raises `InvalidInput`, or `Conflict` when the label is taken."""
    if not _LABEL.fullmatch(label):
        raise InvalidInput.of("label", "must be up to 63 lower-case letters, digits and dashes")
    tenant_id = new_id()
    if not create(pool, tenant_id=tenant_id, label=label):
        raise Conflict(f"there is a tenant {label} already")
    return tenant_id
