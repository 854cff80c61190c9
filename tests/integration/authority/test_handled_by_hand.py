"""A person did it elsewhere: recorded with a reference, and never done again by the machine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sentinel.core.errors import Conflict, Forbidden, InvalidInput
from tests import twins
from tests.support.escalations import asks, by_hand, shown, status
from tests.support.harness import at_once, decide, dump, let_approvals_expire
from tests.support.world import World, guard_body, make_world


def test_handled_by_hand_is_recorded_with_its_reference_and_denied_to_the_machine(world: World) -> None:
    body = asks(guard_body(), "open_complaint")
    answer = world.guard(body)
    assert by_hand(world, answer).result == "handled"
    assert status(world.guard(body)) == ("DENY", "denied", "handled_by_person")
    row = shown(world, answer)
    assert (row.status, row.handled_reference, row.offers) == ("rejected", "ticket 7", [])
    told = json.loads(world.one("select body from sentinel.events where kind = 'approval_handled'"))
    assert (told["operator"], told["reference"], told["reasons"]) == (
        f"approver@{world.one('select label from sentinel.tenants')}.example", "ticket 7", ["open_complaint"])  # fmt: skip
    agents = world.get(f"approval/{answer['approval_id']}").get_json()
    assert (agents["status"], agents["reason"]) == ("rejected", "paid by bank transfer")
    assert "ticket 7" not in json.dumps(agents)
    for verdict in ("approve", "reject"):
        with pytest.raises(Conflict):
            decide(world, answer["approval_id"], verdict, role="admin")
    assert world.broken_invariants() == []


def paid_again_after_handling(world: World) -> bool:
    """Whether what a person handled by hand is decided once more under another key."""
    body = guard_body()
    by_hand(world, world.guard(asks(body, "open_complaint")))
    other = guard_body(params={"refund_id": body["params"]["refund_id"]})
    return world.guard(other)["decision"] != "DENY"


def test_what_was_handled_by_hand_is_not_done_again_under_another_key(world: World) -> None:
    assert not paid_again_after_handling(world)


def test_twin_that_frees_what_was_handled_is_caught(database_url: str) -> None:
    world = make_world(database_url)
    try:
        twins.cut(
            world, "sentinel.resolve_approval", "once_live and vote <> 'reject'", "once_live and vote = 'approve'"
        )
        assert paid_again_after_handling(world)
    finally:
        world.close()


@pytest.mark.parametrize("reference", [None, "", "   ", "x" * 201, "a\u202eb", "a\x00b"])
def test_a_handling_without_a_plain_reference_is_refused_and_changes_nothing(world: World, reference: Any) -> None:
    answer = world.guard(asks(guard_body(), "open_complaint"))
    before = dump(world.admin)
    with pytest.raises(InvalidInput, match="reference"):
        by_hand(world, answer, reference=reference)
    assert dump(world.admin) == before


def test_handling_keeps_every_rule_of_a_persons_word(world: World) -> None:
    answer = world.guard(asks(guard_body(value=600), "open_complaint"))
    with pytest.raises(Forbidden):
        by_hand(world, answer, role="viewer")
    with pytest.raises(Conflict, match="digest"):
        by_hand(world, answer, digest="sha256:" + "0" * 64)
    owned = world.post(
        "action/guard", asks(guard_body(), "open_complaint"), key=world.new_key(owner=world.operators["approver"])
    )
    with pytest.raises(Forbidden, match="asking key"):
        by_hand(world, owned.get_json())
    # One person is enough, also where approving would take two: nothing is released by it.
    assert by_hand(world, answer, digest=shown(world, answer).digest).result == "handled"
    late = world.guard(asks(guard_body(), "open_complaint"))
    let_approvals_expire(world)
    with pytest.raises(Conflict, match="expired"):
        by_hand(world, late)
    assert world.broken_invariants() == []


def test_of_many_words_at_once_one_decides(world: World) -> None:
    for _ in range(3):
        body = asks(guard_body(), "open_complaint")
        answer = world.guard(body)
        words = [lambda: by_hand(world, answer).result, lambda: decide(world, answer["approval_id"], role="admin").result,
                 lambda: decide(world, answer["approval_id"], "reject", role="admin").result] * 3  # fmt: skip
        told = at_once(words)
        assert sum(isinstance(one, str) for one in told) == 1, told
        assert world.guard(body)["status"] in ("approved", "denied")
    assert world.broken_invariants() == []
