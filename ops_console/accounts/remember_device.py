"""Browsers that came in before as a person: a signed name in a cookie gives such a browser a throttle of its own.

Whoever hammers an account from outside does not lock its person out of a known browser (`GUARANTEES.md` G37). The cookie
opens nothing, and is forgotten 90 days after its last good sign-in; without a setting to sign with no browser is known.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

from ops_console.accounts.prove_second_factor import derived_key

_NAME_LENGTH = 22


class Devices:
    """Makes and recognises the cookie's value. The first setting signs, all verify."""

    def __init__(self, settings: tuple[str, ...]) -> None:
        self._keys = [derived_key(one, b"sentinel known device") for one in settings]

    def new(self, email: str) -> str | None:
        """A value for a browser that just came in as `email`."""
        if not self._keys:
            return None
        name = secrets.token_urlsafe(16)
        return name + _signature(self._keys[0], name, email)

    def known(self, value: str, email: str) -> bytes | None:
        """What its attempts are counted under; None for a browser that never came in as `email`.

        Whether that is too long ago the database says (`store/known_devices.py`).
        """
        name, given = value[:_NAME_LENGTH], value[_NAME_LENGTH:]
        if not any(
            hmac.compare_digest(_signature(key, name, email).encode(), given.encode(errors="replace"))
            for key in self._keys
        ):
            return None
        return hashlib.sha256(f"device {name}".encode()).digest()


def _signature(key: bytes, name: str, email: str) -> str:
    return hmac.new(key, f"{name} {email}".encode(), hashlib.sha256).hexdigest()
