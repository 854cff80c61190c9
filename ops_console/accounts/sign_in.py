"""Sign a person in: count the attempt, check password and code in constant time, open a session kept in the database.

Guesses are throttled per account, per network and in total (`sign_in_attempts.py`), so that guessing is slow but nobody
can lock a person out from everywhere. Wrong password, unknown address, deactivated operator, missing and wrong code get
the same refusal after the same time.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

import structlog

from ops_console.accounts import known_devices
from ops_console.accounts.known_devices import Devices
from ops_console.accounts.operators import Credentials, credentials
from ops_console.accounts.passwords import is_right
from ops_console.accounts.sessions import SignedIn, find_session, insert_session, revoke_session, touch_session
from ops_console.accounts.sign_in_attempts import Attempt, Throttle, begin_attempt, mark_refused, mark_success
from ops_console.accounts.totp import Vault, totp_step_of, use_code
from sentinel.authority.actor import Actor
from sentinel.core.errors import EngineUnavailable, RateLimited, StillDeciding, Unauthenticated
from sentinel.core.operation import UNSAFE_TEXT
from sentinel.store.database import Pool

Done = TypeVar("Done")

log = structlog.get_logger("sentinel.sign_in")

_MOST_ADDRESS, _MOST_USER_AGENT = 64, 200
TOO_MANY = "Too many sign-in attempts; try again later."


@dataclass(frozen=True, slots=True)
class SessionTerms:
    """How long a session lasts unused, how long at most, and how long a step-up in it counts; in seconds."""

    idle_seconds: float = 900
    absolute_seconds: float = 28800
    step_up_seconds: float = 300


@dataclass(frozen=True, slots=True)
class PresentedCredentials:
    """What somebody presents to sign in. `tenant` (label or id) is needed if the address is in several tenants.

    `kind` is "page" for a browser, else "api"; `device` is the known device's cookie, "" if there is none.
    """

    email: str
    password: str
    code: str | None = None
    tenant: str | None = None
    address: str = "unknown"
    user_agent: str = ""
    device: str = ""
    kind: str = "api"


@dataclass(frozen=True, slots=True)
class Authenticator:
    """What checking credentials needs besides the database."""

    terms: SessionTerms = SessionTerms()
    vault: Vault = Vault(())
    devices: Devices = Devices(())
    throttle: Throttle = Throttle()


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """A new session. `cookie` is the secret, of which the database has only the hash. `device` is the known device's cookie."""

    cookie: str
    csrf_token: str
    expires_at: datetime
    actor: Actor
    tenant_label: str
    device: str | None


def sign_in(pool: Pool, given: PresentedCredentials, authenticator: Authenticator) -> OpenedSession:
    """Check the credentials and open a session.

    Raises `RateLimited` before the password is checked, `Unauthenticated` for everything that is wrong.
    """
    email = given.email.strip().lower()
    device_hash = _known_device(pool, email, given, authenticator)
    attempt = begin_attempt(
        pool, email=email, address=given.address, throttle=authenticator.throttle, device_hash=device_hash, with_code=bool(given.code)
    )  # fmt: skip
    if attempt.attempt_id is None:
        if attempt.is_spent and device_hash is not None:
            known_devices.forget(pool, email, device_hash)
        raise RateLimited(attempt.retry_after_seconds, TOO_MANY)
    who = _who_fits(pool, email, given, authenticator.vault, attempt)
    # New values at every sign-in, against session fixation.
    cookie, csrf_token = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
    expires_at = insert_session(
        pool, tenant_id=who.tenant_id, operator_id=who.operator_id, session_hash=session_hash(cookie), csrf_token=csrf_token,
        kind=given.kind, address=cleaned(given.address, _MOST_ADDRESS), user_agent=cleaned(given.user_agent, _MOST_USER_AGENT),
        absolute_seconds=authenticator.terms.absolute_seconds, password_hash=who.password_hash,
        changed_by_another=who.changed_by_another,
    )  # fmt: skip
    if expires_at is None:
        # The account was changed while its credentials were checked, or its password works once and was used.
        mark_refused(pool, attempt.attempt_id, email=email, who=None, password_right=False)
        raise Unauthenticated
    # From here on nothing may take the session away: where the password worked once, no other can be opened.
    attempt_id, device = attempt.attempt_id, given.device if device_hash is not None else None
    if_possible(lambda: mark_success(pool, attempt_id))
    actor = Actor(who.tenant_id, who.operator_id, who.email, who.role)
    remembered = if_possible(lambda: _remembered(pool, email, device, authenticator)) if given.kind == "page" else None
    return OpenedSession(cookie, csrf_token, expires_at, actor, who.tenant_label, remembered)


