"""Let go what was stopped. Takes more than stopping: an administrator, and a reason."""

from __future__ import annotations

import uuid

from sentinel.authority import halts
from sentinel.authority.actor import Actor
from sentinel.core.errors import NotFound
from sentinel.store.database import Pool
from sentinel.store.ids import new_id


def lift_halt(pool: Pool, actor: Actor, halt_id: uuid.UUID, *, reason: str) -> None:
    """Lift the tenant's halt; a local administrator also a global one. Raises `NotFound` when none is in force."""
    actor.must_be("admin")
    owners = [actor.tenant_id, halts.EVERYBODY] if actor.is_local else [actor.tenant_id]
    for owner in owners:
        if halts.lift_halt(pool, owner=owner, halt_id=halt_id, lifted_by=actor.name, reason=reason, event_id=new_id()):
            return
    raise NotFound("there is no halt of that id in force")
