"""A key puts no further question to people than it may have open; all else of it is answered as ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentinel.authority.housekeeping import mark_keys_at_limits
from tests import mutants
from tests.support.escalations import asks
from tests.support.fixtures import Fixtures, guard_body, unique
from tests.support.harness import decide, let_permits_expire
from tests.support.lifecycle import Body, fill_account, pending, policy_change

NO_PERMITS = 1000
"""More permits than a test leaves out."""


def mark(fixtures: Fixtures, most_questions: int) -> int:
    """How many keys have so many questions open; the mark lasts until the test is over, also on a busy machine."""
    marked = mark_keys_at_limits(fixtures.authority.pool, NO_PERMITS, most_questions)
    fixtures.admin.execute("update sentinel.keys_at_limit set valid_until = clock_timestamp() + interval '1 hour'")
    return marked


def open_questions(fixtures: Fixtures, number: int) -> list[tuple[Body, Body]]:
    """Requests and answers that wait for people."""
    return [pending(fixtures) for _ in range(number)]


def recorded(fixtures: Fixtures) -> tuple[int, int]:
    """How many operations and approvals there are."""
    return (
        fixtures.one("select count(*) from sentinel.operations"),
        fixtures.one("select count(*) from sentinel.approvals"),
    )


def test_a_key_with_too_many_questions_open_puts_no_further_one(fixtures: Fixtures) -> None:
    account = unique("acct")
    fill_account(fixtures, account)
    waiting = open_questions(fixtures, 3)
    assert mark(fixtures, 4) == 0
    assert mark(fixtures, 3) == 1

    before, ways = recorded(fixtures), {
        "the policy's rule": guard_body(value=200),
        "a limit": guard_body(value=150, params={"account_ref": account}),
        "who asks for a person": asks(guard_body(), "image_missing"),
    }  # fmt: skip
    for way, body in ways.items():
        refused = fixtures.post("action/guard", body)
        assert (refused.status_code, refused.get_json()["type"]) == (
            429, "urn:sentinel:problem:too-many-open-questions"
        ), way  # fmt: skip
        assert int(refused.headers["Retry-After"]) >= 1
    assert recorded(fixtures) == before

    # What goes to nobody, what was asked before, and other keys.
    assert fixtures.guard(guard_body())["decision"] == "ALLOW"
    assert fixtures.guard(guard_body(value=2000))["decision"] == "DENY"
    assert fixtures.guard(waiting[0][0])["status"] == "pending"
    batch = [guard_body(value=200), guard_body(), waiting[1][0], guard_body(value=2000)]
    answers = fixtures.post("action/guard/batch", {"requests": batch}).get_json()["answers"]
    assert [answer["status"] for answer in answers] == [429, 200, 200, 200]
    assert fixtures.post("action/guard", guard_body(value=200), key=fixtures.new_key()).status_code == 200

    decide(fixtures, waiting[0][1]["approval_id"], "reject")
    fixtures.admin.execute("delete from sentinel.keys_at_limit")
    assert mark(fixtures, 3) == 0
    assert fixtures.guard(ways["the policy's rule"])["status"] == "pending"
    assert fixtures.broken_invariants() == []


def test_a_permit_that_ran_out_is_renewed_but_by_no_further_question(fixtures: Fixtures, tmp_path: Path) -> None:
    body = guard_body(value=140)
    fixtures.guard(body)
    open_questions(fixtures, 2)
    mark(fixtures, 2)
    let_permits_expire(fixtures)
    assert fixtures.guard(body)["status"] == "allowed"
    let_permits_expire(fixtures)
    policy_change(fixtures, tmp_path, 'allow_up_to:   {USD: "150.00"', 'allow_up_to:   {USD: "100.00"')
    assert fixtures.post("action/guard", body).status_code == 429
    fixtures.admin.execute("delete from sentinel.keys_at_limit")
    assert fixtures.guard(body)["status"] == "pending"
    assert fixtures.broken_invariants() == []


def test_permits_and_questions_are_counted_each_by_itself(fixtures: Fixtures) -> None:
    open_questions(fixtures, 2)
    fixtures.guard(guard_body())
    pool = fixtures.authority.pool
    assert mark_keys_at_limits(pool, 1, 3) == 1
    assert fixtures.admin.execute("select open_permits, open_questions from sentinel.keys_at_limit").fetchall() == [
        (1, 0)
    ]
    assert mark_keys_at_limits(pool, 1, 2) == 1
    assert fixtures.admin.execute("select open_permits, open_questions from sentinel.keys_at_limit").fetchall() == [
        (1, 2)
    ]
    mark(fixtures, 2)
    assert fixtures.admin.execute("select open_permits, open_questions from sentinel.keys_at_limit").fetchall() == [
        (0, 2)
    ]


def test_a_mark_from_before_the_clock_was_set_back_ends_with_the_next_count(fixtures: Fixtures) -> None:
    """As after a failover to a server whose clock is right. The finding: the key was refused until the clock had caught up."""
    [(_, answer)] = open_questions(fixtures, 1)
    assert mark(fixtures, 1) == 1
    assert fixtures.post("action/guard", guard_body(value=200)).status_code == 429
    decide(fixtures, answer["approval_id"], "reject")
    assert mark_keys_at_limits(fixtures.authority.pool, NO_PERMITS, 1) == 0
    assert fixtures.guard(guard_body(value=200))["status"] == "pending"


@pytest.mark.parametrize(
    ("function", "fence", "instead"),
    [
        ("sentinel.is_at_question_limit", "c.open_questions > 0", "false"),
        ("sentinel.plain_rows", "t.verdict = 'APPROVAL_REQUIRED'", "false"),
        ("sentinel.mark_keys_at_limits", "where counted.open_questions >= most_questions", "where false"),
    ],
)
def test_mutants_without_the_cap_are_caught(fixtures: Fixtures, function: str, fence: str, instead: str) -> None:
    mutants.cut(fixtures, function, fence, instead)
    open_questions(fixtures, 3)
    mark(fixtures, 3)
    assert fixtures.post("action/guard", guard_body(value=200)).status_code == 200
