"""Let a person in: count the attempt, check the password in flat time, open a session that lives in the database.

Guessing is throttled by account, by address and over all (`CONTRACT.md` §4, five-minute windows). Wrong password,
unknown address and shut-out operator are one refusal and take one time.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime

from sentinel.core.errors import RateLimited, Unauthenticated
from sentinel.services.actor import Actor
from sentinel.services.passwords import is_right
from sentinel.store.database import Pool
from sentinel.store.operators import credentials
from sentinel.store.sessions import SignedIn, find_session, insert_session, touch_session
from sentinel.store.sign_in_attempts import Throttle, begin_attempt, mark_success


@dataclass(frozen=True, slots=True)
class SessionTerms:
    """How long a session lives unused, and at most; seconds."""

    idle_seconds: float = 900
    absolute_seconds: float = 28800


@dataclass(frozen=True, slots=True)
class Opened:
    """A new session. `cookie` is the secret; the database has only its hash."""

    cookie: str
    csrf_token: str
    expires_at: datetime
    actor: Actor
    tenant_label: str


def sign_in(
    pool: Pool,
    *,
    email: str,
    password: str,
    tenant: str | None,
    address: str,
    terms: SessionTerms,
    throttle: Throttle | None = None,
) -> Opened:
    """A session for the right password. `tenant` (label or id) is needed where an address is in several.

    Raises `RateLimited` before looking at the password, `Unauthenticated` for everything that does not fit.
    """
    email = email.strip().lower()
    attempt = begin_attempt(pool, email=email, address=address, throttle=throttle or Throttle())
    if attempt.attempt_id is None:
        raise RateLimited(attempt.retry_after_seconds, "Too many sign-in attempts; try again later.")
    who = credentials(pool, email, tenant)
    fits = is_right(who.password_hash if who is not None and who.active else None, password)
    if who is None or not fits:
        raise Unauthenticated
    mark_success(pool, attempt.attempt_id)
    # A new value at every sign-in: a session that somebody planted before is never the one that gets in.
    cookie, csrf_token = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
    expires_at = insert_session(
        pool, tenant_id=who.tenant_id, operator_id=who.operator_id, session_hash=session_hash(cookie),
        csrf_token=csrf_token, absolute_seconds=terms.absolute_seconds,
    )  # fmt: skip
    actor = Actor(who.tenant_id, who.operator_id, who.email, who.role)
    return Opened(cookie, csrf_token, expires_at, actor, who.tenant_label)


def session_of(pool: Pool, cookie: str, terms: SessionTerms) -> SignedIn | None:
    """Who a cookie's value belongs to; using it keeps the session from going idle."""
    hashed = session_hash(cookie)
    touch_seconds = min(30.0, terms.idle_seconds / 10)
    found = find_session(pool, hashed, idle_seconds=terms.idle_seconds, touch_seconds=touch_seconds)
    if found is not None and found.stale:
        touch_session(pool, found.tenant_id, hashed)
    return found


def session_hash(cookie: str) -> bytes:
    """What of a session's secret is stored."""
    return hashlib.sha256(cookie.encode()).digest()
