"""Permit terms: the signed slip that lets one operation start once.

The slip names the permit and the operation's digest; the database holds whether it is still good. Signing it means that
a forged or foreign slip is refused without a look-up, and that re-delivery gives the same slip again.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from sentinel.core.signing import Purpose, TokenSigner


@dataclass(frozen=True, slots=True)
class PermitSlip:
    """What a genuine token says. `digest` is the operation's, in the "sha256:…" form."""

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
        """The slip inside a token issued for this tenant, or None for anything else."""
        payload = self._tokens.read(token, bound_to=tenant_id.bytes)
        if payload is None:
            return None
        return PermitSlip(uuid.UUID(bytes=payload[:16]), "sha256:" + payload[16:].hex())
