"""End an agent key now; every authority process refuses it within a second."""

from __future__ import annotations

import uuid

from sentinel.authority.actor import ON_THE_MACHINE
from sentinel.authority.keys import find_key_by_id
from sentinel.authority.keys import revoke_key as revoke
from sentinel.core.errors import Conflict, NotFound
from sentinel.store.database import Pool
from sentinel.store.ids import new_id


def revoke_key(pool: Pool, tenant_id: uuid.UUID, key_id: uuid.UUID, *, by: str = ON_THE_MACHINE) -> None:
    """Revoke the tenant's key; `by` is who did it, for the event. Raises `NotFound`, or `Conflict` when it was revoked before."""
    if revoke(pool, tenant_id, key_id, by=by, event_id=new_id()):
        return
    if find_key_by_id(pool, tenant_id, key_id) is None:
        raise NotFound("there is no key of that id")
    raise Conflict("the key was revoked before")
