"""What decided is kept: the same decision comes out of it again, and any change of what is kept shows."""

from __future__ import annotations

import json
import shutil
import uuid
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from sentinel.authority import explain
from sentinel.authority import guard as guarding
from sentinel.authority.explain import DecisionExplanation, explain_decision
from sentinel.authority.halts import set_halt
from sentinel.authority.keys import WORKER_SCOPE
from sentinel.authority.operations import find_decided
from sentinel.authority.policy_inspector import PolicyInspector
from sentinel.cli import decisions as command
from sentinel.core.canonical import canonical_json, sha256_hex
from sentinel.platform.resources import policies_dir
from sentinel.policy.explain import RuleAnswer
from tests.support.fixtures import Fixtures, guard_body, make_fixtures, unique
from tests.support.harness import Desk, actor, desks, scaled, seeded

EVIDENCE: tuple[Any, ...] = (
    None, {}, {"correlation_id": "c"}, {"escalation": "order_missing"}, {"escalation": "halted"}, {"escalation": "no such reason"},
    {"escalation": 7}, {"escalation": {"a": 1}}, {"escalation": "x" * 600}, {"settlement_ready": True}, {"settlement_ready": False},
    {"settlement_ready": "no"}, {"settlement_ready": False, "escalation": "blacklisted", "note": "John Doe, 4 Elm St"},
)  # fmt: skip

BOOK = PolicyInspector(policies_dir())


def explain_operation(fixtures: Fixtures, operation_id: uuid.UUID | str) -> DecisionExplanation:
    return explain_decision(fixtures.console_pool, BOOK, fixtures.tenant_id, uuid.UUID(str(operation_id)))


def decide_many(fixtures: Fixtures, bench: list[Desk], number: int) -> list[uuid.UUID]:
    """Operations of every sort: allowed, over caps, refused, asked for, halted, twice the same, spelled otherwise, uncovered."""
    rng, made, halt = seeded(7, number), [], None
    for place in range(number):
        if place == number * 2 // 3:
            halt = set_halt(
                fixtures.console_pool, actor(fixtures, "admin"), scope="action", target="refund.create", reason="a test"
            )
        name = rng.choice(["rf_a", "RF_A", "rf_a."]) if rng.random() < 0.15 else unique("rf")
        account = rng.choice([{"account_ref": "acct_1"}] * 3 + [{"account_ref": unique("acct")}] * 2 + [{}])
        params = {"refund_id": name, **account,
                  "risk": {"duplicate_refund": rng.random() < 0.05, "stale_window": False, "suspicious_reason": False,
                           "customer_attempts_24h": rng.choice([0, 0, 1, 1, 1, 3, 6])}}  # fmt: skip
        body = guard_body(value=rng.choice([1, 40, 90, 149, 151, 1001]), params=params, evidence_context=rng.choice(EVIDENCE),
                          action=rng.choice(["refund.create"] * 8 + ["refund.small.fee", "nobody.knows"]))  # fmt: skip
        made.append(rng.choice(bench).guard(body).operation_id)
    assert halt is not None
    return made


def test_every_recorded_decision_comes_out_again(fixtures: Fixtures) -> None:
    number = scaled(240)
    with desks(fixtures, 1) as (desk,):
        agent = replace(desk, caller=msgspec.structs.replace(desk.caller, scopes=desk.caller.scopes - {WORKER_SCOPE}))
        made = decide_many(fixtures, [desk, desk, agent], number)
    verdicts, tightened = Counter(), Counter()
    for operation_id in made:
        told = explain_operation(fixtures, operation_id)
        assert told.committed
        if told.hindrance == "no policy covered the action":
            assert (told.verdict, told.reason_code) == ("DENY", "no_matching_policy")
        else:
            assert told.agrees, told
            assert told.again is not None and told.rules is not None
            spoke = {rule.rule_id for rule in told.rules if rule.said in (RuleAnswer.HOLDS, RuleAnswer.NOT_VOUCHED)}
            assert spoke == set(told.again.rules), "each rule is told as it was decided"
        verdicts[told.verdict, told.reason_code] += 1
        tightened.update(told.tightened)
    print(f"N={number} {dict(verdicts)} {dict(tightened)}")
    assert {"account_day", "halted", "duplicate_resource", "looks_like_duplicate"} <= tightened.keys(), (
        "every way was met"
    )
    stored = "".join(str(row) for row in fixtures.admin.execute("select basis from sentinel.operations").fetchall())
    assert "Elm" not in stored
    assert "correlation" not in stored
    assert "xxx" not in stored, "only declared facts, and those only as far as they are sound"


