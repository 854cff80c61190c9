"""Permit terms: the signed slip that lets one operation start once.

The slip names the permit and the operation's digest; the database holds whether it is still good. Signing it means that
a forged or foreign slip is refused without a look-up, and that re-delivery gives the same slip again.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import uuid
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PermitSlip:
    """What a genuine token says. `digest` is the operation's, in the "sha256:…" form."""

    permit_id: uuid.UUID
    digest: str


class PermitSigner:
    """Issues and reads permit tokens. `secrets`: the first signs, all verify, so that a secret can be rotated."""

    def __init__(self, secrets: Sequence[str]) -> None:
        # One derived key per purpose: a signature made for something else under the same secret is worth nothing here.
        derived = (hmac.digest(secret.encode(), b"sentinel/permit/v1", "sha256") for secret in secrets)
        # Begun once and copied: a whole digest at once gives up the interpreter, which costs more than the hashing.
        self._keys = [hmac.new(key, digestmod="sha256") for key in derived]

    def issue(self, tenant_id: uuid.UUID, permit_id: uuid.UUID, digest: str) -> str:
        """The token for a permit: the same arguments always give the same token."""
        payload = permit_id.bytes + bytes.fromhex(digest.removeprefix("sha256:"))
        return _text(payload) + "." + _text(self._sign(self._keys[0], tenant_id, payload))

    def read(self, tenant_id: uuid.UUID, token: str) -> PermitSlip | None:
        """The slip inside a token issued for this tenant, or None for anything else."""
        head, _, signature = token.partition(".")
        try:
            payload, given = _bytes(head), _bytes(signature)
        except (ValueError, binascii.Error):
            return None
        if len(payload) != 48 or not any(
            hmac.compare_digest(self._sign(key, tenant_id, payload), given) for key in self._keys
        ):
            return None
        return PermitSlip(uuid.UUID(bytes=payload[:16]), "sha256:" + payload[16:].hex())

    @staticmethod
    def _sign(key: hmac.HMAC, tenant_id: uuid.UUID, payload: bytes) -> bytes:
        signature = key.copy()
        signature.update(tenant_id.bytes + payload)
        return signature.digest()


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    if not text.isascii():
        raise ValueError("not base64")
    data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    if _text(data) != text:
        raise ValueError("another spelling of the same bytes")
    return data
