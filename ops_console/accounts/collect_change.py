"""Collect the result of an approved change: the password or key is made now, shown once, and stored only as a hash."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Any

from ops_console.accounts.passwords import hash_password, make_password
from sentinel.authority.actor import Actor
from sentinel.authority.keys import LIVE, TEST, kept_of, make_secret
from sentinel.authority.protected_changes import (
    ISSUE_KEY,
    REFUSALS,
    ROTATE_KEY,
    find_change,
    make_approved,
    outcome_text,
)
from sentinel.core.errors import Conflict, NotFound
from sentinel.store.database import Pool
from sentinel.store.ids import new_id


@dataclass(frozen=True, slots=True)
class Collected:
    """The secret that an approved change made: a password for `email`, or a key with its id. Show it once."""

    action: str
    secret: str
    email: str | None = None
    key_id: uuid.UUID | None = None

    @property
    def key(self) -> str:
        """The secret, as `IssuedKey` calls it."""
        return self.secret


def collect_change(pool: Pool, actor: Actor, approval_id: uuid.UUID) -> Collected:
    """Carry out an approved change and return its password or key to the person who requested it, once.

    Raises `NotFound`, `Forbidden` (requested by somebody else), or `Conflict` (not approved, already collected, no
    longer possible).
    """
    actor.must_be("admin")
    change = find_change(pool, actor.tenant_id, approval_id)
    if change is None:
        raise NotFound("there is no change with this id")
    params = json.loads(change.request)["params"]
    if change.action in (ISSUE_KEY, ROTATE_KEY):
        secret = make_secret(TEST if params.get("test") else LIVE)
        given: dict[str, Any] = kept_of(secret, uuid.uuid4())
        collected = Collected(change.action, secret, key_id=uuid.UUID(params["key_id"]))
    else:
        secret = make_password()
        given = {"password_hash": hash_password(secret)}
        collected = Collected(change.action, secret, email=params["email"])
    said = make_approved(
        pool, tenant_id=actor.tenant_id, approval_id=approval_id, by_id=actor.operator_id, by=actor.name, given=given,
        event_id=new_id(),
    )  # fmt: skip
    if said != "done":
        refusal = REFUSALS.get(said, Conflict(outcome_text(said)))
        raise type(refusal)(refusal.detail)
    return collected
