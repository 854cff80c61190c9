"""Signing secrets of webhooks, derived from the sender's setting: neither the database nor the console has them.

A secret is HMAC-SHA-256 of the endpoint's id and the number of its secret, under a key of `SENTINEL_EXPORT_SECRETS`.
Rotating the secret of one webhook increments its number; a new first key in the setting rotates all of them. While the
old and the new secret are both valid, a message is signed with both.
"""

from __future__ import annotations

import base64
import hmac
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from sentinel.platform.outbound.standard_webhooks import SECRET_PREFIX


@dataclass(frozen=True, slots=True)
class SigningSecrets:
    """The secrets in `SENTINEL_EXPORT_SECRETS`, newest first."""

    settings: Sequence[str] = field(repr=False)

    def keys(self, endpoint_id: uuid.UUID, number: int, *, old_too: bool) -> list[bytes]:
        """Return the keys that sign a message, the newest first; `old_too`: also those of the secret before the latest rotation."""
        numbers = [number, number - 1] if old_too and number > 1 else [number]
        return [_derived(setting, endpoint_id, one) for one in numbers for setting in self.settings]

    def shown(self, endpoint_id: uuid.UUID, number: int) -> str:
        """Return the newest secret, in the text form that a receiver is configured with."""
        return SECRET_PREFIX + base64.b64encode(_derived(self.settings[0], endpoint_id, number)).decode()


def _derived(setting: str, endpoint_id: uuid.UUID, number: int) -> bytes:
    return hmac.digest(setting.encode(), f"sentinel/webhook/{endpoint_id}/{number}".encode(), "sha256")
