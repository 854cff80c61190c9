"""End an agent key now; every authority process refuses it within a second."""

from __future__ import annotations

import uuid

from sentinel.core.errors import Conflict, NotFound
from sentinel.store.agent_keys import find_key_by_id
from sentinel.store.agent_keys import revoke_key as revoke
from sentinel.store.database import Pool


def revoke_key(pool: Pool, tenant_id: uuid.UUID, key_id: uuid.UUID) -> None:
    """Revoke the tenant's key. Raises `NotFound`, or `Conflict` when it was revoked before."""
    if revoke(pool, tenant_id, key_id):
        return
    if find_key_by_id(pool, tenant_id, key_id) is None:
        raise NotFound("there is no key of that id")
    raise Conflict("the key was revoked before")
