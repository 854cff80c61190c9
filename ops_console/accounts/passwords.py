"""Operators' passwords: argon2id with 19 MiB, two passes, one lane. Checking takes the same time for unknown people.

Every way to set one goes through `hash_password`, which refuses what is too short and what is easy to guess (zxcvbn, whose
lists of common passwords, names and words come with it: nothing is asked over the network).
"""

from __future__ import annotations

import re
import secrets

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from sentinel.core.errors import InvalidInput
from sentinel.core.operation import check_text

LEAST, MOST = 12, 256
LEAST_SCORE = 3
"""On zxcvbn's scale of 0 to 4: 3 means a hundred million guesses, "safely unguessable" with throttled guesses and a slow hash."""
EASY = "is a common password or close to one; use three or four unrelated words, or a password manager"
# zxcvbn's time grows steeply with the length; if the first 32 characters are hard to guess, the rest does not matter.
_JUDGED = 32
_PRODUCT = ("sentinel", "haltstate")

_hasher = PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)
# The hash of 32 random bytes that nobody has kept, with the parameters above: an unknown account is checked against it,
# so that the check takes the same time.
_NOBODY = "$argon2id$v=19$m=19456,t=2,p=1$kR/jtTFkuMBmIq5ErRH6XA$QPwVorIZxCrxr55UD0Zm1WyHEOu7WNBjoOHNWkGWvgU"


def hash_password(password: str, *, email: str = "", field: str = "password") -> str:
    """Return the argon2id hash of a new password. `email` is its owner's address, `field` the password's name in the
    form.

    Raises `InvalidInput` (of `field`) for one that is too short, too long, common, or derived from its owner's address,
    or that has characters with which a sign-in is refused.
    """
    if not LEAST <= len(password) <= MOST:
        raise InvalidInput.of(field, f"must have {LEAST} to {MOST} characters")
    check_text(password, field)
    if _is_easy(password, email):
        raise InvalidInput.of(field, EASY)
    return _hasher.hash(password)


def _is_easy(password: str, email: str) -> bool:
    from zxcvbn import zxcvbn  # its lists take long to load, and few commands set a password

    local = email.lower().partition("@")[0]
    known = [*_PRODUCT, email, local, re.sub(r"[^a-z0-9]", "", local), *re.split(r"[^a-z0-9]+", email.lower())]
    return bool(zxcvbn(password[:_JUDGED], [one for one in known if one])["score"] < LEAST_SCORE)


def is_right(password_hash: str | None, password: str) -> bool:
    """Whether the password matches the hash. Without a hash the answer is False after the same amount of work."""
    try:
        fits = _hasher.verify(password_hash or _NOBODY, password)
    except (VerificationError, InvalidHashError, ValueError):
        return False
    return fits and password_hash is not None


def make_password() -> str:
    """A password of 120 random bits."""
    return secrets.token_urlsafe(15)
