"""Confirm links: the signed text that lets whoever holds it see one confirm card and answer it once.

A link names tenant, card, the end of its time and the digest of what the card shows. Signing it means that a guessed or
altered one is refused without a look-up; whether the card still waits for an answer is for the database to say.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sentinel.core.canonical import canonical_json, sha256_hex

_VERSION = b"\x01"
_BODY_BYTES = 1 + 16 + 16 + 8 + 32
_MAC_BYTES = 32
TOKEN_LENGTH = 140
"""Characters of a token: 105 bytes are base64 without padding and without a bit to spare, so each character counts."""
_TOKEN = re.compile(f"[A-Za-z0-9_-]{{{TOKEN_LENGTH}}}")


@dataclass(frozen=True, slots=True)
class ConfirmLink:
    """What a genuine token says. `digest` is the card's, "sha256:…"; `expires_at` is UTC, whole seconds."""

    tenant_id: uuid.UUID
    confirmation_id: uuid.UUID
    digest: str
    expires_at: datetime

    def is_over(self, now: datetime) -> bool:
        """Whether its time has ended; `now` is the database's."""
        return now >= self.expires_at


class ConfirmLinks:
    """Issues and reads tokens. `secrets`, newest first: the first signs, all verify, so that one can be rotated.

    Without secrets nothing can be issued (`ValueError`) and every token is a stranger's.
    """

    def __init__(self, secrets: Sequence[str]) -> None:
        # A key of its own per purpose: what the same secret signed for a permit is worth nothing here.
        self._keys = [hmac.digest(secret.encode(), b"sentinel/confirm-link/v1", "sha256") for secret in secrets]

    def issue(self, link: ConfirmLink) -> str:
        """The token of a link: base64url, the same arguments always give the same token."""
        if not self._keys:
            raise ValueError("no secret to sign confirm links with")
        body = _VERSION + link.tenant_id.bytes + link.confirmation_id.bytes + _seconds(link.expires_at)
        body += bytes.fromhex(link.digest.removeprefix("sha256:"))
        return base64.urlsafe_b64encode(body + _sign(self._keys[0], body)).decode()

    def read(self, token: str) -> ConfirmLink | None:
        """The link inside a genuine token, whether its time is over or not; None for anything else."""
        data = _bytes(token)
        body, mac = data[:_BODY_BYTES], data[_BODY_BYTES:]
        # Every key is tried, whichever fits and whatever arrived: the time tells nothing.
        fits = [hmac.compare_digest(_sign(key, body), mac) for key in self._keys]
        return _parse(body) if any(fits) and body.startswith(_VERSION) else None


def confirmation_digest(
    *, tenant_id: uuid.UUID, ledger_entry_id: str, refund_id: str, order_ref: str | None, amount_minor: int,
    currency: str, channel: str, scenario: str,
) -> str:  # fmt: skip
    """ "sha256:…" over the canonical JSON of everything a confirmation is about; a confirmation counts only for it."""
    return sha256_hex(canonical_json({
        "tenant": str(tenant_id), "ledger_entry_id": ledger_entry_id, "refund_id": refund_id, "order_ref": order_ref,
        "amount_minor": amount_minor, "currency": currency, "channel": channel, "scenario": scenario,
    }))  # fmt: skip


def _sign(key: bytes, body: bytes) -> bytes:
    return hmac.digest(key, body, hashlib.sha256)


def _seconds(moment: datetime) -> bytes:
    # Rounded down: a link never lives longer than its card.
    return int(moment.timestamp()).to_bytes(8, "big")


def _parse(body: bytes) -> ConfirmLink:
    return ConfirmLink(
        tenant_id=uuid.UUID(bytes=body[1:17]),
        confirmation_id=uuid.UUID(bytes=body[17:33]),
        expires_at=datetime.fromtimestamp(int.from_bytes(body[33:41], "big"), UTC),
        digest="sha256:" + body[41:73].hex(),
    )


def _bytes(token: str) -> bytes:
    """The token's bytes; as many zeros for what is no token, so that it is as much work as a forged one."""
    try:
        if not _TOKEN.fullmatch(token):
            raise ValueError
        return base64.b64decode(token, altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        return bytes(_BODY_BYTES + _MAC_BYTES)