def if_possible(do: Callable[[], Done]) -> Done | None:
    """Do what follows an opened session; None if the database does not answer, and the cause goes to the log."""
    try:
        return do()
    except (EngineUnavailable, StillDeciding) as error:
        log.warning("sign_in_incomplete", cause=error.detail)
        return None


def _known_device(pool: Pool, email: str, given: PresentedCredentials, authenticator: Authenticator) -> bytes | None:
    """Return the hash under which this browser's attempts are counted; None if it is no known device of `email`."""
    device_hash = authenticator.devices.known(given.device, email)
    return device_hash if device_hash is not None and known_devices.is_known(pool, email, device_hash) else None


def _remembered(pool: Pool, email: str, device: str | None, authenticator: Authenticator) -> str | None:
    """Remember a browser that just signed in and return its cookie, the old or a new one; None without a secret to sign it."""
    device = device or authenticator.devices.new(email)
    device_hash = authenticator.devices.known(device, email) if device is not None else None
    if device_hash is not None:
        known_devices.remember(pool, email, device_hash)
    return device


def _who_fits(pool: Pool, email: str, given: PresentedCredentials, vault: Vault, attempt: Attempt) -> Credentials:
    """Return the person and mark their code as used. Password and code are both checked, so that each failure takes the
    same time.

    Raises `Unauthenticated`, after recording the refusal.
    """
    who = credentials(pool, email, given.tenant)
    fits = is_right(who.password_hash if who is not None and who.active else None, given.password)
    has_factor = who is not None and who.factor is not None
    step = totp_step_of(vault, who, given.code)
    is_in = fits and (step is not None if has_factor else not attempt.needs_code)
    # A code that was used before is refused above already; this decides between two concurrent uses of one code.
    is_in = is_in and who is not None and (not has_factor or use_code(pool, vault, who, given.code))
    if who is not None and is_in:
        return who
    assert attempt.attempt_id is not None
    person = (who.tenant_id, who.operator_id) if who is not None else None
    mark_refused(pool, attempt.attempt_id, email=email, who=person, password_right=fits and has_factor)
    raise Unauthenticated


def cleaned(text: str, most: int) -> str:
    """Return text that the request sent, truncated to `most` characters, with unsafe characters replaced."""
    return UNSAFE_TEXT.sub("\N{REPLACEMENT CHARACTER}", text[:most])


def session_of(pool: Pool, cookie: str, terms: SessionTerms, *, is_use: bool = True) -> SignedIn | None:
    """Return the person of a session cookie, or None. `is_use` keeps the session from going idle."""
    hashed = session_hash(cookie)
    found = find_session(
        pool, hashed, idle_seconds=terms.idle_seconds, touch_seconds=min(30.0, terms.idle_seconds / 10),
        step_up_seconds=terms.step_up_seconds,
    )  # fmt: skip
    if found is not None and found.stale and is_use:
        touch_session(pool, found.tenant_id, hashed)
    return found


def session_hash(cookie: str) -> bytes:
    """The SHA-256 of a session's cookie, which is all that is stored of it."""
    return hashlib.sha256(cookie.encode()).digest()


def sign_out(pool: Pool, cookie: str) -> None:
    """Revoke the session of this cookie; an unknown cookie is ignored."""
    revoke_session(pool, session_hash(cookie))
