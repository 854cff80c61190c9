"""Operators' passwords: argon2id with 19 MiB, two passes, one lane. Checking takes the same time for unknown people."""

from __future__ import annotations

import secrets

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from sentinel.core.errors import InvalidInput

LEAST, MOST = 12, 256

_hasher = PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)
# The hash of 32 random bytes nobody has kept, with the parameters above: what an unknown account is checked against.
_NOBODY = "$argon2id$v=19$m=19456,t=2,p=1$kR/jtTFkuMBmIq5ErRH6XA$QPwVorIZxCrxr55UD0Zm1WyHEOu7WNBjoOHNWkGWvgU"


def hash_password(password: str) -> str:
    """The argon2id hash to keep. Raises `InvalidInput` for one that is too short or too long."""
    if not LEAST <= len(password) <= MOST:
        raise InvalidInput.of("password", f"must have {LEAST} to {MOST} characters")
    return _hasher.hash(password)


def is_right(password_hash: str | None, password: str) -> bool:
    """Whether the password fits; without a hash the same work is done and the answer is no."""
    try:
        fits = _hasher.verify(password_hash or _NOBODY, password)
    except (VerificationError, InvalidHashError, ValueError):
        return False
    return fits and password_hash is not None


def make_password() -> str:
    """A password of 120 random bits."""
    return secrets.token_urlsafe(15)
