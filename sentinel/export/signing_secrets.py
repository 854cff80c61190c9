"""Signing secrets of webhooks, derived from the sender's setting: the database and the console have none of them.

A secret is HMAC-SHA-256 of the endpoint's id and the number of its secret, under a key of `SENTINEL_EXPORT_SECRETS`. A rotation of
one webhook counts its number up; a new first setting rotates all of them. While both the old and the new are good, a message
is signed with both.
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
    """The settings' secrets, newest first."""

    settings: Sequence[str] = field(repr=False)

    def keys(self, endpoint_id: uuid.UUID, number: int, *, old_too: bool) -> list[bytes]:
        """What a message is signed with, the newest first; `old_too`: also with the secret before the latest rotation."""
        numbers = [number, number - 1] if old_too and number > 1 else [number]
        return [_derived(setting, endpoint_id, one) for one in numbers for setting in self.settings]

    def shown(self, endpoint_id: uuid.UUID, number: int) -> str:
        """The newest secret, as a receiver takes it."""
        return SECRET_PREFIX + base64.b64encode(_derived(self.settings[0], endpoint_id, number)).decode()


def _derived(setting: str, endpoint_id: uuid.UUID, number: int) -> bytes:
    return hmac.digest(setting.encode(), f"sentinel/webhook/{endpoint_id}/{number}".encode(), "sha256")
