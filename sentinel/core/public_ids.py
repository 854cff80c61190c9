"""Generates public identifiers: an agent's own identifiers never appear on a public page (`docs/CONTRACT.md` §4).

A public id is a keyed digest of kind, tenant and value: the same thing has the same one every time, two tenants never share
one, and nobody without the secret can try out what a public id might stand for.
"""

from __future__ import annotations

import base64
import hmac
import re
import uuid
from enum import StrEnum

DIGITS = 16
"""Base32 digits after the prefix: 80 bits, so that two values of an installation do not collide."""


class Kind(StrEnum):
    """What a public id stands for, and its prefix."""

    AGENT = "pag"
    ACTION = "pac"
    LEDGER_ENTRY = "ple"
    REFUND = "prf"


PUBLIC_ID = re.compile(f"(?:{'|'.join(Kind)})_[a-z2-7]{{{DIGITS}}}")


def is_public_id(text: str) -> bool:
    """Whether a text has the form of a public id."""
    return PUBLIC_ID.fullmatch(text) is not None


class PublicIdGenerator:
    """Mints public ids with one secret. Raises `ValueError` for an empty one."""

    def __init__(self, secret: str) -> None:
        if not secret:
            raise ValueError("public ids need a secret")
        # The key is derived for this purpose: values made with the same secret for other purposes are not valid here.
        self._key = hmac.digest(secret.encode(), b"sentinel/public-id/v1", "sha256")
        self.key_id = hmac.digest(secret.encode(), b"sentinel/public-id/key-id/v1", "sha256").hex()[:16]
        """Identifies the secret without revealing it."""

    def mint(self, kind: Kind, tenant_id: uuid.UUID, value: str) -> str:
        """Return the public id of a tenant's `value`, e.g. "prf_" and 16 base32 digits."""
        message = kind.encode() + b"\0" + tenant_id.bytes + value.encode()
        digest = hmac.digest(self._key, message, "sha256")
        return f"{kind}_{base64.b32encode(digest[: DIGITS * 5 // 8]).decode().lower()}"
