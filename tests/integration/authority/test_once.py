"""G7: what a policy lets happen once happens once, under any key, agent or channel, however many ask at once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests import mutants
from tests.support.fixtures import Fixtures, guard_body, make_fixtures, unique
from tests.support.harness import at_once, decide, desks, let_approvals_expire, let_permits_expire, scaled

pytestmark = pytest.mark.usefixtures("patient")
DUPLICATE = ("DENY", "duplicate_resource")


def same_refund(refund: str, **over: object) -> dict[str, object]:
    """Another request for the same refund under a key of its own."""
    params = {"refund_id": refund, "account_ref": unique("acct"), **over.pop("params", {})}  # type: ignore[dict-item]
    return guard_body(value=1, params=params, **over)


def verdict(answer: dict[str, object]) -> tuple[object, object]:
    return answer["decision"], answer["reason_code"]


VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"agent_id": "another-agent"},
    {"params": {"channel": "phone"}},
    {"resource": "other/thing"},
    {"risk_class": "high"},
)


def allowed_twice(fixtures: Fixtures, refunds: list[str], variants: Sequence[dict[str, Any]] = VARIANTS) -> list[str]:
    """Races a request of each variant per refund over two authorities; what is wrong afterwards."""
    with desks(fixtures, 2) as bench:
        turn = itertools.cycle(bench)
        jobs = [
            lambda desk=next(turn), body=same_refund(refund, **variant): desk.guard(body)
            for refund in refunds for variant in variants
        ]  # fmt: skip
        answers = at_once(jobs)
    errors = [repr(answer) for answer in answers if isinstance(answer, BaseException)]
    allowed = [answer for answer in answers if getattr(answer, "decision", "") == "ALLOW"]
    found = fixtures.broken_invariants() + errors
    return found + ([f"{len(allowed)} of {len(refunds)} refunds allowed"] if len(allowed) != len(refunds) else [])


def test_one_refund_is_allowed_once_under_any_key_agent_channel_or_resource(fixtures: Fixtures) -> None:
    number = scaled(12)
    print(f"N={5 * number}")
    assert allowed_twice(fixtures, [unique("rf") for _ in range(number)]) == []


@pytest.mark.parametrize("meet", [mutants.meet_in_set, mutants.meet_alone])
def test_mutant_check_then_act_allows_twice_and_is_caught(database_url: str, meet: Callable[[Any], None]) -> None:
    fixtures = make_fixtures(database_url)
    try:
        mutants.without_locks(fixtures, "pg_advisory_xact_lock", "pg_try_advisory_xact_lock")
        mutants.without_constraint(fixtures, "sentinel.operation_states", "operation_states_once")
        for agent in ({}, {"agent_id": "another-agent"}):  # the totals have their rows: only the refund is raced for
            fixtures.guard(same_refund(unique("rf"), **agent))
        meet(fixtures.admin)
        # One at each authority: those of one commit would be decided one after the other.
        assert "done_twice" in allowed_twice(fixtures, [unique("rf")], VARIANTS[:2])
    finally:
        fixtures.close()


def test_a_second_request_is_denied_while_the_first_is_allowed_started_in_doubt_or_done(fixtures: Fixtures) -> None:
    refund = unique("rf")
    first = same_refund(refund)
    answer = fixtures.guard(first)
    assert verdict(fixtures.guard(same_refund(refund))) == DUPLICATE
    fixtures.start(first, answer)
    assert verdict(fixtures.guard(same_refund(refund))) == DUPLICATE
    fixtures.report(first, "error")
    assert verdict(fixtures.guard(same_refund(refund))) == DUPLICATE
    done = unique("rf")
    other = same_refund(done)
    fixtures.start(other, fixtures.guard(other))
    fixtures.report(other)
    assert verdict(fixtures.guard(same_refund(done))) == DUPLICATE
    assert fixtures.broken_invariants() == []


def test_an_expired_permit_gives_the_refund_free_at_once(fixtures: Fixtures) -> None:
    refund = unique("rf")
    first = same_refund(refund)
    fixtures.guard(first)
    let_permits_expire(fixtures)
    second = same_refund(refund)
    assert fixtures.guard(second)["decision"] == "ALLOW"
    assert verdict(fixtures.guard(first)) == DUPLICATE, "the first one came too late"
    assert fixtures.broken_invariants() == []


def test_an_expired_permit_gives_the_refund_free_to_an_older_key_that_renews(fixtures: Fixtures) -> None:
    refund = unique("rf")
    first, second = same_refund(refund), same_refund(refund)
    fixtures.guard(first)
    let_permits_expire(fixtures)
    assert fixtures.guard(second)["decision"] == "ALLOW"
    let_permits_expire(fixtures)
    assert fixtures.guard(first)["decision"] == "ALLOW"
    assert fixtures.broken_invariants() == []


@pytest.mark.parametrize("end", ["rejected", "expired"])
def test_a_pending_request_holds_the_refund_until_it_is_rejected_or_expires(fixtures: Fixtures, end: str) -> None:
    refund = unique("rf")
    body = same_refund(refund) | {
        "params": same_refund(refund)["params"] | {"amount": {"value": 200, "currency": "USD"}}
    }  # type: ignore[operator]
    asked = fixtures.guard(body)
    assert asked["status"] == "pending"
    assert verdict(fixtures.guard(same_refund(refund))) == DUPLICATE
    if end == "rejected":
        decide(fixtures, asked["approval_id"], "reject")
    else:
        let_approvals_expire(fixtures)
        fixtures.run_housekeeping()
    assert fixtures.guard(same_refund(refund))["decision"] == "ALLOW"
    assert fixtures.broken_invariants() == []


def test_an_approved_request_keeps_the_refund_while_its_permit_waits(fixtures: Fixtures) -> None:
    refund = unique("rf")
    body = same_refund(refund) | {
        "params": same_refund(refund)["params"] | {"amount": {"value": 200, "currency": "USD"}}
    }  # type: ignore[operator]
    asked = fixtures.guard(body)
    decide(fixtures, asked["approval_id"])
    assert verdict(fixtures.guard(same_refund(refund))) == DUPLICATE
    fixtures.guard(body)
    let_permits_expire(fixtures)
    fixtures.run_housekeeping()
    assert verdict(fixtures.guard(same_refund(refund))) == DUPLICATE, "an approval stays good"
    assert fixtures.guard(body)["status"] == "approved"
    assert fixtures.broken_invariants() == []


def test_a_denied_request_holds_nothing(fixtures: Fixtures) -> None:
    refund = unique("rf")
    denied = same_refund(
        refund,
        params={
            "risk": {
                "duplicate_refund": True,
                "stale_window": False,
                "suspicious_reason": False,
                "customer_attempts_24h": 0,
            }
        },
    )
    assert fixtures.guard(denied)["decision"] == "DENY"
    assert fixtures.guard(same_refund(refund))["decision"] == "ALLOW"


def test_two_tenants_do_not_share_what_happens_once(fixtures: Fixtures) -> None:
    from tests.support.fixtures import add_tenant

    _, key, _ = add_tenant(fixtures.url, unique("tenant").replace("_", "-"))
    body = same_refund(unique("rf"))
    assert fixtures.guard(body)["decision"] == "ALLOW"
    assert fixtures.post("action/guard", body, key=key).get_json()["decision"] == "ALLOW"


def test_what_a_person_approved_stands_in_the_way_of_another_key_also_when_its_permit_ran_out(
    fixtures: Fixtures,
) -> None:
    first = guard_body(value=200, params={"account_ref": unique("acct")})
    refund = str(first["params"]["refund_id"])
    decide(fixtures, fixtures.guard(first)["approval_id"])
    assert fixtures.guard(first)["status"] == "approved"
    let_permits_expire(fixtures)
    assert verdict(fixtures.guard(same_refund(refund))) == ("DENY", "duplicate_resource")
    assert fixtures.guard(first)["status"] == "approved", "its permit is renewed"
    assert fixtures.broken_invariants() == []


def test_a_renewal_is_refused_while_another_key_was_approved_and_its_permit_ran_out(fixtures: Fixtures) -> None:
    refund, other = unique("rf"), guard_body(value=200, params={"account_ref": unique("acct")})
    first = same_refund(refund)
    fixtures.guard(first)
    let_permits_expire(fixtures)
    fixtures.run_housekeeping()
    other["params"]["refund_id"] = refund
    decide(fixtures, fixtures.guard(other)["approval_id"])
    assert fixtures.guard(other)["status"] == "approved"
    let_permits_expire(fixtures)
    assert verdict(fixtures.guard(first)) == ("DENY", "duplicate_resource")
    assert fixtures.broken_invariants() == []
