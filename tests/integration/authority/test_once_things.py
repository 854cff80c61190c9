"""G7: a once-key belongs to the tenant and the thing, whatever policy asks; another spelling of it goes to a person."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from sentinel.platform.resources import policies_dir
from tests import twins
from tests.support.harness import at_once, decide, desks, let_permits_expire, scaled
from tests.support.world import World, guard_body, make_world, unique

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


def racing(world: World, names: list[str], body: Any = refund) -> list[Any]:
    with desks(world, 2) as bench:
        turn = itertools.cycle(bench)
        return at_once([lambda desk=next(turn), asked=body(name): desk.guard(asked) for name in names])


@pytest.mark.parametrize(
    ("first", "second"), [(refund, small_fee), (small_fee, refund)], ids=["create first", "fee first"]
)
def test_a_refund_has_one_permit_whatever_policy_is_asked(world: World, first: Any, second: Any) -> None:
    name = unique("rf")
    assert world.guard(first(name))["decision"] == "ALLOW"
    assert verdict(world.guard(second(name))) == DUPLICATE
    assert (
        verdict(world.post("action/check", {k: second(name)[k] for k in ("agent_id", "action", "params")}).get_json())
        == DUPLICATE
    )
    assert world.broken_invariants() == []


def test_of_two_policies_asked_at_once_one_permits(world: World) -> None:
    number = scaled(15)
    print(f"N={number} refunds, 4 requests each over two policies")
    for _ in range(number):
        name = unique("rf")
        with desks(world, 2) as (one, other):
            bodies = [refund(name), small_fee(name), refund(name), small_fee(name)]
            answers = at_once([lambda desk=desk, body=body: desk.guard(body) for desk, body in zip((one, other, one, other), bodies, strict=True)])  # fmt: skip
        assert sorted(answer.decision for answer in answers) == ["ALLOW", "DENY", "DENY", "DENY"]
    assert world.broken_invariants() == []


@pytest.mark.parametrize("other", ["RFDUP", "rfdup/", "rfdup.", "RfDup:-", "rfdup_"])
def test_another_spelling_of_what_is_live_goes_to_a_person(world: World, other: str) -> None:
    name = unique("rf").upper()
    near = name.lower() + other[5:]
    assert world.guard(refund(name))["decision"] == "ALLOW"
    assert (
        verdict(world.post("action/check", {k: refund(near)[k] for k in ("agent_id", "action", "params")}).get_json())
        == ALIKE
    )
    body = refund(near)
    asked = world.guard(body)
    assert verdict(asked) == ALIKE
    assert verdict(world.guard(refund(near))) == DUPLICATE, "a question to a person holds its own spelling"
    decide(world, asked["approval_id"])
    assert world.guard(body)["status"] == "approved", "a person looked at both and said they are two"
    assert verdict(world.guard(refund(name + "@"))) == ALIKE
    assert world.broken_invariants() == []


def test_punctuation_within_and_other_names_are_other_refunds(world: World) -> None:
    name = unique("rf")
    for other in (name, f"{name}1", f"{name}.1", f"x{name}", f"/{name}"):
        assert world.guard(refund(other))["decision"] == "ALLOW", other


def test_a_renewal_goes_to_a_person_where_another_spelling_went_live_meanwhile(world: World) -> None:
    name = unique("rf")
    first, second = refund(name), refund(name.upper())
    world.guard(first)
    let_permits_expire(world)
    assert world.guard(second)["decision"] == "ALLOW", "what ran out holds nothing"
    asked = world.guard(first)
    assert (asked["status"], asked["reason_code"]) == ("pending", "looks_like_duplicate")
    assert world.broken_invariants() == []


def mixed_spellings(world: World, rounds: int) -> list[str]:
    """64 requests at once for one refund in 32 spellings, over two authorities; what is wrong afterwards."""
    found = []
    for _ in range(rounds):
        answers = racing(world, spelled(unique("rf"), 64))
        allowed = [answer for answer in answers if getattr(answer, "decision", "") == "ALLOW"]
        wrong = [answer for answer in answers if isinstance(answer, BaseException)
                 or (answer.decision != "ALLOW" and (answer.decision, answer.reason_code) not in (DUPLICATE, ALIKE))]  # fmt: skip
        found += [f"{len(allowed)} allowed"] if len(allowed) != 1 else []
        found += [repr(answer) for answer in wrong]
    return found + world.broken_invariants()


def test_of_64_mixed_spellings_at_once_one_is_allowed_and_the_rest_wait_for_people(world: World) -> None:
    rounds = scaled(3)
    print(f"N={64 * rounds} requests, {rounds} refunds")
    assert mixed_spellings(world, rounds) == []


@pytest.mark.parametrize("broken", ["spellings are not compared", "decided without a lock"])
def test_twin_is_caught(database_url: str, broken: str) -> None:
    world = make_world(database_url)
    try:
        if broken == "decided without a lock":
            twins.without_locks(world, "pg_advisory_xact_lock", "pg_try_advisory_xact_lock")
            twins.meet_in_set(world.admin)
            racing(world, spelled(unique("rf"), 2))
        else:
            twins.cut(world, "sentinel.decide_new", "held_as = 'alike' and verdict <> 'DENY'", "false")
            mixed_spellings(world, 1)
        assert "done_twice_spelled" in world.broken_invariants()
    finally:
        world.close()


def test_the_lock_of_a_once_key_is_the_folded_keys(world: World) -> None:
    lock = "select sentinel.once_lock(%s, %s)"
    assert world.one(lock, world.tenant_id, "refund|rf_A") == world.one(lock, world.tenant_id, "refund|RF_a/.")
    assert world.one(lock, world.tenant_id, "refund|rf_A") != world.one(lock, world.tenant_id, "order|rf_A")


def test_the_folded_key_beside_a_key_is_what_the_function_says(world: World) -> None:
    for name in spelled(unique("Rf"), 8):
        world.guard(refund(name))
    assert (
        world.one(
            "select count(*) from sentinel.operation_states where once_folded is distinct from sentinel.once_folded(once_key)"
        )
        == 0
    )
    assert (
        world.one(
            "select count(distinct once_folded) from sentinel.operation_states where tenant_id = %s", world.tenant_id
        )
        == 1
    )


NO_IDENTIFIERS = ("ｒｆ１", "rf 1", "rf\u200b1", "rf1\n", "rf|1", "r" * 201, "rf~", "", 7, ["rf"])


def test_what_is_no_identifier_is_a_400_that_names_the_field_and_the_rule(world: World) -> None:
    for field in ("refund_id", "order_ref", "account_ref", "ledger_entry_id", "order_key"):
        for name in NO_IDENTIFIERS:
            answer = world.post("action/guard", guard_body(params={field: name}))
            assert answer.status_code == 400, (field, name)
            told = answer.get_json()["errors"]
            assert "must be 1 to 200 of the characters" in str(told[f"params.{field}"]), (field, name)


def test_a_once_key_of_a_policys_own_has_the_alphabet_too(database_url: str, tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    shutil.copytree(policies_dir(), folder)
    file = folder / "retail_refund.yaml"
    file.write_text(file.read_text().replace("{refund: params.refund_id}", "{voucher: params.voucher.number}"))
    assert yaml.safe_load(file.read_text())["once_per"] == {"voucher": "params.voucher.number"}
    world = make_world(database_url, policies=folder)
    try:
        for value, status in (("v_1", 200), ("v 1", 400), (5, 400), ("ｖ", 400)):
            answer = world.post("action/guard", guard_body(params={"voucher": {"number": value}}))
            assert answer.status_code == status, answer.text
        assert "params.voucher.number" in answer.get_json()["errors"]
        assert verdict(world.guard(guard_body())) == ("DENY", "fact_missing")
        assert verdict(world.guard(guard_body(params={"voucher": {"number": "V_1"}}))) == ALIKE
    finally:
        world.close()
