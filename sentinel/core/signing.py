"""Signed tokens: every text that we hand out and later trust because we signed it (itsdangerous, HMAC-SHA-256).

A token is `payload.signature`, both base64url without padding, and has exactly one spelling. Each purpose has a salt of
its own, so that a token signed for one purpose is invalid for every other.

A permit token lets one operation start once. It names the permit and the operation's digest; whether the permit is
still valid is in the database. Because it is signed, a forged token or one of another tenant is refused without a
look-up, and issuing it again gives the same token.
"""

from __future__ import annotations

import hashlib
import hmac
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from itsdangerous import BadData, Signer
from itsdangerous.encoding import base64_decode, base64_encode
from itsdangerous.signer import SigningAlgorithm


class Purpose(StrEnum):
    """What a token is for: the salt of its key. Changing a value invalidates every token of that purpose."""

    PERMIT = "sentinel/permit/v1"
    CONFIRM_LINK = "sentinel/confirm-link/v1"
    KNOWN_DEVICE = "sentinel/known-device/v1"


class _KeyedHmac(SigningAlgorithm):
    """HMAC-SHA-256 that processes each key once: every signature starts from a copy of that state."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keyed = {key: hmac.new(key, digestmod=hashlib.sha256) for key in keys}

    def get_signature(self, key: bytes, value: bytes) -> bytes:
        """Return the same signature as itsdangerous' own `HMACAlgorithm`."""
        mac = self._keyed[key].copy()
        mac.update(value)
        return mac.digest()


class TokenSigner:
    """Signs and reads the tokens of one purpose.

    `secrets`, newest first: the first signs, all verify, so that a secret can be rotated. `size`: bytes of every
    payload. Without secrets `sign` raises `ValueError` and `read` accepts no token.
    """

    def __init__(self, secrets: Sequence[str], purpose: Purpose, *, size: int) -> None:
        derived = Signer(list(secrets), salt=purpose, key_derivation="hmac", digest_method=hashlib.sha256)
        # Keys are derived once and not for every token; itsdangerous wants the newest last.
        keys = [derived.derive_key(secret) for secret in reversed(secrets)]
        self._signer = Signer(keys, key_derivation="none", algorithm=_KeyedHmac(keys)) if keys else None
        self._size = size
        self._length = len(base64_encode(bytes(size))) + 1 + len(base64_encode(bytes(32)))

    def sign(self, payload: bytes, *, bound_to: bytes = b"") -> str:
        """Return the token: the same arguments always give the same one. `bound_to` is signed too, but is not in the token."""
        if self._signer is None:
            raise ValueError("no secret to sign with")
        return (base64_encode(payload) + b"." + self._signer.get_signature(bound_to + payload)).decode()

    def read(self, token: str, *, bound_to: bytes = b"") -> bytes | None:
        """Return the payload of a valid token signed with the same `bound_to`; None for anything else."""
        if self._signer is None or len(token) != self._length:
            return None
        head, _, signature = token.partition(".")
        payload = _decoded(head)
        if payload is None or len(payload) != self._size or _decoded(signature) is None:
            return None
        return payload if self._signer.verify_signature(bound_to + payload, signature) else None


@dataclass(frozen=True, slots=True)
class PermitSlip:
    """The content of a valid permit token. `digest` is the operation's, in the "sha256:…" form."""

    permit_id: uuid.UUID
    digest: str


class PermitSigner:
    """Issues and reads permit tokens. `secrets`: the first signs, all verify, so that a secret can be rotated."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._tokens = TokenSigner(secrets, Purpose.PERMIT, size=16 + 32)

    def issue(self, tenant_id: uuid.UUID, permit_id: uuid.UUID, digest: str) -> str:
        """The token for a permit: the same arguments always give the same token."""
        payload = permit_id.bytes + bytes.fromhex(digest.removeprefix("sha256:"))
        return self._tokens.sign(payload, bound_to=tenant_id.bytes)

    def read(self, tenant_id: uuid.UUID, token: str) -> PermitSlip | None:
        """Return the permit and digest that a token issued for this tenant names, or None for anything else."""
        payload = self._tokens.read(token, bound_to=tenant_id.bytes)
        if payload is None:
            return None
        return PermitSlip(uuid.UUID(bytes=payload[:16]), "sha256:" + payload[16:].hex())


def _decoded(text: str) -> bytes | None:
    """Return the bytes of a base64url text; None unless it is their one canonical spelling."""
    try:
        data = base64_decode(text)
    except BadData:
        return None
    return data if base64_encode(data).decode() == text else None
