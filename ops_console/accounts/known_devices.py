"""Browsers that came in before, by the hash of the name in their cookie: the database's clock says how long they stay known."""

from __future__ import annotations

import hashlib
import secrets

from ops_console.accounts.sign_in_attempts import account_hash
from sentinel.core.signing import Purpose, TokenSigner
from sentinel.store.database import Pool
from sentinel.store.queries import changed, scalar

KNOWN_SECONDS = 90 * 86400
"""How long after its last good sign-in a browser is known."""

IS_KNOWN = """
select exists (select from sentinel.known_devices where device_hash = %(device_hash)s and account_hash = %(account_hash)s
               and last_signed_in_at > clock_timestamp() - make_interval(secs => %(known_seconds)s))
"""
# What is over goes by the way; nothing else ever looks at it.
REMEMBER = """
with over as (
  delete from sentinel.known_devices
  where last_signed_in_at <= clock_timestamp() - make_interval(secs => %(known_seconds)s) and device_hash <> %(device_hash)s
)
insert into sentinel.known_devices (device_hash, account_hash) values (%(device_hash)s, %(account_hash)s)
on conflict (device_hash) do update set last_signed_in_at = clock_timestamp()
"""
FORGET = "delete from sentinel.known_devices where device_hash = %(device_hash)s and account_hash = %(account_hash)s"


def is_known(pool: Pool, email: str, device_hash: bytes) -> bool:
    """Whether the browser came in as `email` not too long ago."""
    return bool(scalar(pool, IS_KNOWN, _fields(email, device_hash)))


def remember(pool: Pool, email: str, device_hash: bytes) -> None:
    """The browser came in as `email` just now."""
    changed(pool, REMEMBER, _fields(email, device_hash))


def forget(pool: Pool, email: str, device_hash: bytes) -> None:
    """From now on it is any browser, whoever has its cookie, until its person comes in again."""
    changed(pool, FORGET, _fields(email, device_hash))


def _fields(email: str, device_hash: bytes) -> dict[str, bytes | int]:
    return {"device_hash": device_hash, "account_hash": account_hash(email), "known_seconds": KNOWN_SECONDS}


class Devices:
    """Makes and recognises the cookie's value. The first setting signs, all verify."""

    def __init__(self, settings: tuple[str, ...]) -> None:
        self._tokens = TokenSigner(settings, Purpose.KNOWN_DEVICE, size=16) if settings else None

    def new(self, email: str) -> str | None:
        """A value for a browser that just came in as `email`."""
        return self._tokens.sign(secrets.token_bytes(16), bound_to=email.encode()) if self._tokens else None

    def known(self, value: str, email: str) -> bytes | None:
        """What its attempts are counted under; None for a browser that never came in as `email`.

        Whether that is too long ago the database says (`is_known`).
        """
        name = self._tokens.read(value, bound_to=email.encode()) if self._tokens else None
        return None if name is None else hashlib.sha256(b"device " + name).digest()
