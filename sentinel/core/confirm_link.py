"""Confirm links: signed tokens, each of which lets its holder see one confirm card and answer it once.

A link names the tenant, the card, its expiry and the digest of what the card shows. Because it is signed, a guessed or
altered link is refused without a database look-up; whether the card still waits for an answer only the database knows.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sentinel.core.canonical import canonical_json, sha256_hex
from sentinel.core.signing import Purpose, TokenSigner

_VERSION = b"\x01"


@dataclass(frozen=True, slots=True)
class ConfirmLink:
    """The content of a valid token. `digest` is the card's, "sha256:…"; `expires_at` is UTC, whole seconds."""

    tenant_id: uuid.UUID
    confirmation_id: uuid.UUID
    digest: str
    expires_at: datetime

    def is_over(self, now: datetime) -> bool:
        """Whether the link has expired; `now` is the database's time."""
        return now >= self.expires_at


class ConfirmLinks:
    """Issues and reads tokens. `secrets`, newest first: the first signs, all verify, so that a secret can be rotated.

    Without secrets `issue` raises `ValueError` and `read` accepts no token.
    """

    def __init__(self, secrets: Sequence[str]) -> None:
        self._tokens = TokenSigner(secrets, Purpose.CONFIRM_LINK, size=1 + 16 + 16 + 8 + 32)

    def issue(self, link: ConfirmLink) -> str:
        """The token of a link: the same arguments always give the same token."""
        body = _VERSION + link.tenant_id.bytes + link.confirmation_id.bytes + _seconds(link.expires_at)
        return self._tokens.sign(body + bytes.fromhex(link.digest.removeprefix("sha256:")))

    def read(self, token: str) -> ConfirmLink | None:
        """Return the link in a valid token, also if the link has expired; None for anything else."""
        body = self._tokens.read(token)
        return _parse(body) if body is not None and body.startswith(_VERSION) else None


def confirmation_digest(
    *, tenant_id: uuid.UUID, ledger_entry_id: str, refund_id: str, order_ref: str | None, amount_minor: int,
    currency: str, channel: str, scenario: str,
) -> str:  # fmt: skip
    """Return "sha256:…" over the canonical JSON of all that the customer confirms; a confirmation is valid for this digest only."""
    return sha256_hex(canonical_json({
        "tenant": str(tenant_id), "ledger_entry_id": ledger_entry_id, "refund_id": refund_id, "order_ref": order_ref,
        "amount_minor": amount_minor, "currency": currency, "channel": channel, "scenario": scenario,
    }))  # fmt: skip


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
