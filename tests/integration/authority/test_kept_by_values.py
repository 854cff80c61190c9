"""Events and operations are kept as the number of their terms and their values, and read as the bytes that were hashed."""

from __future__ import annotations

import json
import random
import shutil
import uuid
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
import rfc8785

from sentinel.authority.actor import local_administrator
from sentinel.authority.decisions import RECORD_DECISIONS, Recorded
from sentinel.authority.halts import set_halt
from sentinel.core.canonical import sha256_hex
from sentinel.core.decision import no_matching_policy
from sentinel.core.operation import build_operation
from sentinel.core.proof import opens, pack_template, pack_values
from sentinel.platform.resources import policies_dir
from sentinel.store.batch_statement import run_statement
from tests.integration.authority.test_batches import rows_of
from tests.support.commits import record_decisions
from tests.support.fixtures import AGENT, Fixtures, guard_body, make_fixtures, unique
from tests.support.harness import scaled, seeded
from tests.support.pack_text import assemble_pack

Body = dict[str, Any]


def a_question(dice: random.Random, key: str) -> Body:
    """A guard that may come to any verdict, of few accounts and refunds, with and without what a pack may leave out."""
    body = guard_body(
        key, value=dice.choice([1, "0.01", 40, "139.90", 200, 2000]), currency=dice.choice(["USD", "USD", "EUR"]),
        params={"account_ref": f"acct_{dice.randint(1, 4)}", "refund_id": dice.choice([None, f"rf_{dice.randint(1, 40)}", f"rf_{key}"])},
    )  # fmt: skip
    if dice.random() < 0.2:
        del body["params"]["ledger_entry_id"]
    if dice.random() < 0.1:
        body["action"] = "unknown.action"
    if dice.random() < 0.2:
        body["start_id"] = str(uuid.UUID(int=dice.getrandbits(128), version=4))
    return body


def not_as_recorded(fixtures: Fixtures, body: Body, answer: Recorded) -> list[str]:
    """What of a decision reads otherwise than it was answered and asked. The checker of this file."""
    found = fixtures.admin.execute(
        "select e.body, e.hash, e.agent_id, r.body is null, o.request, o.digest, o.salt, o.agent_id, o.action, o.risk_class"
        " from sentinel.events e join sentinel.event_rows r using (event_id) join sentinel.operations o on o.operation_id = e.operation_id"
        " where e.event_id = %s", [answer.decision_event_id]).fetchone()  # fmt: skip
    assert found is not None
    text, kept_hash, agent, by_values, request, digest, salt, *said = found
    pack = json.loads(text)
    claims = {
        "the body is the pack of the answer": text == answer.pack,
        "the body is kept by its values": by_values,
        "the hash is that of the body": kept_hash == answer.pack_hash == sha256_hex(text),
        "the body is canonical": text.encode() == rfc8785.dumps(pack),
        "the pack says what was decided": (pack["decision"], pack["reason_code"]) == (answer.decision, answer.reason_code),
        "the agent is the one who asked": agent == body["agent_id"],
        "the request is canonical": request.encode() == rfc8785.dumps(json.loads(request)),
        "the digest is that of the request": digest == answer.digest == sha256_hex(request),
        "the request opens the pack": opens(pack, salt=salt, operation_canonical=request),
        "the operation is what was asked": said == [body["agent_id"], body["action"], body["risk_class"]],
    }  # fmt: skip
    return [
        f"{answer.decision} {answer.reason_code}: not so that {claim}" for claim, holds in claims.items() if not holds
    ]


def decided(fixtures: Fixtures, dice: random.Random, number: int, prefix: str) -> list[tuple[Body, Recorded]]:
    """Questions in one transaction with their answers, replays left out."""
    bodies = [a_question(dice, f"{prefix}_{place}") for place in range(number)]
    return list(zip(bodies, record_decisions(fixtures.authority.pool, rows_of(fixtures, bodies)), strict=True))


