"""Proof packs: the public, hash-only record of one decision (`docs/CONTRACT.md` §5).

The pack is finished by the database, which alone knows the time, the final verdict, the reason and what else fired. So it leaves here as
three pieces of canonical JSON around what it adds; `assemble_pack` is the same concatenation, for tests and for reading.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from sentinel.core.canonical import canonical_json, sha256_hex
from sentinel.core.decision import Decision
from sentinel.core.errors import InvalidInput
from sentinel.core.money import money_out
from sentinel.core.operation import Operation

REDACTION = "customer data hidden"
HASH_ONLY = "hash-only proof"
MAX_EVIDENCE_BYTES = 4096
"""What a decision keeps of an evidence context, in canonical bytes; more is refused, not cut."""


def commitment(purpose: str, salt: str, text: str) -> str:
    """A salted SHA-256: without the 32 private bytes of `salt` (hex) amounts and accounts cannot be guessed by trial."""
    return sha256_hex(b"sentinel/" + purpose.encode() + b"\0" + bytes.fromhex(salt) + text.encode())


def facts_commitment(salt: str, *, operation_canonical: str, basis: str | None, tightened: Sequence[str]) -> str:
    """What a pack's facts_commitment commits to: the operation, what was read beside it, and the ids of all that fired.

    `basis` is `decision_basis`; `tightened` is what the database added (`operation_states.tightened`). The same words as
    `sentinel.facts_commitment`. Without a basis, as before evidence was kept, the params alone.
    """
    if basis is None:
        return commitment("facts", salt, canonical_json(json.loads(operation_canonical)["params"]))
    fired = canonical_json(list(tightened)) if tightened else "[]"
    return commitment("facts", salt, f'{{"basis":{basis},"operation":{operation_canonical},"tightened":{fired}}}')


def decision_basis(
    decision: Decision, evidence: Mapping[str, Any], *, read_at: datetime | None = None, by_worker: bool = False
) -> str:
    """What a policy decided on beside the operation, canonical: the declared evidence, the rules that fired, the clock if read.

    `by_worker`: whether who asked could vouch for a worker's facts.

    Raises `InvalidInput` where the declared evidence is larger than is kept.
    """
    basis: dict[str, Any] = {
        "evidence": evidence,
        "rules": [one.rule_id for one in decision.findings if not one.failed],
    }
    unanswered = [one.rule_id for one in decision.findings if one.failed]
    if unanswered:
        basis["unanswered"] = unanswered
    if by_worker:
        basis["asked_by"] = "worker"
    if read_at is not None:
        basis["now"] = read_at.astimezone(UTC).isoformat()
    text = canonical_json(basis)
    if evidence and len(canonical_json(evidence).encode()) > MAX_EVIDENCE_BYTES:
        raise InvalidInput.of(
            "evidence_context", f"the facts that the policy reads take more than {MAX_EVIDENCE_BYTES} bytes"
        )
    return text


def pack_parts(operation: Operation, decision: Decision, *, proof_id: str, salt: str) -> tuple[str, str, str]:
    """The pack's canonical text without what the database adds, cut where that belongs.

    Written out, its names in canonical order: most of it is the same from request to request.
    """
    money, ledger_entry_id, refund_id = (
        operation.amount,
        operation.param("ledger_entry_id"),
        operation.param("refund_id"),
    )
    amount = "" if money is None else f',"amount":{canonical_json(money_out(money))}'
    # Identifiers of a checked operation: their alphabet has nothing that JSON would escape.
    ledger = "" if ledger_entry_id is None else f'"ledger_entry_id":"{ledger_entry_id}",'
    refund = "" if refund_id is None else f'"refund_id":"{refund_id}",'
    digest = commitment("operation", salt, operation.canonical)
    policy = _policy_part(decision.policy_digest, decision.policy_label, decision.policy_version)
    return (
        f'{_asker_part(operation.action, operation.agent_id)}{amount},"decided_at":"',
        f',{ledger}"operation_digest":"{digest}",{policy},"proof_id":"{proof_id}","proof_status":"{HASH_ONLY}","reason_code":"',
        f'","redaction_status":"{REDACTION}",{refund}"signature_status":"{HASH_ONLY}"}}',
    )


@lru_cache(maxsize=4096)
def _asker_part(action: str, agent_id: str) -> str:
    return canonical_json({"action": action, "agent_id": agent_id})[:-1]


@lru_cache(maxsize=256)
def _policy_part(digest: str, label: str, version: str) -> str:
    return canonical_json({"policy_digest": digest, "policy_label": label, "policy_version": version})[1:-1]


def assemble_pack(
    parts: tuple[str, str, str], *, decided_at: str, decision: str, facts: str, latency_ms: int, reason_code: str
) -> str:
    """The whole pack without its hash, as the database writes it."""
    added = f'{decided_at}","decision":"{decision}","facts_commitment":"{facts}","latency_ms":{latency_ms}'
    return f"{parts[0]}{added}{parts[1]}{reason_code}{parts[2]}"


def pack_hash(pack: Mapping[str, Any]) -> str:
    """The hash a pack must carry: over its canonical JSON without `hash`. Anyone can recompute it."""
    return sha256_hex(canonical_json({key: value for key, value in pack.items() if key != "hash"}))


def is_intact(pack: Mapping[str, Any]) -> bool:
    """Whether a pack carries the hash of its own content."""
    return pack.get("hash") == pack_hash(pack)


def opens(pack: Mapping[str, Any], *, salt: str, operation_canonical: str) -> bool:
    """Whether a private operation and its salt are the ones a pack commits to: for auditors."""
    return commitment("operation", salt, operation_canonical) == pack.get("operation_digest")


def opens_facts(
    pack: Mapping[str, Any], *, salt: str, operation_canonical: str, basis: str | None, tightened: Sequence[str]
) -> bool:
    """Whether what is kept of a decision's facts is what its pack commits to: for auditors."""
    found = facts_commitment(salt, operation_canonical=operation_canonical, basis=basis, tightened=tightened)
    return found == pack.get("facts_commitment")
