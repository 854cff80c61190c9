"""Operators' sessions and tokens: kept as hashes, ended here, so that a copied cookie dies with the sign-out.

Role and activity are read with every lookup, never remembered in a cookie. The database clock says what is over.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime

import orjson

from sentinel.store.database import Pool
from sentinel.store.rows import all_rows, changed, one_row


@dataclass(frozen=True, slots=True)
class SignedIn:
    """A person with a valid session or token. From `csrf_token` on, what belongs to sessions alone.

    `stale` is due for a touch; `kind` is "page" for a browser's session, else "api"; `said` waits to be told by a page.
    """

    tenant_id: uuid.UUID
    tenant_label: str
    operator_id: uuid.UUID
    email: str
    role: str
    csrf_token: str | None
    expires_at: datetime | None
    stale: bool
    session_id: uuid.UUID | None = None
    kind: str = "api"
    said: list[dict[str, str]] | None = None


@dataclass(frozen=True, slots=True)
class TokenListing:
    """An operator's token as its owner sees it."""

    token_id: uuid.UUID
    label: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """When a session is over, whatever happens."""

    expires_at: datetime


INSERT_SESSION = """
insert into sentinel.operator_sessions (tenant_id, session_hash, operator_id, csrf_token, expires_at)
values (%(tenant_id)s, %(session_hash)s, %(operator_id)s, %(csrf_token)s,
  clock_timestamp() + make_interval(secs => %(absolute_seconds)s::double precision))
returning expires_at
"""
FIND_SESSION = """
select s.tenant_id, t.label as tenant_label, s.operator_id, o.email, o.role, s.csrf_token, s.expires_at,
       s.session_id, s.kind, s.said,
       s.last_seen_at < clock_timestamp() - make_interval(secs => %(touch_seconds)s::double precision) as stale
from sentinel.operator_sessions s
join sentinel.operators o using (tenant_id, operator_id) join sentinel.tenants t using (tenant_id)
where s.session_hash = %(session_hash)s and s.revoked_at is null and o.active and s.expires_at > clock_timestamp()
  and s.last_seen_at > clock_timestamp() - make_interval(secs => %(idle_seconds)s::double precision)
"""
TOUCH_SESSION = """
update sentinel.operator_sessions set last_seen_at = clock_timestamp()
where tenant_id = %(tenant_id)s and session_hash = %(session_hash)s and revoked_at is null
"""
REVOKE_SESSION = """
update sentinel.operator_sessions set revoked_at = clock_timestamp()
where session_hash = %(session_hash)s and revoked_at is null
"""
KEEP_SAYING = """
update sentinel.operator_sessions set said = coalesce(said, '[]'::jsonb) || %(said)s::jsonb
where tenant_id = %(tenant_id)s and operator_id = %(operator_id)s and session_id = %(session_id)s and revoked_at is null
"""
FORGET_SAID = """
update sentinel.operator_sessions set said = null
where tenant_id = %(tenant_id)s and operator_id = %(operator_id)s and session_id = %(session_id)s
"""
INSERT_TOKEN = """
insert into sentinel.operator_tokens (tenant_id, token_id, token_hash, operator_id, label, expires_at)
values (%(tenant_id)s, %(token_id)s, %(token_hash)s, %(operator_id)s, %(label)s,
  clock_timestamp() + make_interval(secs => %(expires_seconds)s::integer))
returning token_id, label, created_at, expires_at, revoked_at
"""
FIND_TOKEN = """
select k.tenant_id, t.label as tenant_label, k.operator_id, o.email, o.role, null as csrf_token, k.expires_at, false as stale
from sentinel.operator_tokens k
join sentinel.operators o using (tenant_id, operator_id) join sentinel.tenants t using (tenant_id)
where k.token_hash = %(token_hash)s and k.revoked_at is null and o.active
  and (k.expires_at is null or k.expires_at > clock_timestamp())
"""
LIST_TOKENS = """
select token_id, label, created_at, expires_at, revoked_at from sentinel.operator_tokens
where tenant_id = %(tenant_id)s and operator_id = %(operator_id)s order by created_at, token_id
"""
REVOKE_TOKEN = """
update sentinel.operator_tokens set revoked_at = clock_timestamp()
where tenant_id = %(tenant_id)s and operator_id = %(operator_id)s and token_id = %(token_id)s and revoked_at is null
"""


