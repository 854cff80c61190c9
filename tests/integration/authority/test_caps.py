"""G4, G5: no cap is passed by one minor unit, none leaks, none refuses with room left, however many ask at once."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from sentinel.authority.decisions import Recorded
from sentinel.core.errors import SentinelError
from tests import mutants
from tests.support.fixtures import Fixtures, guard_body, make_fixtures, unique
from tests.support.harness import Desk, at_once, decide, desks, let_permits_expire, scaled, seeded

pytestmark = pytest.mark.usefixtures("patient")
CAP = 30_000
"""The retail policy's cap for an account's day, in minor units."""

# Two budgets with different owners over every request: the account's and the agent's.
OVERLAPPING = """
policy: overlapping
label: Two Owners v1
version: overlapping-v1
actions: [refund.create]
facts:
  agent:   {type: string, from: agent_id}
  account: {type: string, from: params.account_ref, vouched_by: worker}
  amount:  {type: money,  from: params.amount}
numbers: {most: {USD: "1000.00"}}
rules:
  - {id: fine, says: The amount is small enough., when: amount_minor <= numbers.most, then: ALLOW, reason: within_policy_limit}
limits:
  - {id: account_day, says: What one account gets in a day., window: calendar_day, per: [account, currency], cap: {USD: "100.00"}, then: APPROVAL_REQUIRED, reason: limit_exceeded}
  - {id: agent_day, says: What one agent pays in a day., window: rolling 24h, per: [agent, currency], cap: {USD: "250.00"}, then: DENY, reason: limit_exceeded}
