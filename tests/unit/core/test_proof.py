"""Proof packs: anyone recomputes the hash, nobody guesses what is committed to, the owner can open it."""

from __future__ import annotations

import hashlib
import json
import secrets
from pathlib import Path
from typing import Any

import msgspec
import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from sentinel.core.canonical import canonical_json
from sentinel.core.decision import no_matching_policy
from sentinel.core.errors import InvalidInput
from sentinel.core.money import MAX_MINOR, Money, money_out
from sentinel.core.operation import build_operation
from sentinel.core.proof import (
    MAX_EVIDENCE_BYTES,
    commitment,
    decision_basis,
    facts_commitment,
    is_intact,
    opens,
    opens_facts,
    pack_hash,
    pack_template,
    pack_values,
)
from sentinel.platform.resources import policies_dir
from sentinel.policy.evaluate import evaluate
from sentinel.policy.library import PolicyLibrary
from tests.support.pack_text import assemble_pack

SAMPLE = {
    "proof_id": "pf_demo_low_001",
    "agent_id": "retail-refund-agent",
    "amount": {"value": 126, "currency": "USD"},
    "latency_ms": 18,
    "decision": "ALLOW",
}


IDENTIFIERS = st.from_regex(r"[A-Za-z0-9._:/@-]{1,20}", fullmatch=True)
AMOUNTS = st.builds(
    lambda minor, currency: money_out(Money(minor, currency)),
    st.integers(1, MAX_MINOR),
    st.sampled_from(["USD", "JPY", "KWD"]),
)

BASIS = '{"evidence":{"why":"late"},"rules":["late"]}'


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
    text = assemble_pack(
        pack_template(operation, decision),
        pack_values(operation, salt=salt),
        event_hex="1",
        decided_at="2026-11-21T10:00:00.000000Z",
        decision="DENY",
        latency_ms=3,
        reason_code="over_limit",
        facts=facts_commitment(salt, operation_canonical=operation.canonical, basis=BASIS, tightened=["account_day"]),
    )
    return json.loads(text), (operation, text)


def test_the_facts_open_with_all_that_is_kept_and_with_nothing_else(library: PolicyLibrary) -> None:
    salt = secrets.token_hex(32)
    pack, (operation, _) = made(library, 12600, salt)
    kept: dict[str, Any] = {
        "salt": salt,
        "operation_canonical": operation.canonical,
        "basis": BASIS,
        "tightened": ["account_day"],
    }
    assert opens_facts(pack, **kept)
    changes = [{"salt": "11" * 32}, {"operation_canonical": operation.canonical.replace("12600", "12601")}, {"basis": None},
               {"basis": BASIS.replace("late", "soon")}, {"tightened": []}, {"tightened": ["account_day", "account_24h"]}]  # fmt: skip
    assert [change for change in changes if opens_facts(pack, **{**kept, **change})] == []


def test_a_pack_from_before_evidence_was_kept_opens_with_its_params(library: PolicyLibrary) -> None:
    salt, (operation, _) = "22" * 32, made(library, 12600, "00" * 32)[1]
    old = {"facts_commitment": "sha256:" + commitment("facts", salt, canonical_json(operation.params)).hex()}
    assert opens_facts(old, salt=salt, operation_canonical=operation.canonical, basis=None, tightened=[])


def test_evidence_that_is_too_large_is_refused_and_not_cut() -> None:
    decision = no_matching_policy()
    assert decision_basis(decision, {"x": "a" * (MAX_EVIDENCE_BYTES - 8)})
    with pytest.raises(InvalidInput) as refused:
        decision_basis(decision, {"x": "a" * (MAX_EVIDENCE_BYTES - 7)})
    assert list(refused.value.errors) == ["evidence_context"]


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


@given(names=st.fixed_dictionaries({}, optional={"refund_id": IDENTIFIERS, "ledger_entry_id": IDENTIFIERS, "amount": AMOUNTS}),
       texts=st.tuples(*[st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)] * 4))  # fmt: skip
def test_whatever_is_named_and_however_a_policy_is_called_the_text_is_canonical(names: dict[str, Any], texts: tuple[str, ...]) -> None:  # fmt: skip
    action, agent_id, label, version = texts
    operation = build_operation(idempotency_key="k", agent_id=agent_id, action=action, params=names)
    decision = msgspec.structs.replace(no_matching_policy(), policy_label=label, policy_version=version)
    text = assemble_pack(
        pack_template(operation, decision),
        pack_values(operation, salt="00" * 32),
        event_hex="1",
        decided_at="2026-11-21T10:00:00.000000Z",
        decision="DENY",
        latency_ms=3,
        reason_code="no",
        facts=b"\0" * 32,
    )
    pack = json.loads(text)
    assert text.encode() == rfc8785.dumps(pack)
    assert {name for name in ("refund_id", "ledger_entry_id", "amount") if name in pack} == set(names)
    assert (pack["action"], pack["agent_id"], pack["policy_label"], pack["policy_version"]) == texts


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
