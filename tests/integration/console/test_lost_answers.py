"""A person's act whose commit lost its answer: the program's own second try is refused for it, and nobody is told that refusal."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from ops_console.pages.approval_votes import REPEATED
from ops_console.read_models import order_views
from sentinel.authority import approvals, halts, in_doubt, protected_changes
from sentinel.store.database import Pool
from sentinel.store.queries import act_once
from tests.integration.console.approval_pages import card, say, votes
from tests.integration.console.second_administrator import Two, approve, waiting
from tests.integration.console.test_page_in_doubt import doubted
from tests.support.lost_connections import LosesConnection
from tests.support.orders_console_fixtures import queued

NOT_KNOWN = "It is not known whether your request was executed"
Arranged = tuple[Callable[[], Any], str]
"""The act, and the query that counts how often it was done."""


def lose_connections(patched: pytest.MonkeyPatch, *, is_committed: bool = True) -> None:
    """From now on every act of a person meets it."""

    def act(pool: Any, *given: Any, **named: Any) -> Any:
        return act_once(LosesConnection(pool, is_committed=is_committed), *given, **named)

    for module in (approvals, halts, in_doubt, protected_changes, order_views):
        patched.setattr(module, "act_once", act)


def vote(fixtures: Any) -> Arranged:
    ann, approval_id = fixtures.person("ann"), fixtures.approval()
    return partial(ann.approve, approval_id), "select count(*) from sentinel.approval_votes"


def lift(fixtures: Any) -> Arranged:
    abe = fixtures.person("abe", "admin")
    halt_id = abe.post("/ops/api/halts", {"scope": "tenant", "reason": "x"}).json["halt_id"]
    path = f"/ops/api/halts/{halt_id}/lift"
    return partial(
        abe.post, path, {"reason": "over"}
    ), "select count(*) from sentinel.halts where lifted_at is not null"


def doubt_resolved(fixtures: Any) -> Arranged:
    abe, path = fixtures.person("abe", "admin"), f"/ops/api/in-doubt/{doubted(fixtures, '100.00', 1)}/resolve"
    done = "select count(*) from sentinel.events where kind = 'in_doubt_resolved'"
    return partial(abe.post, path, {"executed": True, "evidence": "the bank has it"}), done


def order_held(fixtures: Any) -> Arranged:
    ann, order_id = fixtures.person("ann"), queued(fixtures)
    return partial(ann.analyst, order_id, "hold"), "select count(*) from orders.reviews where status = 'HELD'"


def another_role(fixtures: Any) -> Arranged:
    abe, bob = fixtures.browser("abe", "admin", proved=True), fixtures.operator("bob", "viewer")
    done = "select count(*) from sentinel.operators where role = 'approver'"
    return partial(abe.submit, f"/ops/operators/{bob.operator_id}/role", role="approver", seen="viewer"), done


ACTS = [vote, lift, doubt_resolved, order_held, another_role]


@pytest.mark.parametrize("arrange", ACTS)
def test_what_the_first_try_committed_is_not_told_as_refused(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch, arrange: Callable[[Any], Arranged]
) -> None:
    act, done = arrange(fixtures)
    assert fixtures.sql(done) == [(0,)]
    lose_connections(monkeypatch)
    answer = act()
    assert (answer.status_code, NOT_KNOWN in answer.text) == (503, True), answer.text
    assert fixtures.sql(done) == [(1,)]
    monkeypatch.undo()
    assert act().status_code in (303, 404, 409), "who sends it again is told how it stands"
    assert fixtures.sql(done) == [(1,)]


@pytest.mark.parametrize("arrange", ACTS)
def test_what_the_first_try_did_not_do_is_done_by_the_second(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch, arrange: Callable[[Any], Arranged]
) -> None:
    act, done = arrange(fixtures)
    lose_connections(monkeypatch, is_committed=False)
    assert act().status_code in (200, 303)
    assert fixtures.sql(done) == [(1,)]


def test_on_the_card_it_is_found_recorded(fixtures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ann, approval_id = fixtures.browser("ann", proved=True), fixtures.approval()
    lose_connections(monkeypatch)
    assert say(ann, approval_id).status_code == 303
    assert REPEATED in card(ann, approval_id)
    assert (votes(fixtures, approval_id), fixtures.approval_status(approval_id)) == (1, "approved")


def test_a_key_whose_answer_was_lost_is_not_told_to_have_been_shown(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    key = waiting(two.ask("issue"))
    approve(two.fixtures, key, two.bea)
    with monkeypatch.context() as patched:
        lose_connections(patched)
        answer = two.ada.submit(f"/ops/approvals/{key}/collect")
    assert (answer.status_code, NOT_KNOWN in answer.text) == (503, True)
    assert "collected before" not in answer.text and "it was done" in answer.text


def test_a_connection_that_the_server_ended_while_nobody_used_it_leaves_nothing_unknown(fixtures: Any) -> None:
    """Else the first refusal of an act after each restart of the database would be told as not known."""
    with closing(Pool(fixtures.url, size=1)) as pool:
        with pool.connection() as connection:
            ended = connection.info.backend_pid
        assert fixtures.sql("select pg_terminate_backend(%s, 5000)", ended) == [(True,)]
        with pool.connection() as connection:
            assert connection.execute("select pg_backend_pid() <> %s", [ended]).fetchone() == (True,)
