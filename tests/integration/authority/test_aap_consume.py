"""Consuming in the Agent Approval Protocol: one key starts it, a repeat is answered as it stands now, and nothing is left claimed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from sentinel.authority import aap_requests
from sentinel.authority.aap_requests import AapRequest
from sentinel.authority.api.authority_calls import AuthorityCalls
from sentinel.authority.decisions import Recorded
from sentinel.authority.housekeeping import run_housekeeping
from sentinel.core.errors import EngineUnavailable, StillDeciding
from sentinel.store.database import Pool
from tests.support.aap import AGENT, NEEDS_PERSON, REQUESTS, Instance, call, code, operation
from tests.support.fixtures import Fixtures
from tests.support.harness import decide, let_leave_end, refused
from tests.support.not_executed import say


@pytest.fixture
def instance(fixtures: Fixtures) -> Iterator[Instance]:
    yield Instance(fixtures, fixtures.new_key(agent_id=AGENT))


def test_a_consume_whose_answer_was_lost_is_finished_under_its_key_alone(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = instance.made(call())
    with monkeypatch.context() as patched:
        patched.setattr("sentinel.authority.aap_requests.consume", _dies)
        assert instance.consume(asked["id"], "mine").status_code == 500
    assert operation(instance.fixtures)[0] == "started"
    assert code(instance.consume(asked["id"], "other")) == (409, "already_consumed")
    assert instance.consume(asked["id"], "mine").json["consumption"]
    assert instance.fixtures.one("select count(*) from sentinel.events where kind = 'start'") == 1


def started_and_in_doubt(instance: Instance) -> tuple[str, dict[str, Any]]:
    """(request id, its operation's key) of a request that was consumed under "mine" and then not reported."""
    body = call()
    asked = instance.made(body)
    assert instance.consume(asked["id"], "mine").status_code == 200
    run_housekeeping(instance.fixtures.authority.pool, 0)
    return asked["id"], {"idempotency_key": f"stripe-refund:{body['arguments']['payment_intent']}:5000"}


@pytest.mark.parametrize("key", ["mine", "other"])
def test_no_consume_is_answered_after_a_person_said_not_executed(instance: Instance, key: str) -> None:
    request_id, named = started_and_in_doubt(instance)
    let_leave_end(instance.fixtures)
    say(instance.fixtures, named, executed=False)
    assert instance.consume(request_id, key).status_code == 409
    assert instance.fixtures.broken_invariants() == []


@pytest.mark.parametrize("outcome", [None, "failed"])
def test_a_repeated_consume_gives_leave_to_act_anew(instance: Instance, outcome: str | None) -> None:
    request_id, named = started_and_in_doubt(instance)
    if outcome is not None:
        assert instance.outcome(request_id, outcome).status_code == 200
    let_leave_end(instance.fixtures)
    assert instance.consume(request_id, "mine").json["consumption"]
    assert refused(lambda: say(instance.fixtures, named, executed=False)) == "still-acting"


@pytest.mark.parametrize("by_a_person", [True, False])
def test_a_consume_of_what_was_done_is_not_answered_again(instance: Instance, by_a_person: bool) -> None:
    request_id, named = started_and_in_doubt(instance)
    if by_a_person:
        say(instance.fixtures, named, executed=True)
    else:
        assert instance.outcome(request_id, "succeeded").status_code == 200
    assert code(instance.consume(request_id, "mine")) == (409, "already_consumed")
    assert instance.show(request_id)["consumption"], "what was consumed stays so"


@pytest.mark.parametrize("error", [EngineUnavailable("away"), StillDeciding("its lock is held")])
def test_a_consume_that_started_nothing_leaves_the_request_to_another_key(
    instance: Instance, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    asked = instance.made(call())
    with monkeypatch.context() as patched:
        patched.setattr(AuthorityCalls, "guard", _raises(error))
        assert instance.consume(asked["id"], "a").status_code == 503
    assert instance.show(asked["id"])["status"] == "approved"
    assert instance.consume(asked["id"], "b").json["consumption"]
    assert code(instance.consume(asked["id"], "a")) == (409, "already_consumed")
    assert instance.fixtures.one("select count(*) from sentinel.events where kind = 'start'") == 1
    assert instance.fixtures.broken_invariants() == []


def test_whichever_of_two_consume_keys_starts_has_consumed(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one comes between the start and the record of it."""
    asked = instance.made(call())
    honest, others = aap_requests.consume, []

    def late(*arguments: Any, **named: Any) -> None:
        monkeypatch.setattr("sentinel.authority.aap_requests.consume", honest)
        others.append(instance.consume(asked["id"], "other"))
        honest(*arguments, **named)

    monkeypatch.setattr("sentinel.authority.aap_requests.consume", late)
    assert instance.consume(asked["id"], "mine").json["consumption"]
    assert [code(one) for one in others] == [(409, "already_consumed")]
    assert instance.consume(asked["id"], "mine").status_code == 200


def test_what_somebody_may_be_consuming_is_not_cancelled(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another key that is refused meanwhile gives back what it took, not what it found taken."""
    asked = instance.made(call(NEEDS_PERSON))
    approval = instance.approval_of(asked["id"])
    with monkeypatch.context() as patched:
        patched.setattr(AuthorityCalls, "guard", _raises(EngineUnavailable("away")))
        assert instance.consume(asked["id"], "mine").status_code == 503
    assert code(instance.consume(asked["id"], "other")) == (409, "not_approved")
    assert code(instance.ask("DELETE", f"{REQUESTS}/{asked['id']}")) == (409, "already_terminal")
    decide(instance.fixtures, approval)
    assert instance.consume(asked["id"], "mine").json["consumption"]


def test_what_nobody_is_consuming_any_more_is_cancelled(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key that may have started it was answered: nothing was."""
    asked = instance.made(call(NEEDS_PERSON))
    with monkeypatch.context() as patched:
        patched.setattr(AuthorityCalls, "guard", _raises(EngineUnavailable("away")))
        assert instance.consume(asked["id"], "mine").status_code == 503
    assert code(instance.consume(asked["id"], "mine")) == (409, "not_approved")
    gone = instance.ask("DELETE", f"{REQUESTS}/{asked['id']}")
    assert (gone.status_code, gone.json["status"]) == (200, "cancelled")


def test_what_two_keys_were_refused_at_once_is_cancelled(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one comes while the first is being refused, and gives back later than it."""
    asked = instance.made(call(NEEDS_PERSON))
    honest, others, put_off = aap_requests.release, [], []

    def in_turn(*arguments: Any) -> None:
        if others:
            put_off.append(arguments)
            return
        others.append("other")
        others.append(instance.consume(asked["id"], "other"))
        honest(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr("sentinel.authority.aap_requests.release", in_turn)
        assert code(instance.consume(asked["id"], "mine")) == (409, "not_approved")
    assert code(others[1]) == (409, "not_approved")
    for arguments in put_off:
        honest(*arguments)
    assert instance.ask("DELETE", f"{REQUESTS}/{asked['id']}").status_code == 200


@pytest.mark.parametrize("gives_back", [True, False])
def test_a_start_is_its_keys_whoever_claims_the_request_meanwhile(
    instance: Instance, monkeypatch: pytest.MonkeyPatch, gives_back: bool
) -> None:
    """Its answer was lost; it asks again, and another key comes between reading the request and claiming it."""
    asked = instance.made(call())
    with monkeypatch.context() as patched:
        patched.setattr("sentinel.authority.aap_requests.consume", _dies)
        assert instance.consume(asked["id"], "mine").status_code == 500
    honest = aap_requests.claim

    def late(pool: Pool, row: AapRequest, key: str) -> bool:
        monkeypatch.setattr("sentinel.authority.aap_requests.claim", honest)
        assert honest(pool, row, "other")
        is_claimed = honest(pool, row, key)
        if gives_back:
            aap_requests.release(pool, row, "other")
        return is_claimed

    monkeypatch.setattr("sentinel.authority.aap_requests.claim", late)
    found = instance.consume(asked["id"], "mine")
    assert (found.status_code, found.json["status"]) == (200, "approved")
    assert found.json["consumption"]
    assert code(instance.consume(asked["id"], "other")) == (409, "already_consumed")
    assert instance.outcome(asked["id"], "succeeded").status_code == 200
    assert instance.fixtures.one("select count(*) from sentinel.events where kind = 'start'") == 1


def test_an_unguarded_tools_request_is_one_consume_keys_alone(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = instance.made(call(tool="list_customers", arguments={}))
    with monkeypatch.context() as patched:
        patched.setattr("sentinel.authority.aap_requests.consume", _dies)
        assert instance.consume(asked["id"], "mine").status_code == 500
    assert code(instance.consume(asked["id"], "other")) == (409, "already_consumed")
    assert instance.consume(asked["id"], "mine").json["consumption"]


def _raises(error: Exception) -> Callable[..., Awaitable[Recorded]]:
    async def guard(*_: Any, **__: Any) -> Recorded:
        raise error

    return guard


def _dies(*_: Any, **__: Any) -> None:
    raise RuntimeError("the process was killed here")
