"""Proof packs: the public, hash-only record of one decision (`CONTRACT.md` §5).

The pack is finished by the database, which alone knows the time, the final verdict and the reason. So it leaves here as
four pieces of canonical JSON around those three; `assemble` is the same concatenation, for tests and for reading.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel.core.canonical import canonical_json, sha256_hex
from sentinel.core.decision import Decision
from sentinel.core.money import money_out
from sentinel.core.operation import Operation

REDACTION = "customer data hidden"
HASH_ONLY = "hash-only proof"


def commitment(purpose: str, salt: str, text: str) -> str:
    """A salted SHA-256: without the 32 private bytes of `salt` (hex) nobody can try out amounts or accounts."""
    return sha256_hex(b"sentinel/" + purpose.encode() + b"\0" + bytes.fromhex(salt) + text.encode())


def pack_parts(operation: Operation, decision: Decision, *, proof_id: str, salt: str) -> tuple[str, str, str, str]:
    """The pack's canonical text without decided_at, decision, latency_ms and reason_code, cut where they belong."""
    head: dict[str, Any] = {"action": operation.action, "agent_id": operation.agent_id}
    if operation.amount is not None:
        head["amount"] = money_out(operation.amount)
    names = {key: operation.param(key) for key in ("ledger_entry_id", "refund_id") if operation.param(key) is not None}
    ledger = {"ledger_entry_id": names["ledger_entry_id"]} if "ledger_entry_id" in names else {}
    middle = {
        **ledger,
        "operation_digest": commitment("operation", salt, operation.canonical),
        "policy_digest": decision.policy_digest,
        "policy_label": decision.policy_label,
        "policy_version": decision.policy_version,
        "proof_id": proof_id,
        "proof_status": HASH_ONLY,
    }
    tail = {"redaction_status": REDACTION, "signature_status": HASH_ONLY}
    if "refund_id" in names:
        tail["refund_id"] = str(names["refund_id"])
    facts = commitment("facts", salt, canonical_json(operation.params))
    return (
        canonical_json(head)[:-1] + ',"decided_at":"',
        f',"facts_commitment":"{facts}","latency_ms":',
        "," + canonical_json(middle)[1:-1] + ',"reason_code":"',
        '",' + canonical_json(tail)[1:],
    )


def assemble(
    parts: tuple[str, str, str, str], *, decided_at: str, decision: str, latency_ms: int, reason_code: str
) -> str:
    """The whole pack without its hash, as the database writes it."""
    return f'{parts[0]}{decided_at}","decision":"{decision}"{parts[1]}{latency_ms}{parts[2]}{reason_code}{parts[3]}'


def pack_hash(pack: Mapping[str, Any]) -> str:
    """The hash a pack must carry: over its canonical JSON without `hash`. Anyone can recompute it."""
    return sha256_hex(canonical_json({key: value for key, value in pack.items() if key != "hash"}))


def is_intact(pack: Mapping[str, Any]) -> bool:
    """Whether a pack carries the hash of its own content."""
    return pack.get("hash") == pack_hash(pack)


def opens(pack: Mapping[str, Any], *, salt: str, operation_canonical: str) -> bool:
    """Whether a private operation and its salt are the ones a pack commits to: for auditors."""
    return commitment("operation", salt, operation_canonical) == pack.get("operation_digest")
