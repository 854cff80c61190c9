"""G7: a once-key belongs to the tenant and the thing, whatever policy asks; another spelling of it goes to a person."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

from sentinel.authority.policies import declare_policies
from sentinel.platform.resources import policies_dir
from tests import mutants
from tests.support.fixtures import Fixtures, guard_body, make_fixtures, unique
from tests.support.harness import at_once, decide, desks, let_approvals_expire, let_permits_expire, scaled

DUPLICATE = ("DENY", "duplicate_resource")
ALIKE = ("APPROVAL_REQUIRED", "looks_like_duplicate")


def refund(name: str, **over: Any) -> dict[str, Any]:
    """A request for a refund of that name under a key and an account of its own."""
    return guard_body(value=1, params={"refund_id": name, "account_ref": unique("acct")}, **over)


def small_fee(name: str) -> dict[str, Any]:
    """The same refund under the other policy that pays refunds."""
    body = refund(name, action="refund.small.fee")
    body["params"] |= {"channel": "private", "scenario": "fee", "order": {"paid": {"value": 1000, "currency": "USD"}}}
    return body


def verdict(answer: dict[str, Any]) -> tuple[str, str]:
    return answer["decision"], answer["reason_code"]


def spelled(name: str, number: int) -> list[str]:
    """`number` spellings of a name that differ only in case and in punctuation at the end."""
    cases = [name.upper(), name.lower(), name.title(), name.swapcase()]
    ends = ["", "/", ".", "-", ":", "//", "@", "_."]
    return list(itertools.islice(itertools.cycle(case + end for end in ends for case in cases), number))


def racing(fixtures: Fixtures, names: list[str], body: Any = refund) -> list[Any]:
    with desks(fixtures, 2) as bench:
        turn = itertools.cycle(bench)
        return at_once([lambda desk=next(turn), asked=body(name): desk.guard(asked) for name in names])


@pytest.mark.parametrize(
    ("first", "second"), [(refund, small_fee), (small_fee, refund)], ids=["create first", "fee first"]
)
def test_a_refund_has_one_permit_whatever_policy_is_asked(fixtures: Fixtures, first: Any, second: Any) -> None:
    name = unique("rf")
    assert fixtures.guard(first(name))["decision"] == "ALLOW"
    assert verdict(fixtures.guard(second(name))) == DUPLICATE
    assert (
        verdict(
            fixtures.post("action/check", {k: second(name)[k] for k in ("agent_id", "action", "params")}).get_json()
        )
        == DUPLICATE
    )
    assert fixtures.broken_invariants() == []


def test_of_two_policies_asked_at_once_one_permits(fixtures: Fixtures) -> None:
    number = scaled(15)
    print(f"N={number} refunds, 4 requests each over two policies")
    for _ in range(number):
        name = unique("rf")
        with desks(fixtures, 2) as (one, other):
            bodies = [refund(name), small_fee(name), refund(name), small_fee(name)]
            answers = at_once([lambda desk=desk, body=body: desk.guard(body) for desk, body in zip((one, other, one, other), bodies, strict=True)])  # fmt: skip
        assert sorted(answer.decision for answer in answers) == ["ALLOW", "DENY", "DENY", "DENY"]
    assert fixtures.broken_invariants() == []


@pytest.mark.parametrize("other", ["RFDUP", "rfdup/", "rfdup.", "RfDup:-", "rfdup_"])
def test_another_spelling_of_what_is_live_goes_to_a_person(fixtures: Fixtures, other: str) -> None:
    name = unique("rf").upper()
    near = name.lower() + other[5:]
    assert fixtures.guard(refund(name))["decision"] == "ALLOW"
    assert (
        verdict(
            fixtures.post("action/check", {k: refund(near)[k] for k in ("agent_id", "action", "params")}).get_json()
        )
        == ALIKE
    )
    body = refund(near)
    asked = fixtures.guard(body)
    assert verdict(asked) == ALIKE
    assert verdict(fixtures.guard(refund(near))) == DUPLICATE, "a question to a person holds its own spelling"
    decide(fixtures, asked["approval_id"])
    assert fixtures.guard(body)["status"] == "approved", "a person looked at both and said they are two"
    assert verdict(fixtures.guard(refund(name + "@"))) == ALIKE
    assert fixtures.broken_invariants() == []


def test_punctuation_within_and_other_names_are_other_refunds(fixtures: Fixtures) -> None:
    name = unique("rf")
    for other in (name, f"{name}1", f"{name}.1", f"x{name}", f"/{name}"):
        assert fixtures.guard(refund(other))["decision"] == "ALLOW", other


def test_a_renewal_goes_to_a_person_where_another_spelling_went_live_meanwhile(fixtures: Fixtures) -> None:
    name = unique("rf")
    first, second = refund(name), refund(name.upper())
    fixtures.guard(first)
    let_permits_expire(fixtures)
    assert fixtures.guard(second)["decision"] == "ALLOW", "what ran out holds nothing"
    asked = fixtures.guard(first)
    assert (asked["status"], asked["reason_code"]) == ("pending", "looks_like_duplicate")
    assert fixtures.broken_invariants() == []


def a_question(name: str) -> dict[str, Any]:
    """The refund for an amount that a person decides."""
    body = refund(name)
    body["params"]["amount"]["value"] = 200
    return body


@pytest.mark.parametrize("again", [str, str.upper], ids=["the same", "another spelling"])
def test_a_question_that_ran_out_holds_nothing_before_the_housekeeper_comes_too(fixtures: Fixtures, again: Any) -> None:
    """The finding: until it was swept, whoever asked anew was denied as a duplicate, for good."""
    name = unique("rf")
    old = a_question(name)
    assert fixtures.guard(old)["status"] == "pending"
    assert verdict(fixtures.guard(refund(name))) == DUPLICATE, "while a person is asked"
    let_approvals_expire(fixtures)
    assert fixtures.guard(refund(again(name)))["decision"] == "ALLOW"
    found = fixtures.guard(old)
    assert (found["status"], found["reason_code"]) == ("expired", "approval_expired")
    assert fixtures.one("select count(*) from sentinel.events where kind = 'approval_expired'") == 1
    fixtures.run_housekeeping()
    assert fixtures.broken_invariants() == []


def test_a_question_that_ran_out_is_in_no_renewals_way(fixtures: Fixtures) -> None:
    name = unique("rf")
    first = refund(name)
    fixtures.guard(first)
    let_permits_expire(fixtures)
    assert fixtures.guard(a_question(name))["status"] == "pending"
    let_approvals_expire(fixtures)
    assert fixtures.guard(first)["status"] == "allowed"
    assert fixtures.broken_invariants() == []


@pytest.mark.parametrize("holder", [refund, a_question])
def test_what_ran_out_and_is_in_other_hands_denies_nobody_for_good(fixtures: Fixtures, holder: Any) -> None:
    """The finding: a permit that could not be given back just then was a duplicate, and that was recorded."""
    name = unique("rf")
    fixtures.guard(holder(name))
    let_permits_expire(fixtures)
    let_approvals_expire(fixtures)
    body = refund(name)
    with psycopg.connect(fixtures.url) as other:
        other.execute("select from sentinel.operation_states for update")
        answer = fixtures.post("action/guard", body)
    assert (answer.status_code, answer.get_json()["retryable"]) == (503, True), answer.text
    assert fixtures.one("select count(*) from sentinel.operations") == 1
    assert fixtures.guard(body)["decision"] == "ALLOW"
    assert fixtures.broken_invariants() == []


def mixed_spellings(fixtures: Fixtures, rounds: int) -> list[str]:
    """64 requests at once for one refund in 32 spellings, over two authorities; what is wrong afterwards."""
    found = []
    for _ in range(rounds):
        answers = racing(fixtures, spelled(unique("rf"), 64))
        allowed = [answer for answer in answers if getattr(answer, "decision", "") == "ALLOW"]
        wrong = [answer for answer in answers if isinstance(answer, BaseException)
                 or (answer.decision != "ALLOW" and (answer.decision, answer.reason_code) not in (DUPLICATE, ALIKE))]  # fmt: skip
        found += [f"{len(allowed)} allowed"] if len(allowed) != 1 else []
        found += [repr(answer) for answer in wrong]
    return found + fixtures.broken_invariants()


@pytest.mark.usefixtures("patient")
def test_of_64_mixed_spellings_at_once_one_is_allowed_and_the_rest_wait_for_people(fixtures: Fixtures) -> None:
    rounds = scaled(3)
    print(f"N={64 * rounds} requests, {rounds} refunds")
    assert mixed_spellings(fixtures, rounds) == []


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("broken", ["spellings are not compared", "decided without a lock"])
def test_mutant_is_caught(database_url: str, broken: str) -> None:
    fixtures = make_fixtures(database_url)
    try:
        if broken == "decided without a lock":
            mutants.without_locks(fixtures, "pg_advisory_xact_lock", "pg_try_advisory_xact_lock")
            mutants.meet_in_set(fixtures.admin)
            racing(fixtures, spelled(unique("rf"), 2))
        else:
            mutants.cut(fixtures, "sentinel.decide_new", "held_as = 'alike' and verdict <> 'DENY'", "false")
            mixed_spellings(fixtures, 1)
        assert "done_twice_spelled" in fixtures.broken_invariants()
    finally:
        fixtures.close()


def test_the_lock_of_a_once_key_is_the_folded_keys(fixtures: Fixtures) -> None:
    lock = "select sentinel.once_lock(%s, %s)"
    assert fixtures.one(lock, fixtures.tenant_id, "refund|rf_A") == fixtures.one(
        lock, fixtures.tenant_id, "refund|RF_a/."
    )
    assert fixtures.one(lock, fixtures.tenant_id, "refund|rf_A") != fixtures.one(lock, fixtures.tenant_id, "order|rf_A")


def test_a_second_holder_from_before_keys_belonged_to_things_is_seen(fixtures: Fixtures) -> None:
    """Its key is marked with a tilde: it holds one of its own, and who asks for the thing is told of both."""
    name = unique("rf")
    first = fixtures.guard(refund(name))["operation_id"]
    second = fixtures.guard(refund(unique("rf")))["operation_id"]
    key = fixtures.one("select once_key from sentinel.operation_states where operation_id = %s", first)
    fixtures.admin.execute(
        "update sentinel.operation_states set once_key = %s where operation_id = %s", [f"{key}~", second]
    )
    seen = "select sentinel.once_seen(%s, %s, %s)"
    assert fixtures.one(seen, fixtures.tenant_id, f"{key}~", second) == "alike"
    assert fixtures.one(seen, fixtures.tenant_id, key, None) == "same"
    assert verdict(fixtures.guard(refund(name.upper()))) == ALIKE
    assert verdict(fixtures.guard(refund(name))) == DUPLICATE
    assert not {"done_twice", "done_twice_spelled"} & set(fixtures.broken_invariants())


def test_what_may_happen_only_once_is_found_by_its_folded_key(fixtures: Fixtures) -> None:
    for name in spelled(unique("Rf"), 8):
        fixtures.guard(refund(name))
    folded = "select count(distinct sentinel.once_folded(once_key)) from sentinel.operation_states where tenant_id = %s"
    assert fixtures.one(folded, fixtures.tenant_id) == 1
    with fixtures.admin.transaction():
        fixtures.admin.execute("set local enable_seqscan = off")
        plan = "\n".join(
            line for (line,) in fixtures.admin.execute(
                "explain select from sentinel.operation_states s where s.tenant_id = %s and s.once_live"
                " and sentinel.once_folded(s.once_key) = sentinel.once_folded('refund|RF')", [fixtures.tenant_id]))  # fmt: skip
    assert "operation_states_once" in plan and plan.count("Index Cond") == 1 and "rtrim" in plan.split("Index Cond")[1]


NO_IDENTIFIERS = ("ｒｆ１", "rf 1", "rf\u200b1", "rf1\n", "rf|1", "r" * 201, "rf~", "", 7, ["rf"])


def test_what_is_no_identifier_is_a_400_that_names_the_field_and_the_rule(fixtures: Fixtures) -> None:
    for field in ("refund_id", "order_ref", "account_ref", "ledger_entry_id", "order_key"):
        for name in NO_IDENTIFIERS:
            answer = fixtures.post("action/guard", guard_body(params={field: name}))
            assert answer.status_code == 400, (field, name)
            told = answer.get_json()["errors"]
            assert "must be 1 to 200 of the characters" in str(told[f"params.{field}"]), (field, name)


def test_a_once_key_of_a_policys_own_has_the_alphabet_too(database_url: str, tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    shutil.copytree(policies_dir(), folder)
    file = folder / "retail_refund.yaml"
    file.write_text(file.read_text().replace("{refund: params.refund_id}", "{voucher: params.voucher.number}"))
    assert yaml.safe_load(file.read_text())["once_per"] == {"voucher": "params.voucher.number"}
    fixtures = make_fixtures(database_url, policies=folder)
    try:
        for value, status in (("v_1", 200), ("v 1", 400), (5, 400), ("ｖ", 400)):
            answer = fixtures.post("action/guard", guard_body(params={"voucher": {"number": value}}))
            assert answer.status_code == status, answer.text
        assert "params.voucher.number" in answer.get_json()["errors"]
        assert verdict(fixtures.guard(guard_body())) == ("DENY", "fact_missing")
        assert verdict(fixtures.guard(guard_body(params={"voucher": {"number": "V_1"}}))) == ALIKE
    finally:
        fixtures.close()


def test_what_the_policy_began_to_count_later_is_not_renewed_without_its_key(database_url: str, tmp_path: Path) -> None:
    """The finding: the same refund was paid twice, by an operation from before the policy said that it may happen once."""
    folder = tmp_path / "policies"
    shutil.copytree(policies_dir(), folder, ignore=shutil.ignore_patterns("cases", "*.py", "*.md"))
    file = folder / "retail_refund.yaml"
    text, line = file.read_text(), "once_per: {refund: params.refund_id}"
    assert line in text
    file.write_text(text.replace(line, ""))
    fixtures = make_fixtures(database_url, policies=folder)
    try:
        name = unique("rf")
        before, after = refund(name), refund(name)
        assert fixtures.guard(before)["decision"] == "ALLOW"
        let_permits_expire(fixtures)
        file.write_text(text)
        fixtures.authority.policies.reload()
        declare_policies(fixtures.authority)
        answer = fixtures.guard(after)
        assert (fixtures.start(after, answer).status_code, fixtures.report(after).status_code) == (200, 200)
        again = fixtures.guard(before)
        assert verdict(again) == ("DENY", "once_key_changed") and "permit_token" not in again
        assert fixtures.guard(before)["status"] == "denied", "and stays so"
        assert verdict(fixtures.guard(refund(name))) == DUPLICATE
        assert fixtures.broken_invariants() == []
    finally:
        fixtures.close()
