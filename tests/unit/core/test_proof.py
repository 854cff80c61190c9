"""Proof packs: anyone recomputes the hash, nobody guesses what is committed to, the owner can open it."""

from __future__ import annotations

import hashlib
import json
import secrets
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from sentinel.core.money import MAX_MINOR, Money, money_out
from sentinel.core.operation import build_operation
from sentinel.core.proof import assemble, commitment, is_intact, opens, pack_hash, pack_parts
from sentinel.policy.evaluate import evaluate
from sentinel.policy.library import PolicyLibrary
from sentinel.resources import policies_dir

SAMPLE = {
    "proof_id": "pf_demo_low_001",
    "agent_id": "retail-refund-agent",
    "amount": {"value": 126, "currency": "USD"},
    "latency_ms": 18,
    "decision": "ALLOW",
}


@pytest.fixture(scope="module")
def library() -> PolicyLibrary:
    return PolicyLibrary.load(Path(policies_dir()))


def made(library: PolicyLibrary, minor: int, salt: str, **params: Any) -> tuple[dict[str, Any], Any]:
    """A pack as the database finishes it, and its operation."""
    from datetime import UTC, datetime

    operation = build_operation(
        idempotency_key="k", agent_id="retail-refund-agent", action="refund.create",
        params={"amount": money_out(Money(minor, "USD")), "refund_id": "rf_1", "ledger_entry_id": "lge_1", **params},
    )  # fmt: skip
    policy = library.find(operation.action)
    assert policy is not None
    decision = evaluate(policy, operation.facts(), datetime.now(UTC))
    parts = pack_parts(operation, decision, proof_id="pf_1", salt=salt)
    text = assemble(
        parts, decided_at="2026-11-21T10:00:00.000000Z", decision="DENY", latency_ms=3, reason_code="over_limit"
    )
    return json.loads(text), (operation, text)


def test_the_hash_is_over_the_canonical_pack_without_itself() -> None:
    expected = "sha256:" + hashlib.sha256(rfc8785.dumps(SAMPLE)).hexdigest()
    assert pack_hash(SAMPLE) == pack_hash({**SAMPLE, "hash": "anything"}) == expected
    assert is_intact({**SAMPLE, "hash": expected})


@pytest.mark.parametrize("name", SAMPLE)
def test_any_change_shows(name: str) -> None:
    whole = {**SAMPLE, "hash": pack_hash(SAMPLE)}
    assert not is_intact({**whole, name: "changed"})
    assert not is_intact({key: value for key, value in whole.items() if key != name})
    assert not is_intact({**whole, "added": 1})


@given(minor=st.integers(1, MAX_MINOR))
def test_the_assembled_text_is_canonical_as_it_stands(library: PolicyLibrary, minor: int) -> None:
    # The database hashes the text it joined; that is the documented hash only if the text already is canonical.
    pack, (_, text) = made(library, minor, "00" * 32)
    assert text.encode() == rfc8785.dumps(pack)


def test_the_owner_can_open_a_pack_and_nobody_else_can_guess_it(library: PolicyLibrary) -> None:
    salt = secrets.token_hex(32)
    pack, (operation, _) = made(library, 12600, salt, account_ref="acct_1")
    assert opens(pack, salt=salt, operation_canonical=operation.canonical)
    assert not opens(pack, salt=secrets.token_hex(32), operation_canonical=operation.canonical)
    _, (other, _) = made(library, 12601, salt, account_ref="acct_1")
    assert not opens(pack, salt=salt, operation_canonical=other.canonical)
    assert "acct_1" not in json.dumps(pack)
    again, _ = made(library, 12600, secrets.token_hex(32), account_ref="acct_1")
    for name in ("operation_digest", "facts_commitment"):
        assert again[name] != pack[name], "an equal operation must not be recognisable"
    assert commitment("operation", salt, "x") != commitment("facts", salt, "x")
