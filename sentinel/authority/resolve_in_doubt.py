"""Say what became of a started operation, on evidence: executed captures its budget, not executed frees it."""

from __future__ import annotations

import uuid

from sentinel.authority import in_doubt
from sentinel.authority.actor import Actor
from sentinel.core.errors import Conflict, NotFound, StillActing
from sentinel.store.database import Pool
from sentinel.store.ids import new_id


def resolve_in_doubt(pool: Pool, actor: Actor, operation_id: uuid.UUID, *, executed: bool, evidence: str) -> None:
    """End the doubt. Freeing budget moves a cap, so it takes an administrator.

    "Not executed" is final: nothing starts under that key any more. Raises `NotFound`, `Forbidden`, `StillActing` ("not
    executed" while whoever was told "started" may act), or `Conflict` when the operation is not in doubt.
    """
    actor.must_be("admin")
    result, act_until = in_doubt.resolve_in_doubt(
        pool, tenant_id=actor.tenant_id, operation_id=operation_id, executed=executed, resolved_by=actor.name,
        evidence=evidence, event_id=new_id(),
    )  # fmt: skip
    if result == "unknown":
        raise NotFound("there is no operation of that id")
    if result == "still_acting":
        assert act_until is not None
        raise StillActing(act_until)
    if result == "not_in_doubt":
        raise Conflict("the operation is not in doubt")
