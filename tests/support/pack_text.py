"""The text of a proof pack, assembled as the database does it (`sentinel.pack_text`)."""

from __future__ import annotations

import re

from sentinel.core.proof import PackValues

_PLACE = re.compile(r"%(?:(\d+)\$s|%)")


def assemble_pack(
    template: str, values: PackValues, *, decided_at: str, decision: str, facts: bytes, latency_ms: int, event_hex: str,
    reason_code: str,
) -> str:  # fmt: skip
    """Return the whole pack without its hash; `event_hex` are the hex digits of the event's id."""
    filled = (
        values.amount, decided_at, decision, facts.hex(), latency_ms, values.ledger_entry_id, values.operation_commitment.hex(),
        event_hex, reason_code, values.refund_id,
    )  # fmt: skip
    return _PLACE.sub(lambda found: "%" if found[1] is None else str(filled[int(found[1]) - 1]), template)
