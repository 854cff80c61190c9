"""Give a principal a second key and the first an end, so that an agent changes over without a gap."""

from __future__ import annotations

import uuid

from sentinel.authority.actor import ON_THE_MACHINE
from sentinel.authority.issue_key import IssuedKey, MadeBefore, seconds_of
from sentinel.authority.keys import LIVE, find_key_by_id, make_key
from sentinel.authority.keys import rotate_key as rotate
from sentinel.core.errors import Conflict, InvalidInput, NotFound
from sentinel.store.database import Pool
from sentinel.store.ids import new_id

OVERLAP_SECONDS = 86400


def rotate_key(
    pool: Pool,
    tenant_id: uuid.UUID,
    key_id: uuid.UUID,
    *,
    overlap_seconds: int = OVERLAP_SECONDS,
    expires_days: int | None = None,
    new_key_id: uuid.UUID | None = None,
    by: str = ON_THE_MACHINE,
    by_id: uuid.UUID | None = None,
) -> IssuedKey:
    """The successor of a usable key: same principal, agent, scopes and owner; the old one ends after the overlap.

    With a `new_key_id` asking twice makes one key. `by` is who did it, for the event,
    `by_id` their account, which cannot approve what the key asks either. Raises `NotFound`, `MadeBefore`, or `Conflict` when the old key is over.
    """
    if overlap_seconds < 0:
        raise InvalidInput.of("overlap_seconds", "must not be negative")
    old = find_key_by_id(pool, tenant_id, key_id)
    if old is None:
        raise NotFound("there is no key of that id")
    issued = IssuedKey(make_key(LIVE), new_key_id or new_id(), old.principal_id)
    done = rotate(
        pool, tenant_id=tenant_id, old_key_id=key_id, key_id=issued.key_id, key=issued.key,
        overlap_seconds=overlap_seconds, expires_seconds=seconds_of(expires_days), by=by, by_id=by_id, event_id=new_id(),
    )  # fmt: skip
    if not done:
        if find_key_by_id(pool, tenant_id, issued.key_id) is not None:
            raise MadeBefore
        raise Conflict("the key is revoked or expired; make a new one")
    return issued
