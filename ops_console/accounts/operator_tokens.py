"""Tokens that operators make for their own scripts: they have the operator's rights, expire, are revocable, and are kept as hashes."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime

from ops_console.accounts.sessions import HAS_SECOND_FACTOR, SignedIn
from sentinel.authority.actor import Actor
from sentinel.authority.keys import is_well_formed, make_secret, secret_hash
from sentinel.core.errors import Conflict, Forbidden, NotFound, Unauthenticated
from sentinel.store.database import Pool
from sentinel.store.ids import new_id
from sentinel.store.queries import all_rows, changed, one_row
from sentinel.store.sql_template import SqlTemplate

PREFIX = "snt_oper_"
MOST_DAYS = 90


@dataclass(frozen=True, slots=True)
class TokenListing:
    """An operator's token as its owner sees it."""

    token_id: uuid.UUID
    label: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """A token that was just made. `token` is the secret: show it once."""

    token: str
    listing: TokenListing


# Only in a live session, whose row is locked: whatever revokes a person's tokens first ends their sessions, so when
# both happen at once, the later one sees the other.
INSERT_TOKEN = """
with lives as (
  select s.operator_id from sentinel.operator_sessions s
  where s.tenant_id = %(tenant_id)s and s.operator_id = %(operator_id)s and s.session_id = %(session_id)s and s.revoked_at is null
  for update
)
insert into sentinel.operator_tokens (tenant_id, token_id, token_hash, operator_id, label, expires_at)
select %(tenant_id)s::uuid, %(token_id)s::uuid, %(token_hash)s::bytea, lives.operator_id, %(label)s::text,
  clock_timestamp() + make_interval(secs => %(expires_seconds)s::integer)
from lives
on conflict do nothing returning token_id, label, created_at, expires_at, revoked_at
"""
FIND_TOKEN = SqlTemplate("""
select k.tenant_id, t.label as tenant_label, k.operator_id, o.email, o.role, null as csrf_token, k.expires_at,
       false as stale, {has_second_factor} as has_second_factor, o.password_one_time as must_set_password
from sentinel.operator_tokens k
join sentinel.operators o using (tenant_id, operator_id) join sentinel.tenants t using (tenant_id)
where k.token_hash = %(token_hash)s and k.revoked_at is null and o.active
  and (k.expires_at is null or k.expires_at > clock_timestamp())
""").fill(has_second_factor=HAS_SECOND_FACTOR)
LIST_TOKENS = """
select token_id, label, created_at, expires_at, revoked_at from sentinel.operator_tokens
where tenant_id = %(tenant_id)s and operator_id = %(operator_id)s order by created_at, token_id
"""
REVOKE_TOKEN = """
update sentinel.operator_tokens set revoked_at = clock_timestamp()
where tenant_id = %(tenant_id)s and operator_id = %(operator_id)s and token_id = %(token_id)s and revoked_at is null
"""


def issue_token(
    pool: Pool, actor: Actor, session_id: uuid.UUID, *, label: str, expires_days: int, token_id: uuid.UUID | None = None
) -> IssuedToken:
    """Make a token for the actor in one of their sessions, for 1 to 90 days. `token_id` comes with the form, so that a
    form that is sent twice makes one token.

    Raises `Conflict` if that token was made before, `Unauthenticated` if the session has ended, `Forbidden` if the
    actor is no person.
    """
    if actor.operator_id is None:
        raise Forbidden("a token can only be created for a person's account")
    token = make_secret(PREFIX)
    token_id = token_id or new_id()
    listing = one_row(pool, TokenListing, INSERT_TOKEN, {
        "tenant_id": actor.tenant_id, "session_id": session_id, "token_id": token_id, "token_hash": secret_hash(token),
        "operator_id": actor.operator_id, "label": label, "expires_seconds": expires_days * 86400,
    })  # fmt: skip
    if listing is None:
        if all(one.token_id != token_id for one in list_tokens(pool, actor.tenant_id, actor.operator_id)):
            raise Unauthenticated
        raise Conflict("this token was already created and shown once; revoke it if you did not see it")
    return IssuedToken(token, listing)


def token_owner(pool: Pool, token: str) -> SignedIn | None:
    """Return the token's owner; None if it is unknown, revoked or expired, or the operator is deactivated.

    An agent key has another prefix and is never accepted.
    """
    return (
        one_row(pool, SignedIn, FIND_TOKEN, {"token_hash": secret_hash(token)})
        if is_well_formed(token, (PREFIX,))
        else None
    )


def list_tokens(pool: Pool, tenant_id: uuid.UUID, operator_id: uuid.UUID) -> list[TokenListing]:
    """An operator's own tokens, oldest first."""
    return all_rows(pool, TokenListing, LIST_TOKENS, {"tenant_id": tenant_id, "operator_id": operator_id})


def revoke_token(pool: Pool, actor: Actor, token_id: uuid.UUID) -> None:
    """Revoke one of the actor's own tokens. Raises `NotFound`."""
    fields = {"tenant_id": actor.tenant_id, "operator_id": actor.operator_id, "token_id": token_id}
    if actor.operator_id is None or changed(pool, REVOKE_TOKEN, fields) != 1:
        raise NotFound("you have no active token with this id")
