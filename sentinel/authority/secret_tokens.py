"""API keys and tokens: a known prefix, 178 random bits, a checksum; stored only as SHA-256.

The prefix lets scanners find a leaked one, the checksum lets a typing error be refused without asking the database.
A plain SHA-256 is enough at rest because nobody can try out 178 random bits.
"""

from __future__ import annotations

import hashlib
import secrets
import zlib

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_KNOWN = frozenset(_DIGITS)
RANDOM_LENGTH = 30
CHECKSUM_LENGTH = 6


def make_secret(prefix: str) -> str:
    """`prefix`, 30 random base62 digits, 6 digits of their CRC-32."""
    body = prefix + "".join(secrets.choice(_DIGITS) for _ in range(RANDOM_LENGTH))
    return body + _checksum(body)


def is_well_formed(secret: str, prefixes: tuple[str, ...]) -> bool:
    """Whether `secret` has one of the prefixes, the length, the digits and a right checksum."""
    prefix = next((known for known in prefixes if secret.startswith(known)), None)
    if prefix is None or len(secret) != len(prefix) + RANDOM_LENGTH + CHECKSUM_LENGTH:
        return False
    return _KNOWN.issuperset(secret[len(prefix) :]) and secret[-CHECKSUM_LENGTH:] == _checksum(
        secret[:-CHECKSUM_LENGTH]
    )


def secret_hash(secret: str) -> bytes:
    """What is stored and looked up: 32 bytes of SHA-256."""
    return hashlib.sha256(secret.encode()).digest()


def _checksum(body: str) -> str:
    value, text = zlib.crc32(body.encode()), ""
    for _ in range(CHECKSUM_LENGTH):
        value, digit = divmod(value, len(_DIGITS))
        text = _DIGITS[digit] + text
    return text