@pytest.mark.parametrize("number", [1, 4, 16])
def test_every_decision_reads_as_the_bytes_that_were_hashed(fixtures: Fixtures, number: int) -> None:
    turns, dice = scaled(max(6, 96 // number)), seeded(number, scaled(96))
    made = [one for turn in range(turns) for one in decided(fixtures, dice, number, f"t{turn}")]
    set_halt(fixtures.console_pool, local_administrator(fixtures.tenant_id), scope="tenant", reason="drill")
    made += [one for turn in range(4) for one in decided(fixtures, dice, number, f"h{turn}")]
    assert [said for body, answer in made for said in not_as_recorded(fixtures, body, answer)] == []
    reasons = {answer.reason_code for _, answer in made}
    assert {answer.decision for _, answer in made} == {"ALLOW", "APPROVAL_REQUIRED", "DENY"}
    assert {"halted", "within_policy_limit", "no_matching_policy"} <= reasons, "the questions were too tame"
    tightened = "select count(*) from sentinel.event_rows where decision is not null and reason_code is not null"
    assert fixtures.one(tightened) > 0, "nothing was tightened by the database"
    assert fixtures.broken_invariants() == []


@pytest.mark.parametrize(
    ("was", "becomes"),
    [("COALESCE(r.decision, t.decision)", "t.decision"), ("COALESCE(r.reason_code, t.reason_code)", "t.reason_code"),
     ("r.ledger_entry_id, r.operation_commitment", "null, r.operation_commitment"), ("sentinel.utc_text(r.occurred_at)", "r.occurred_at::text")],
)  # fmt: skip
def test_mutants_that_put_a_body_together_otherwise_are_caught(fixtures: Fixtures, was: str, becomes: str) -> None:
    dice = seeded(7, 32)
    made = [one for turn in range(8) for one in decided(fixtures, dice, 4, f"t{turn}")]
    set_halt(fixtures.console_pool, local_administrator(fixtures.tenant_id), scope="tenant", reason="drill")
    made += decided(fixtures, dice, 8, "h")
    view = fixtures.one("select pg_get_viewdef('sentinel.events'::regclass)")
    flat = " ".join(view.split())
    assert flat.count(was) == 1, f"the mutant is stale: {flat}"
    fixtures.admin.execute(f"create or replace view sentinel.events as {flat.replace(was, becomes)}".encode())
    assert [said for body, answer in made for said in not_as_recorded(fixtures, body, answer)]
    assert "proof_altered" in fixtures.broken_invariants()


def test_the_database_fills_a_template_as_the_program_does(fixtures: Fixtures) -> None:
    number = scaled(200)
    dice = seeded(11, number)
    letters = 'a%$1s{}"\\éß漢\u2028 '
    for place in range(number):
        action, agent, label, version = ("".join(dice.choices(letters, k=dice.randint(1, 9))) for _ in range(4))
        names: Body = {"ledger_entry_id": "lge_1", "refund_id": "rf_1", "amount": {"value": "1.50", "currency": "USD"}}
        params = {name: value for name, value in names.items() if dice.random() < 0.7}
        operation = build_operation(idempotency_key="k", agent_id=agent, action=action, params=params)
        decision = msgspec.structs.replace(no_matching_policy(), policy_label=label, policy_version=version)
        template, values, event = (
            pack_template(operation, decision),
            pack_values(operation, salt="00" * 32),
            uuid.UUID(int=place),
        )
        ours = assemble_pack(
            template, values, decided_at="2026-01-01T00:00:00.000000Z", decision="DENY", facts=b"\1" * 32, latency_ms=place, event_hex=event.hex,
            reason_code="no",
        )  # fmt: skip
        theirs = fixtures.one(
            "select sentinel.pack_text(%s, %s, %s, 'DENY', %s, %s, %s, %s, %s, 'no', %s)", template, values.amount, "2026-01-01T00:00:00.000000Z",
            b"\1" * 32, place, values.ledger_entry_id, values.operation_commitment, event, values.refund_id,
        )  # fmt: skip
        assert theirs == ours
        assert ours.encode() == rfc8785.dumps(json.loads(ours))


def test_what_decisions_have_in_common_is_kept_once(fixtures: Fixtures) -> None:
    for turn in range(3):
        for value in (1, 200, 2000):
            fixtures.guard(guard_body(f"k{turn}_{value}", value=value))
    assert fixtures.one("select count(*) from sentinel.decision_terms") == 3
    assert fixtures.one("select count(distinct terms_id) from sentinel.operation_states") == 3


def test_the_terms_of_one_guard_take_no_more_than_the_texts_that_they_stand_for(fixtures: Fixtures) -> None:
    """Else a caller who names a new agent in each request would make more grow than the evidence of its requests."""
    bodies = [guard_body() | {"agent_id": f"agent-of-request-{number}"} for number in range(20)]
    record_decisions(fixtures.authority.pool, rows_of(fixtures, bodies))
    taken = fixtures.admin.execute(
        "select pg_column_size(t.*), octet_length(e.body) + octet_length(o.request) + pg_column_size(v.limit_keys)"
        " from sentinel.operation_states s join sentinel.decision_terms t using (terms_id) join sentinel.operations o on o.operation_id = s.operation_id"
        " join sentinel.events e on e.event_id = s.decision_event_id join sentinel.reservations v on v.operation_id = s.operation_id").fetchall()  # fmt: skip
    assert len(taken) == len(bodies) == fixtures.one("select count(*) from sentinel.decision_terms")
    assert [(terms, texts) for terms, texts in taken if terms > texts] == []


def test_terms_that_somebody_puts_in_at_the_moment_are_not_waited_for(fixtures: Fixtures) -> None:
    """Each puts in its own; from then on one of them is used."""
    first, second, third = (rows_of(fixtures, [guard_body(value=value) for value in (1, 200)]) for _ in range(3))
    with psycopg.connect(fixtures.url, autocommit=True) as other, other.transaction():
        run_statement(other, PUT_IN_TERMS, first, 2000)
        record_decisions(fixtures.authority.pool, second)
    before = fixtures.admin.execute(TERMS).fetchone()
    record_decisions(fixtures.authority.pool, third)
    assert fixtures.admin.execute(TERMS).fetchone() == before == (4, 2)
    assert fixtures.one("select count(distinct terms_id) from sentinel.operation_states") == 4
    assert fixtures.broken_invariants() == []


PUT_IN_TERMS = replace(
    RECORD_DECISIONS, name="put_in_terms", sql=b"select sentinel.put_in_terms(sentinel.known_terms($1)) is null, $2, $3, $4, $5, $6",
    decode=lambda result: [],
)  # fmt: skip
"""What `record_decisions` does with terms, without the locks between."""
TERMS = "select count(*), count(distinct hash) from sentinel.decision_terms"


def test_limits_of_several_owners_are_kept_with_their_keys(database_url: str, tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    shutil.copytree(policies_dir(), folder)
    file, (begins, ends) = folder / "retail_refund.yaml", ("- id: account_24h", "per: [account, currency]")
    before, after = file.read_text().split(begins, 1)
    file.write_text(before + begins + after.replace(ends, "per: [account, agent, currency]", 1))
    with closing(make_fixtures(database_url, policies=folder)) as fixtures:
        body, other = (guard_body(unique(), params={"account_ref": "acct_1"}) for _ in range(2))
        record_decisions(fixtures.authority.pool, rows_of(fixtures, [other, guard_body()]))
        fixtures.start(body, fixtures.guard(body))
        assert fixtures.report(body).status_code == 200
        kept = fixtures.admin.execute("select limit_owner, limit_keys from sentinel.operation_states").fetchall()
        assert {owner for owner, _ in kept} == {None}
        mine = {"retail-refund/account_day|acct_1|USD", f"retail-refund/account_24h|acct_1|{AGENT}|USD"}
        assert sum(mine < set(keys) for _, keys in kept) == 2
        assert fixtures.broken_invariants() == []


def test_limits_of_one_owner_are_told_by_the_owner(fixtures: Fixtures) -> None:
    body = guard_body(params={"account_ref": "acct_1"})
    fixtures.guard(body)
    kept = "select limit_keys is null, limit_owner from sentinel.operation_states"
    assert fixtures.admin.execute(kept).fetchone() == (True, "acct_1|USD")
    (keys,) = fixtures.admin.execute("select limit_keys from sentinel.reservations").fetchone()  # type: ignore[misc]
    assert keys[:2] == ["retail-refund/account_day|acct_1|USD", "retail-refund/account_24h|acct_1|USD"]
    assert keys[-1] == "retail-refund/tenant_day|~tenant|USD"


def test_reservations_are_read_whatever_terms_a_plan_puts_beside_a_state_first(fixtures: Fixtures) -> None:
    """A plan may take apart the keys of a state's limits before it compares the numbers of the terms, and some terms have no keys."""
    fixtures.guard(guard_body(params={"account_ref": "acct_1"}))
    fixtures.admin.execute(
        "insert into sentinel.decision_terms (hash, policy_id, policy_version, policy_label, policy_digest) values ('', 'p', '1', 'p', 'd')"
    )
    pairs = (
        "select t.limit_keys is null, count(k) from sentinel.operation_states s cross join sentinel.decision_terms t left join lateral"
        " unnest(coalesce(s.limit_keys, sentinel.owned_keys(t.limit_keys, s.limit_owner))) as k on true group by 1"
    )
    found = dict(fixtures.admin.execute(pairs).fetchall())
    assert found[True] == 0 and found[False] > 2
