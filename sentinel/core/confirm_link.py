"""Confirm links: the signed text that lets whoever holds it see one confirm card and answer it once.

A link names tenant, card, the end of its time and the digest of what the card shows. Signing it means that a guessed or
altered one is refused without a look-up; whether the card still waits for an answer is for the database to say.
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
        self._tokens = TokenSigner(secrets, Purpose.CONFIRM_LINK, size=1 + 16 + 16 + 8 + 32)

    def issue(self, link: ConfirmLink) -> str:
        """The token of a link: the same arguments always give the same token."""
        body = _VERSION + link.tenant_id.bytes + link.confirmation_id.bytes + _seconds(link.expires_at)
        return self._tokens.sign(body + bytes.fromhex(link.digest.removeprefix("sha256:")))

    def read(self, token: str) -> ConfirmLink | None:
        """The link inside a genuine token, whether its time is over or not; None for anything else."""
        body = self._tokens.read(token)
        return _parse(body) if body is not None and body.startswith(_VERSION) else None


def confirmation_digest(
    *, tenant_id: uuid.UUID, ledger_entry_id: str, refund_id: str, order_ref: str | None, amount_minor: int,
    currency: str, channel: str, scenario: str,
) -> str:  # fmt: skip
    """ "sha256:…" over the canonical JSON of everything a confirmation is about; a confirmation counts only for it."""
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
