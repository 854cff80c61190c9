"""Proof packs: the public, hash-only record of one decision (`docs/CONTRACT.md` §5).

The database finishes the pack, because only it knows the time, the final verdict, the reason and what else fired. So
this module makes a template of canonical JSON, shared by many decisions, and the values of one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple

from sentinel.core.canonical import canonical_json, sha256_hex
from sentinel.core.decision import Decision
from sentinel.core.errors import InvalidInput
from sentinel.core.money import money_out
from sentinel.core.operation import Operation, plain_format

REDACTION = "customer data hidden"
HASH_ONLY = "hash-only proof"
MAX_EVIDENCE_BYTES = 4096
"""The most bytes of evidence context, as canonical JSON, that a decision keeps; more is refused, not cut."""


def commitment(purpose: str, salt: str, text: str) -> bytes:
    """Return a salted SHA-256: without the 32 private bytes of `salt` (hex) amounts and accounts cannot be guessed by trial."""
    return hashlib.sha256(b"sentinel/" + purpose.encode() + b"\0" + bytes.fromhex(salt) + text.encode()).digest()


def facts_commitment(salt: str, *, operation_canonical: str, basis: str | None, tightened: Sequence[str]) -> bytes:
    """Return a pack's facts_commitment: over the operation, what was read beside it, and the ids that the database
    added.

    `basis` is from `decision_basis`; `tightened` are the ids of the full limits, halt or once-key that tightened the
    decision in the database (`operation_states.tightened`). Must equal the SQL function `sentinel.facts_commitment`. A
    decision without a basis, from before evidence was kept, commits to the params alone.
    """
    if basis is None:
        return commitment("facts", salt, canonical_json(json.loads(operation_canonical)["params"]))
    fired = canonical_json(list(tightened)) if tightened else "[]"
    return commitment("facts", salt, f'{{"basis":{basis},"operation":{operation_canonical},"tightened":{fired}}}')


def decision_basis(
    decision: Decision, evidence: Mapping[str, Any], *, read_at: datetime | None = None, by_worker: bool = False
) -> str:
    """Return, as canonical JSON, what a policy decided on beside the operation: the declared evidence, the rules that
    fired, those that could not answer, and the clock if it was read.

    `by_worker`: whether the requesting key may vouch for a worker's facts. Raises `InvalidInput` where the declared
    evidence is larger than `MAX_EVIDENCE_BYTES`.
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


class PackValues(NamedTuple):
    """The values of one guard request that fill the pack's template; the pack leaves out a None. `amount` is JSON."""

    operation_commitment: bytes
    amount: str | None
    ledger_entry_id: str | None
    refund_id: str | None


def pack_values(operation: Operation, *, salt: str) -> PackValues:
    """Return the pack values of one operation; `salt` is hex, as for `commitment`."""
    money = operation.amount
    return PackValues(
        commitment("operation", salt, operation.canonical),
        None if money is None else canonical_json(money_out(money)["value"]),
        # Identifiers of a checked operation hold no character that JSON would escape.
        operation.param("ledger_entry_id"),
        operation.param("refund_id"),
    )


def pack_template(operation: Operation, decision: Decision) -> str:
    """Return the pack's canonical text as a template for `sentinel.pack_text`: "%1$s" is the place of the first value."""
    money = operation.amount
    return _template(
        operation.action, operation.agent_id, None if money is None else money.currency,
        operation.param("ledger_entry_id") is not None, operation.param("refund_id") is not None,
        decision.policy_digest, decision.policy_label, decision.policy_version,
    )  # fmt: skip


@lru_cache(maxsize=4096)
def _template(
    action: str, agent_id: str, currency: str | None, has_ledger: bool, has_refund: bool, digest: str, label: str, version: str
) -> str:  # fmt: skip
    requester = plain_format(canonical_json({"action": action, "agent_id": agent_id})[:-1])
    policy = plain_format(_policy_part(digest, label, version))
    amount = "" if currency is None else f',"amount":{{"currency":"{currency}","value":%1$s}}'
    ledger = '"ledger_entry_id":"%6$s",' if has_ledger else ""
    refund = '"refund_id":"%10$s",' if has_refund else ""
    return (
        f'{requester}{amount},"decided_at":"%2$s","decision":"%3$s","facts_commitment":"sha256:%4$s","latency_ms":%5$s,{ledger}'
        f'"operation_digest":"sha256:%7$s",{policy},"proof_id":"pf_%8$s","proof_status":"{HASH_ONLY}","reason_code":"%9$s",'
        f'"redaction_status":"{REDACTION}",{refund}"signature_status":"{HASH_ONLY}"}}'
    )


@lru_cache(maxsize=256)
def _policy_part(digest: str, label: str, version: str) -> str:
    return canonical_json({"policy_digest": digest, "policy_label": label, "policy_version": version})[1:-1]


def pack_hash(pack: Mapping[str, Any]) -> str:
    """Return the hash that a pack must carry: over its canonical JSON without `hash`. Anyone can recompute it."""
    return sha256_hex(canonical_json({key: value for key, value in pack.items() if key != "hash"}))


def is_intact(pack: Mapping[str, Any]) -> bool:
    """Whether a pack carries the hash of its own content."""
    return pack.get("hash") == pack_hash(pack)


def opens(pack: Mapping[str, Any], *, salt: str, operation_canonical: str) -> bool:
    """Whether a private operation and its salt are the ones a pack commits to: for auditors."""
    return _hash_text(commitment("operation", salt, operation_canonical)) == pack.get("operation_digest")


def opens_facts(
    pack: Mapping[str, Any], *, salt: str, operation_canonical: str, basis: str | None, tightened: Sequence[str]
) -> bool:
    """Whether the stored facts of a decision are the ones its pack commits to: for auditors."""
    found = facts_commitment(salt, operation_canonical=operation_canonical, basis=basis, tightened=tightened)
    return _hash_text(found) == pack.get("facts_commitment")


def _hash_text(commitment: bytes) -> str:
    return "sha256:" + commitment.hex()