def test_mutant_that_does_not_keep_the_evidence_is_caught(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = guarding.decision_basis
    monkeypatch.setattr(guarding, "decision_basis", lambda decision, evidence, **rest: kept(decision, {}, **rest))
    fixtures = make_fixtures(database_url)
    try:
        answer = fixtures.guard(guard_body(evidence_context={"escalation": "order_missing"}))
        told = explain_operation(fixtures, answer["operation_id"])
        assert told.committed
        assert not told.agrees
    finally:
        fixtures.close()


def test_an_escalation_is_explained_after_the_fact(fixtures: Fixtures) -> None:
    evidence = {"escalation": "order_missing", "settlement_ready": False, "correlation_id": "c_1"}
    answer = fixtures.guard(guard_body(evidence_context=evidence))
    assert (answer["decision"], answer["reason_code"]) == ("APPROVAL_REQUIRED", "order_missing")
    told = explain_operation(fixtures, answer["operation_id"])
    assert told.agrees
    assert told.evidence == {"escalation": "order_missing", "settlement_ready": False}
    said = {rule.rule_id: (rule.said, rule.reason_code) for rule in told.rules or ()}
    assert said["escalated"] == (RuleAnswer.HOLDS, "order_missing")
    assert said["system_not_ready"] == (RuleAnswer.HOLDS, "system_not_ready")
    assert told.again is not None
    assert set(told.again.rules) == {"escalated", "system_not_ready", "low_amount"}
    basis = json.loads(
        fixtures.one("select basis from sentinel.operations where operation_id = %s", answer["operation_id"])
    )
    assert basis["rules"] == ["escalated", "system_not_ready", "low_amount"]
    assert "order_missing" not in json.dumps({**answer["proof_pack"], "reason_code": ""}), "committed to, not shown"


def test_any_change_of_what_is_kept_shows(fixtures: Fixtures) -> None:
    answer = fixtures.guard(guard_body(evidence_context={"escalation": "order_missing"}))
    identity, run = answer["operation_id"], fixtures.admin.execute
    run("set session_replication_role = replica")
    changes = {
        "operation_rows": ["basis = replace(basis, 'order_missing', 'blacklisted')", "basis = replace(basis, 'escalated', 'low_amount')",
                       "basis = null", "params = replace(params, 'USD', 'EUR')", "salt = decode(repeat('0', 64), 'hex')"],
        "operation_states": ["tightened = '{account_day}'", "tightened = '{halted}'"],
    }  # fmt: skip
    number = 0
    for table, ways in changes.items():
        before = f"create temporary table kept as select * from sentinel.{table} where operation_id = %s"
        for way in ways:
            run(before.encode(), [identity]) if table == "operation_rows" else None
            run(f"update sentinel.{table} set {way} where operation_id = %s".encode(), [identity])
            told = explain_operation(fixtures, identity)
            assert not told.committed, way
            assert not told.agrees, way
            number += 1
            if table == "operation_rows":
                run("update sentinel.operation_rows o set basis = k.basis, params = k.params, salt = k.salt from kept k"
                    " where o.operation_id = k.operation_id")  # fmt: skip
                run("drop table kept")
            else:
                run("update sentinel.operation_states set tightened = null where operation_id = %s", [identity])
            assert explain_operation(fixtures, identity).agrees
    print(f"N={number} changes")


def test_what_is_kept_can_be_erased_and_the_decision_stays_verifiable(fixtures: Fixtures) -> None:
    answer = fixtures.guard(guard_body(evidence_context={"escalation": "order_missing"}))
    fixtures.admin.execute("set session_replication_role = replica")
    fixtures.admin.execute("delete from sentinel.operation_rows where operation_id = %s", [answer["operation_id"]])
    fixtures.admin.execute("set session_replication_role = origin")
    with pytest.raises(Exception, match="no operation"):
        explain_operation(fixtures, answer["operation_id"])
    assert "proof_altered" not in fixtures.broken_invariants()
    left = fixtures.admin.execute(
        "select body from sentinel.events where event_id = %s", [answer["decision_event_id"]]
    ).fetchone()
    assert left is not None
    assert "order_missing" not in left[0].replace('"reason_code":"order_missing"', "")


def test_a_decision_from_before_evidence_was_kept_says_so(fixtures: Fixtures) -> None:
    answer = fixtures.guard(guard_body())
    fixtures.admin.execute("set session_replication_role = replica")
    fixtures.admin.execute(
        "update sentinel.operation_rows set basis = null where operation_id = %s", [answer["operation_id"]]
    )
    told = explain_operation(fixtures, answer["operation_id"])
    assert (told.again, told.hindrance) == (None, "decided before evidence was kept")
    assert told.evidence is None


def test_evidence_that_is_larger_than_is_kept_is_a_400(database_url: str, tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    shutil.copytree(policies_dir(), folder)
    file = folder / "agent_actions.yaml"
    text = file.read_text()
    many = "".join(f"  note{n}: {{type: string, from: evidence_context.note{n}}}\n" for n in range(12))
    file.write_text(text.replace("facts:\n", f"facts:\n{many}", 1))
    action = (
        next(line for line in text.splitlines() if line.startswith("actions:"))
        .partition("[")[2]
        .partition(",")[0]
        .strip("] ")
    )
    fixtures = make_fixtures(database_url, policies=folder)
    try:
        notes = {f"note{n}": "a" * 400 for n in range(12)}
        answer = fixtures.post("action/guard", guard_body(action=action.replace(".*", ".x"), evidence_context=notes))
        assert answer.status_code == 400, answer.text
        assert "4096 bytes" in str(answer.get_json()["errors"]["evidence_context"])
    finally:
        fixtures.close()


def test_the_command_explains_and_fails_where_something_was_changed(fixtures: Fixtures) -> None:
    answer = fixtures.guard(guard_body(evidence_context={"escalation": "order_missing"}))

    def run(*words: str) -> Any:
        env = {"SENTINEL_DATABASE_URL": fixtures.url, "SENTINEL_TENANT_ID": str(fixtures.tenant_id)}
        return CliRunner().invoke(command.group, ["explain", answer["operation_id"], *words], env=env)

    shown = run()
    assert shown.exit_code == 0, shown.output
    assert "again      APPROVAL_REQUIRED order_missing" in shown.output
    assert "rule       escalated: holds, APPROVAL_REQUIRED order_missing" in shown.output
    assert '"escalation":"order_missing"' in shown.output
    assert json.loads(run("--json").output)["agrees"] is True
    fixtures.admin.execute("set session_replication_role = replica")
    fixtures.admin.execute("update sentinel.operation_rows set basis = replace(basis, 'order_missing', 'blacklisted')")
    told = run()
    assert told.exit_code == 1
    assert "committed  NO" in told.output


def test_a_policy_that_this_version_cannot_compile_is_not_called_one_that_is_gone(fixtures: Fixtures) -> None:
    found = find_decided(fixtures.console_pool, fixtures.tenant_id, uuid.UUID(fixtures.guard()["operation_id"]))
    assert found is not None
    (policy,) = (one for one in fixtures.authority.policies.library.policies if one.digest == found.policy_digest)
    text = canonical_json(policy.policy.document()).replace('"when":"', '"when":"a condition of another version: ', 1)
    digest = sha256_hex(text)
    fixtures.admin.execute(
        "insert into sentinel.policies (policy_digest, policy_id, policy_version, canonical) values (%s, %s, 'v0', %s)",
        [digest, policy.policy.policy_id, text],
    )
    decided = replace(found, pack=found.pack.replace(found.policy_digest, digest))
    told = explain.explain_operation(fixtures.console_pool, BOOK, decided)
    assert told.hindrance == "the policy's text is not kept, or this version cannot compile it"
