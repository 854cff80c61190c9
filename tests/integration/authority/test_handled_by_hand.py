"""A person did it elsewhere: recorded with a reference, and never done again by the machine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sentinel.core.errors import Conflict, Forbidden, InvalidInput
from tests import mutants
from tests.support.escalations import asks, by_hand, shown, status
from tests.support.fixtures import Fixtures, guard_body, make_fixtures
from tests.support.harness import at_once, decide, dump, let_approvals_expire

pytestmark = pytest.mark.usefixtures("patient")


def test_handled_by_hand_is_recorded_with_its_reference_and_denied_to_the_machine(fixtures: Fixtures) -> None:
    body = asks(guard_body(), "open_complaint")
    answer = fixtures.guard(body)
    assert by_hand(fixtures, answer).result == "handled"
    assert status(fixtures.guard(body)) == ("DENY", "denied", "handled_by_person")
    row = shown(fixtures, answer)
    assert (row.status, row.handled_reference, row.offers) == ("rejected", "ticket 7", [])
    told = json.loads(fixtures.one("select body from sentinel.events where kind = 'approval_handled'"))
    assert (told["operator"], told["reference"], told["reasons"]) == (
        f"approver@{fixtures.one('select label from sentinel.tenants')}.example", "ticket 7", ["open_complaint"])  # fmt: skip
    agents = fixtures.get(f"approval/{answer['approval_id']}").get_json()
    assert (agents["status"], agents["reason"]) == ("rejected", "paid by bank transfer")
    assert "ticket 7" not in json.dumps(agents)
    for verdict in ("approve", "reject"):
        with pytest.raises(Conflict):
            decide(fixtures, answer["approval_id"], verdict, role="admin")
    assert fixtures.broken_invariants() == []


def paid_twice_after_handling(fixtures: Fixtures) -> bool:
    """Whether what a person handled by hand is decided once more under another key."""
    body = guard_body()
    by_hand(fixtures, fixtures.guard(asks(body, "open_complaint")))
    other = guard_body(params={"refund_id": body["params"]["refund_id"]})
    return fixtures.guard(other)["decision"] != "DENY"


def test_what_was_handled_by_hand_is_not_done_again_under_another_key(fixtures: Fixtures) -> None:
    assert not paid_twice_after_handling(fixtures)


def test_mutant_that_frees_what_was_handled_is_caught(database_url: str) -> None:
    fixtures = make_fixtures(database_url)
    try:
        mutants.cut(
            fixtures, "sentinel.resolve_approval", "once_live and vote <> 'reject'", "once_live and vote = 'approve'"
        )
        assert paid_twice_after_handling(fixtures)
    finally:
        fixtures.close()


@pytest.mark.parametrize("reference", [None, "", "   ", "x" * 201, "a\u202eb", "a\x00b"])
def test_a_handling_without_a_plain_reference_is_refused_and_changes_nothing(
    fixtures: Fixtures, reference: Any
) -> None:
    answer = fixtures.guard(asks(guard_body(), "open_complaint"))
    before = dump(fixtures.admin)
    with pytest.raises(InvalidInput, match="reference"):
        by_hand(fixtures, answer, reference=reference)
    assert dump(fixtures.admin) == before


def test_handling_keeps_every_rule_of_a_vote(fixtures: Fixtures) -> None:
    answer = fixtures.guard(asks(guard_body(value=600), "open_complaint"))
    with pytest.raises(Forbidden):
        by_hand(fixtures, answer, role="viewer")
    with pytest.raises(Conflict, match="digest"):
        by_hand(fixtures, answer, digest="sha256:" + "0" * 64)
    owned = fixtures.post(
        "action/guard", asks(guard_body(), "open_complaint"), key=fixtures.new_key(owner=fixtures.operators["approver"])
    )
    with pytest.raises(Forbidden, match="rotated the key"):
        by_hand(fixtures, owned.get_json())
    # One person is enough, also where approving would take two: nothing is released by it.
    assert by_hand(fixtures, answer, digest=shown(fixtures, answer).digest).result == "handled"
    late = fixtures.guard(asks(guard_body(), "open_complaint"))
    let_approvals_expire(fixtures)
    with pytest.raises(Conflict, match="expired"):
        by_hand(fixtures, late)
    assert fixtures.broken_invariants() == []


def test_of_many_votes_at_once_one_decides(fixtures: Fixtures) -> None:
    for _ in range(3):
        body = asks(guard_body(), "open_complaint")
        answer = fixtures.guard(body)
        votes = [lambda: by_hand(fixtures, answer).result, lambda: decide(fixtures, answer["approval_id"], role="admin").result,
                 lambda: decide(fixtures, answer["approval_id"], "reject", role="admin").result] * 3  # fmt: skip
        told = at_once(votes)
        assert sum(isinstance(one, str) for one in told) == 1, told
        assert fixtures.guard(body)["status"] in ("approved", "denied")
    assert fixtures.broken_invariants() == []