approval: {expires: 30m, role: approver, people: 1}
"""


def ask(account: str, minor: int, **over: object) -> dict[str, object]:
    """A refund of `minor` cents from one account."""
    return guard_body(value=f"{minor // 100}.{minor % 100:02d}", params={"account_ref": account}, **over)


def used(fixtures: Fixtures, limit: str) -> int:
    """What is held and captured of the limits with this id, in minor units, at their fullest."""
    return int(fixtures.one(
        "select coalesce(max(held_minor + captured_minor), 0) from sentinel.usage where limit_key like %s", f"%{limit}%"
    ))  # fmt: skip


def race(
    bench: list[Desk],
    account: str,
    dice: random.Random,
    *,
    threads: int = 12,
    each: int = 6,
    least: int = 1,
    most: int = 2500,
) -> list[tuple[int, Recorded]]:
    """Many callers on one account; some start, report or let go what they got. (minor units, decision) each."""
    plans = [[dice.randint(least, most) for _ in range(each)] for _ in range(threads)]
    fates = [[dice.choice(["leave", "start", "success", "error"]) for _ in range(each)] for _ in range(threads)]

    def one(place: int) -> list[tuple[int, Recorded]]:
        desk, got = bench[place % len(bench)], []
        for minor, fate in zip(plans[place], fates[place], strict=True):
            body = ask(account, minor)
            decision = desk.guard(body)
            got.append((minor, decision))
            if decision.decision == "ALLOW" and fate != "leave":
                desk.start(body, decision)
                if fate != "start":
                    desk.report(body, fate)
        return got

    answers = at_once([lambda place=place: one(place) for place in range(threads)])
    failed = [answer for answer in answers if isinstance(answer, BaseException)]
    assert not failed, failed
    return [pair for answer in answers for pair in answer]  # type: ignore[union-attr]


def overspent(fixtures: Fixtures, answers: list[tuple[int, Recorded]]) -> list[str]:
    """What is wrong with the budgets after a race; the checker of this file."""
    found = fixtures.broken_invariants()
    allowed = sum(minor for minor, decision in answers if decision.decision == "ALLOW")
    if allowed > CAP:
        found.append(f"{allowed - CAP} minor units over the cap were allowed")
    if used(fixtures, "account_day") > CAP:
        found.append("held and captured are over the cap")
    return found


@pytest.mark.parametrize("seed", [1, 2])
def test_a_cap_is_never_exceeded_by_one_minor_unit_nor_refused_with_room_left(fixtures: Fixtures, seed: int) -> None:
    dice = seeded(seed, 72)
    with desks(fixtures, 3) as bench:
        answers = race(bench, unique("acct"), dice, threads=scaled(12))
    assert overspent(fixtures, answers) == []
    room = CAP - sum(minor for minor, decision in answers if decision.decision == "ALLOW")
    small = [minor for minor, decision in answers if decision.decision != "ALLOW" and minor <= room]
    assert small == [], "refused although it fitted"
    assert {decision.reason_code for _, decision in answers} <= {"within_policy_limit", "limit_exceeded"}
    assert any(decision.reason_code == "limit_exceeded" for _, decision in answers), "the race never reached the cap"


def test_mutant_sum_then_insert_without_locks_overspends_and_is_caught(database_url: str) -> None:
    fixtures = make_fixtures(database_url)
    try:
        mutants.without_locks(fixtures, "pg_advisory_xact_lock", "pg_try_advisory_xact_lock")
        mutants.without_constraint(fixtures, "sentinel.budgets", "usage_within_cap")
        mutants.meet_in_set(fixtures.admin, parties=3)
        with desks(fixtures, 3) as bench:
            answers = race(bench, unique("acct"), seeded(3, 3), threads=3, each=1, least=11_000, most=14_000)
        found = overspent(fixtures, answers)
        assert any("over the cap were allowed" in one for one in found)
        # Who comes last either adds to a budget that is full, or loses it to another and adds nothing.
        assert {"cap_exceeded", "held_differs"} & set(found)
    finally:
        fixtures.close()


def test_exactly_the_cap_passes_and_one_minor_unit_more_does_not(fixtures: Fixtures) -> None:
    account = unique("acct")
    assert fixtures.guard(ask(account, 15_000))["decision"] == "ALLOW"
    assert fixtures.guard(ask(account, 14_999))["decision"] == "ALLOW"
    over = fixtures.guard(ask(account, 2))
    assert (over["decision"], over["reason_code"]) == ("APPROVAL_REQUIRED", "limit_exceeded")
    assert fixtures.guard(ask(account, 1))["decision"] == "ALLOW"
    assert fixtures.guard(ask(account, 1))["decision"] == "APPROVAL_REQUIRED"
    assert used(fixtures, "account_day") == CAP
    assert fixtures.broken_invariants() == []


def test_two_overlapping_caps_with_different_owners_hold_together(database_url: str, tmp_path: Path) -> None:
    (tmp_path / "overlapping.yaml").write_text(OVERLAPPING)
    fixtures = make_fixtures(database_url, policies=tmp_path)
    dice = seeded(5, 60)
    try:
        accounts = [unique("acct") for _ in range(3)]
        with desks(fixtures, 2) as bench:
            answers = at_once([
                lambda desk=desk, account=account, amounts=amounts: [(m, account, desk.guard(ask(account, m))) for m in amounts]
                for desk in bench for account in accounts for amounts in [[dice.randint(1, 2500) for _ in range(10)]]
            ])  # fmt: skip
        rows = [row for answer in answers for row in answer]  # type: ignore[union-attr]
        allowed = {
            account: sum(m for m, a, d in rows if a == account and d.decision == "ALLOW") for account in accounts
        }
        assert max(allowed.values()) <= 10_000
        assert sum(allowed.values()) <= 25_000
        for minor, account, decision in rows:
            if decision.decision == "DENY":
                assert minor > 25_000 - sum(allowed.values())
            elif decision.decision == "APPROVAL_REQUIRED":
                assert minor > 10_000 - allowed[account]
        assert fixtures.broken_invariants() == []
    finally:
        fixtures.close()


def test_budget_of_expired_permits_is_free_at_once_without_housekeeping(fixtures: Fixtures) -> None:
    account = unique("acct")
    for _ in range(2):
        assert fixtures.guard(ask(account, 15_000))["decision"] == "ALLOW"
    assert fixtures.guard(ask(account, 1))["decision"] == "APPROVAL_REQUIRED"
    let_permits_expire(fixtures)
    assert fixtures.guard(ask(account, 15_000))["decision"] == "ALLOW"
    assert fixtures.broken_invariants() == []


def test_budget_of_another_accounts_expired_permits_is_free_at_once_under_a_shared_cap(
    database_url: str, tmp_path: Path
) -> None:
    (tmp_path / "overlapping.yaml").write_text(OVERLAPPING)
    fixtures = make_fixtures(database_url, policies=tmp_path)
    try:
        for _ in range(3):
            fixtures.guard(ask(unique("acct"), 8_000))
        assert fixtures.guard(ask(unique("acct"), 8_000))["decision"] == "DENY"
        let_permits_expire(fixtures)
        assert fixtures.guard(ask(unique("acct"), 8_000))["decision"] == "ALLOW"
        assert fixtures.broken_invariants() == []
    finally:
        fixtures.close()


def test_held_is_the_sum_of_live_permits_and_captured_that_of_successes(fixtures: Fixtures) -> None:
    account = unique("acct")
    bodies = [ask(account, minor) for minor in (100, 200, 400, 800)]
    answers = [fixtures.guard(body) for body in bodies]
    for body, answer in list(zip(bodies, answers, strict=True))[:3]:
        fixtures.start(body, answer)
    fixtures.report(bodies[0])
    fixtures.report(bodies[1], "error")
    row = "select array[held_minor, captured_minor] from sentinel.usage where limit_key like '%%account_day%%'"
    assert fixtures.one(row) == [1400, 100]
    let_permits_expire(fixtures)
    fixtures.run_housekeeping()
    assert fixtures.one(row) == [600, 100]
    assert fixtures.broken_invariants() == []


def test_an_approved_excess_is_counted_beside_the_cap_and_never_in_it(fixtures: Fixtures) -> None:
    account = unique("acct")
    for _ in range(2):
        fixtures.guard(ask(account, 15_000))
    body = ask(account, 5_000)
    asked = fixtures.guard(body)
    assert asked["reason_code"] == "limit_exceeded"
    decide(fixtures, asked["approval_id"])
    lifted = fixtures.guard(body)
    assert lifted["status"] == "approved"
    columns = "select array[held_minor, captured_minor, override_held_minor, override_captured_minor] from sentinel.usage where limit_key like '%%account_day%%'"
    assert fixtures.one(columns) == [CAP, 0, 5_000, 0]
    fixtures.start(body, lifted)
    fixtures.report(body)
    assert fixtures.one(columns) == [CAP, 0, 0, 5_000]
    assert fixtures.guard(ask(account, 1))["decision"] == "APPROVAL_REQUIRED"
    assert fixtures.broken_invariants() == []


def test_a_pending_approval_holds_no_budget(fixtures: Fixtures) -> None:
    account = unique("acct")
    assert fixtures.guard(ask(account, 90_000))["status"] == "pending"
    assert used(fixtures, "account_day") == 0
    assert fixtures.guard(ask(account, 15_000))["decision"] == "ALLOW"


def test_housekeeping_and_callers_releasing_the_same_permits_release_them_once(fixtures: Fixtures) -> None:
    account = unique("acct")
    for _ in range(10):
        fixtures.guard(ask(account, 3_000))
    let_permits_expire(fixtures)
    stop = threading.Event()

    def sweep() -> None:
        while not stop.is_set():
            fixtures.run_housekeeping()

    sweeper = threading.Thread(target=sweep)
    sweeper.start()
    try:
        with desks(fixtures, 2) as bench:
            answers = at_once([lambda desk=desk: desk.guard(ask(account, 3_000)) for desk in bench * 6])
    finally:
        stop.set()
        sweeper.join()
    assert not [answer for answer in answers if isinstance(answer, (SentinelError, BaseException))]
    assert [answer.decision for answer in answers].count("ALLOW") == 10  # type: ignore[union-attr]
    assert fixtures.broken_invariants() == []
