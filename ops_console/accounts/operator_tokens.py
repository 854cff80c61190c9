"""Tokens that an operator makes for their own scripts: the operator's rights, an end, revocable; kept as a hash."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from ops_console.accounts import sessions
from sentinel.authority.actor import Actor
from sentinel.authority.keys import is_well_formed, make_secret, secret_hash
from sentinel.core.errors import Conflict, Forbidden, NotFound
from sentinel.store.database import Pool
from sentinel.store.ids import new_id

PREFIX = "snt_oper_"
MOST_DAYS = 90


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """A token that was just made. `token` is the secret: show it once."""

    token: str
    listing: sessions.TokenListing


def issue_token(
    pool: Pool, actor: Actor, *, label: str, expires_days: int, token_id: uuid.UUID | None = None
) -> IssuedToken:
    """A token of the actor, for 1 to 90 days. `token_id` is a form's: sent twice it makes one. Raises `Conflict`."""
    if actor.operator_id is None:
        raise Forbidden("a token belongs to a person's account")
    token = make_secret(PREFIX)
    listing = sessions.insert_token(
        pool, tenant_id=actor.tenant_id, token_id=token_id or new_id(), token_hash=secret_hash(token),
        operator_id=actor.operator_id, label=label, expires_seconds=expires_days * 86400,
    )  # fmt: skip
    if listing is None:
        raise Conflict("this token was made before, and shown once; revoke it if you did not see it")
    return IssuedToken(token, listing)


def token_owner(pool: Pool, token: str) -> sessions.SignedIn | None:
    """Whose token it is. An agent key has another prefix and is never one."""
    return sessions.find_token(pool, secret_hash(token)) if is_well_formed(token, (PREFIX,)) else None


def revoke_token(pool: Pool, actor: Actor, token_id: uuid.UUID) -> None:
    """End one of the actor's own tokens. Raises `NotFound`."""
    if actor.operator_id is None or not sessions.revoke_token(pool, actor.tenant_id, actor.operator_id, token_id):
        raise NotFound("you have no token of that id in use")
