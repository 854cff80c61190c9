"""Standard Webhooks 1.0: the names of its headers, and how a message is signed (HMAC-SHA-256 over id, time and body)."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Sequence

ID, TIME, SIGNATURES = "webhook-id", "webhook-timestamp", "webhook-signature"
SECRET_PREFIX = "whsec_"


def signature(key: bytes, message_id: str, seconds: int, body: bytes) -> str:
    """The signature of a message with one key, in base64; `seconds` is the time since the epoch."""
    return base64.b64encode(hmac.digest(key, f"{message_id}.{seconds}.".encode() + body, "sha256")).decode()


def signed_headers(keys: Sequence[bytes], message_id: str, seconds: int, body: bytes) -> dict[str, str]:
    """The three headers of a message, signed with each of `keys`; a receiver needs to know only one of them."""
    signatures = " ".join(f"v1,{signature(key, message_id, seconds, body)}" for key in keys)
    return {ID: message_id, TIME: str(seconds), SIGNATURES: signatures}