def insert_session(
    pool: Pool,
    *,
    tenant_id: uuid.UUID,
    operator_id: uuid.UUID,
    session_hash: bytes,
    csrf_token: str,
    absolute_seconds: float,
) -> datetime:
    """Keep a new session; returns its absolute end."""
    end = one_row(pool, SessionEnd, INSERT_SESSION, {
        "tenant_id": tenant_id, "operator_id": operator_id, "session_hash": session_hash, "csrf_token": csrf_token,
        "absolute_seconds": absolute_seconds,
    })  # fmt: skip
    assert end is not None
    return end.expires_at


def find_session(pool: Pool, session_hash: bytes, *, idle_seconds: float, touch_seconds: float) -> SignedIn | None:
    """Whose session it is; None when revoked, idle, over, or the operator is shut out."""
    fields = {"session_hash": session_hash, "idle_seconds": idle_seconds, "touch_seconds": touch_seconds}
    return one_row(pool, SignedIn, FIND_SESSION, fields)


def touch_session(pool: Pool, tenant_id: uuid.UUID, session_hash: bytes) -> None:
    """Note that the session was used now."""
    changed(pool, TOUCH_SESSION, {"tenant_id": tenant_id, "session_hash": session_hash})


def revoke_session(pool: Pool, session_hash: bytes) -> bool:
    """End a session. False when it was over."""
    return changed(pool, REVOKE_SESSION, {"session_hash": session_hash}) == 1


def keep_saying(pool: Pool, who: SignedIn, said: dict[str, str]) -> None:
    """Keep something for the session's next page to tell."""
    changed(pool, KEEP_SAYING, {**_session(who), "said": orjson.dumps([said]).decode()})


def take_said(pool: Pool, who: SignedIn) -> list[dict[str, str]]:
    """What was kept for this page, once."""
    if not who.said:
        return []
    changed(pool, FORGET_SAID, _session(who))
    return who.said


def _session(who: SignedIn) -> dict[str, uuid.UUID | None]:
    return {"tenant_id": who.tenant_id, "operator_id": who.operator_id, "session_id": who.session_id}


def insert_token(
    pool: Pool,
    *,
    tenant_id: uuid.UUID,
    token_id: uuid.UUID,
    token_hash: bytes,
    operator_id: uuid.UUID,
    label: str,
    expires_seconds: int,
) -> TokenListing:
    """Keep a new token of an operator."""
    listing = one_row(pool, TokenListing, INSERT_TOKEN, {
        "tenant_id": tenant_id, "token_id": token_id, "token_hash": token_hash, "operator_id": operator_id,
        "label": label, "expires_seconds": expires_seconds,
    })  # fmt: skip
    assert listing is not None
    return listing


def find_token(pool: Pool, token_hash: bytes) -> SignedIn | None:
    """Whose token it is; None when revoked, over, or the operator is shut out."""
    return one_row(pool, SignedIn, FIND_TOKEN, {"token_hash": token_hash})


def list_tokens(pool: Pool, tenant_id: uuid.UUID, operator_id: uuid.UUID) -> list[TokenListing]:
    """An operator's own tokens, oldest first."""
    return all_rows(pool, TokenListing, LIST_TOKENS, {"tenant_id": tenant_id, "operator_id": operator_id})


def revoke_token(pool: Pool, tenant_id: uuid.UUID, operator_id: uuid.UUID, token_id: uuid.UUID) -> bool:
    """End one of an operator's own tokens. False when there is none in use."""
    fields = {"tenant_id": tenant_id, "operator_id": operator_id, "token_id": token_id}
    return changed(pool, REVOKE_TOKEN, fields) == 1
