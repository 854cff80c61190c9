"""Known devices: browsers that signed in before, by the hash of the random name in their cookie. They expire by the database's clock."""

from __future__ import annotations

import hashlib
import secrets

from ops_console.accounts.sign_in_attempts import account_hash
from sentinel.core.signing import Purpose, TokenSigner
from sentinel.store.database import Pool
from sentinel.store.queries import changed, scalar

KNOWN_SECONDS = 90 * 86400
"""How long a browser stays known after its last successful sign-in."""

IS_KNOWN = """
select exists (select from sentinel.known_devices where device_hash = %(device_hash)s and account_hash = %(account_hash)s
               and last_signed_in_at > clock_timestamp() - make_interval(secs => %(known_seconds)s))
"""
# Deletes expired devices along the way; nothing else does.
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
    """Whether the browser signed in as `email` within `KNOWN_SECONDS`."""
    return bool(scalar(pool, IS_KNOWN, _fields(email, device_hash)))


def remember(pool: Pool, email: str, device_hash: bytes) -> None:
    """Record that the browser signed in as `email` now."""
    changed(pool, REMEMBER, _fields(email, device_hash))


def forget(pool: Pool, email: str, device_hash: bytes) -> None:
    """Treat the browser as unknown, even with its cookie, until the person signs in from it again."""
    changed(pool, FORGET, _fields(email, device_hash))


def _fields(email: str, device_hash: bytes) -> dict[str, bytes | int]:
    return {"device_hash": device_hash, "account_hash": account_hash(email), "known_seconds": KNOWN_SECONDS}


class Devices:
    """Makes and verifies the cookie's value. The first of the secrets signs, all of them verify; without any, no device is known."""

    def __init__(self, settings: tuple[str, ...]) -> None:
        self._tokens = TokenSigner(settings, Purpose.KNOWN_DEVICE, size=16) if settings else None

    def new(self, email: str) -> str | None:
        """Make a cookie value for a browser that just signed in as `email`; None without a secret."""
        return self._tokens.sign(secrets.token_bytes(16), bound_to=email.encode()) if self._tokens else None

    def known(self, value: str, email: str) -> bytes | None:
        """Return the hash under which the browser's attempts are counted; None if the cookie was not made for `email`.

        Whether the device has expired is for the database to say (`is_known`).
        """
        name = self._tokens.read(value, bound_to=email.encode()) if self._tokens else None
        return None if name is None else hashlib.sha256(b"device " + name).digest()
