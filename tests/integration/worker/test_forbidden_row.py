"""A row that the worker's key may not ask about, or not for now, waits with growing pauses, alone: the worker works on, and nobody
wakes it."""

from __future__ import annotations

import uuid
from contextlib import closing
from typing import Any

import pytest
from msgspec.structs import replace

import worker.refunds.agent
from sentinel.authority import guard
from sentinel.authority.housekeeping import mark_keys_at_limits
from sentinel.cli.scratch import listening
from sentinel.client import Client
from tests.support.fake_authority import FakeAuthority
from tests.support.fake_exchange import Exchange
from tests.support.fixtures import Fixtures
from tests.support.harness import decide
from tests.support.ledger_fixtures import LedgerFixtures, looping, new_row, wait_until
from worker.key_check import KeyCheck
from worker.refunds.agent import Agent
from worker.refunds.ledger import Ledger
from worker.refunds.rows import FixedQuestion, report_body
from worker.refunds.transitions import give_up


def forbids_the_other_agent(exchange: Exchange) -> bool:
    """As an authority under a key that is bound to another agent."""
    if "another-agent" not in str(exchange.body):
        return False
    exchange.problem(403, "forbidden", "this key is another agent's")
    return True


def test_a_row_that_is_forbidden_waits_alone_and_the_worker_does_not_flap(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[float] = []
    shown: list[str] = []
    waiting: list[tuple[int, int, str]] = []
    monkeypatch.setattr(Ledger, "wake_put_off", lambda self, seconds: woken.append(seconds))
    real = Agent._publish_status

    def publish(self: Agent, status: str) -> None:
        shown.append(status)
        real(self, status)

    def is_waiting() -> bool:
        waiting[:] = ledger_fixtures.all(  # type: ignore[assignment]
            "select attempts, waits, last_error from refunds.ledger_entries"
            " where ledger_entry_id = 'forbidden' and status = 'NEW' and waits >= 5"
        )
        return bool(waiting)

    monkeypatch.setattr(Agent, "_publish_status", publish)
    authority.misbehave = forbids_the_other_agent
    ledger_fixtures.add(new_row("forbidden", agent_id="another-agent"))
    with ledger_fixtures.agent(authority.url, backoff_seconds=0.02, backoff_max_seconds=60.0) as agent, looping(agent):  # fmt: skip
        wait_until(is_waiting, 20)
        assert agent.reaches_authority
        ledger_fixtures.add(new_row("good"))
        wait_until(lambda: ledger_fixtures.state("good") == "EXECUTED", 20)
        # While the worker still runs: one that ends with the row in hand says that instead.
        wait_until(is_waiting, 20)
    assert set(shown) <= {"running", "stopped"} and woken == [] and "heartbeat" not in authority.calls
    ((attempts, times, error),) = waiting
    assert attempts == 0 and times < 12, "the pauses doubled"
    assert "another agent's" in error


def test_a_single_run_goes_on_past_a_forbidden_row_and_says_so(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    authority.misbehave = forbids_the_other_agent
    ledger_fixtures.add(new_row("forbidden", agent_id="another-agent"), *(new_row(f"n{n}") for n in range(3)))
    with ledger_fixtures.agent(authority.url, batch=1) as agent:
        outcome = agent.run_once()
    assert ledger_fixtures.executions() == 3 and ledger_fixtures.state("forbidden") == "NEW"
    assert outcome.trouble is None and outcome.why_outside is not None and not outcome.row_failed


def test_a_worker_whose_key_is_bound_leaves_the_rows_of_other_agents_to_theirs(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    ledger_fixtures.add(new_row("mine"), new_row("theirs", agent_id="another-agent"))
    ours = ledger_fixtures.ledger.claim(10, None, "retail-refund-agent")
    assert [row.ledger_entry_id for row in ours] == ["mine"]
    assert [row.ledger_entry_id for row in ledger_fixtures.ledger.claim(10)] == ["theirs"], (
        "an unbound key asks for all"
    )
    ledger_fixtures.make_due()
    lapsed = ledger_fixtures.ledger.claim(10, None, "another-agent")
    assert [row.ledger_entry_id for row in lapsed] == ["theirs"]
    authority.misbehave = bound_key
    with Client(authority.url, "key", agent_id="retail-refund-agent", retries=0) as client:
        check = KeyCheck(
            client, variable="KEY", tenant_id=ledger_fixtures.tenant_id, tenant=lambda: "shop", agent_id="retail-refund-agent"
        )  # fmt: skip
        assert (check.bound_agent(), check.bound_agent()) == ("retail-refund-agent",) * 2
    assert authority.calls == ["key"], "asked once"


def test_a_worker_whose_key_is_bound_leaves_the_reports_and_doubts_of_other_agents_to_theirs(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    ledger, ours = ledger_fixtures.ledger, "retail-refund-agent"
    ledger_fixtures.add_with_orders(new_row("mine"), new_row("theirs", agent_id="another-agent"))
    rows = ledger.claim(10)
    ledger.fix_requests([(row, FixedQuestion(AMOUNT, "refund.create"), None) for row in rows])
    reports = {row.ledger_entry_id: uuid.uuid4() for row in rows}
    ended = [
        replace(
            give_up(row, "elsewhere", in_doubt=True),
            report_id=reports[row.ledger_entry_id],
            report=report_body(row, reports[row.ledger_entry_id], "error", error="elsewhere"),
        )
        for row in rows
    ]
    assert set(ledger.apply(ended)) == {"mine", "theirs"}
    ledger_fixtures.add(new_row("mine-too"), new_row("theirs-too", agent_id="another-agent"))
    assert {row.ledger_entry_id for row in ledger.in_doubt()} == {"mine", "theirs"}, "an unbound key asks for all"
    assert {row.ledger_entry_id for row in ledger.peek(10)} == {"mine-too", "theirs-too"}
    assert [row.ledger_entry_id for row in ledger.in_doubt(agent=ours)] == ["mine"]
    assert [row.ledger_entry_id for row in ledger.peek(10, ours)] == ["mine-too"]
    with ledger_fixtures.agent(authority.url, only_agent=lambda: ours) as agent:
        agent.run_once()
    assert set(authority.operations) == {"refund:mine", "refund:mine-too"}
    tries = "select attempts from refunds.outbox where ledger_entry_id = %s and payload ->> 'outcome' = 'error'"
    assert (ledger_fixtures.one(tries, "mine"), ledger_fixtures.one(tries, "theirs")) == (1, 0)
    assert {one.ledger_entry_id for one in ledger.take_reports(10, retry_seconds=60.0)} == {"theirs"}


def heard_of(ledger_fixtures: LedgerFixtures, agent_id: str, *, seconds_ago: float = 0.0) -> None:
    """A loop of this agent's worker, heard of so long ago."""
    ledger_fixtures.admin.execute(
        "insert into refunds.workers (tenant_id, worker_id, agent_id, mode, status, last_seen_at)"
        " values (%s, gen_random_uuid(), %s, 'loop', 'running', clock_timestamp() - make_interval(secs => %s))",
        [ledger_fixtures.tenant_id, agent_id, seconds_ago],
    )


def due_for(ledger_fixtures: LedgerFixtures, seconds: float) -> None:
    """As if every row had been due for so long."""
    ledger_fixtures.admin.execute(
        "update refunds.ledger_entries set next_attempt_at = clock_timestamp() - make_interval(secs => %s) where status = 'NEW'",
        [seconds],
    )


@pytest.mark.parametrize(
    ("heard", "due", "is_told"), [(None, 90, True), (7200, 90, True), (60, 90, False), (None, 5, False)]
)
def test_a_bound_worker_says_which_rows_it_leaves_and_no_worker_takes(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority, heard: float | None, due: float, is_told: bool
) -> None:
    """Rows of an agent whose worker is only behind, or of a moment ago, are not told: a worker whose key is bound to none may take them."""
    ledger_fixtures.add(new_row("theirs"), new_row("theirs-too"), new_row("mine", agent_id="eu"))
    due_for(ledger_fixtures, due)
    if heard is not None:
        heard_of(ledger_fixtures, "retail-refund-agent", seconds_ago=heard)
    with ledger_fixtures.agent(authority.url, agent_id="eu", only_agent=lambda: "eu") as agent:
        outcome = agent.run_once()
    assert ledger_fixtures.states() == {"mine": "EXECUTED", "theirs": "NEW", "theirs-too": "NEW"}
    told = (
        "no worker of their own for 2 due rows of the agent retail-refund-agent: this key is bound to eu, and no worker of that agent was seen"
        " for an hour; a worker whose key is not bound to an agent takes them"
    )
    assert (outcome.why_outside, outcome.row_failed) == (told if is_told else None, False)


def test_a_bound_loop_logs_once_and_tells_an_operator_which_rows_no_worker_takes(
    ledger_fixtures: LedgerFixtures,
    authority: FakeAuthority,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker.refunds.agent, "_UNTAKEN_EVERY_SECONDS", 0.0)
    ledger_fixtures.add(new_row("theirs"))
    due_for(ledger_fixtures, 90)
    request_id = asked_to_process(ledger_fixtures)
    with ledger_fixtures.agent(authority.url, agent_id="eu", only_agent=lambda: "eu") as agent, looping(agent):
        wait_until(lambda: answer_to(ledger_fixtures, request_id) is not None, 20)
        ledger_fixtures.add(new_row("mine", agent_id="eu"))
        wait_until(lambda: ledger_fixtures.state("mine") == "EXECUTED", 20)
    text = "no worker of their own for 1 due row of the agent retail-refund-agent: this key is bound to eu"
    answered = answer_to(ledger_fixtures, request_id)
    assert answered is not None and answered["processed"] == 0
    assert answered["detail"].startswith(f"nothing is due here; {text}")
    assert caplog.text.count(text) == 1


def asked_to_process(ledger_fixtures: LedgerFixtures) -> uuid.UUID:
    """An operator's request that one row be processed."""
    request_id = uuid.uuid4()
    ledger_fixtures.admin.execute(
        "insert into refunds.process_requests (tenant_id, request_id, requested_by) values (%s, %s, 'ann')",
        [ledger_fixtures.tenant_id, request_id],
    )
    return request_id


def answer_to(ledger_fixtures: LedgerFixtures, request_id: uuid.UUID) -> dict[str, Any] | None:
    """What the operator was told, if anything by now."""
    found = ledger_fixtures.one("select result from refunds.process_requests where request_id = %s", request_id)
    return None if found is None else dict(found)


@pytest.mark.parametrize(
    ("due", "heard", "taken_by_ours"),
    [
        ({"theirs"}, 1, False),
        ({"mine"}, 1, True),
        ({"mine", "theirs"}, 1, True),
        (set(), 1, True),
        ({"theirs"}, 3600, True),
        ({"theirs"}, None, True),
    ],
)
def test_an_operators_request_is_left_to_the_worker_that_alone_has_something_due(
    ledger_fixtures: LedgerFixtures, due: set[str], heard: float | None, taken_by_ours: bool
) -> None:
    """It was finished with "nothing is due" by whichever worker came first."""
    names = {"mine": "eu", "theirs": "retail-refund-agent"}
    for name in sorted(due):
        ledger_fixtures.add(new_row(name, agent_id=names[name]))
    if heard is not None:
        heard_of(ledger_fixtures, "retail-refund-agent", seconds_ago=heard)
    request_id = asked_to_process(ledger_fixtures)
    ours = ledger_fixtures.ledger.take_process_request("eu", silent_seconds=600.0)
    assert (ours == request_id) is taken_by_ours
    if not taken_by_ours:
        theirs = ledger_fixtures.ledger_of("worker-2").take_process_request("retail-refund-agent", silent_seconds=600.0)
        assert theirs == request_id


def bound_key(exchange: Exchange) -> bool:
    """Says whose key it is."""
    if not exchange.path.endswith("/key"):
        return False
    exchange.answer(
        200,
        {
            "tenant_id": str(uuid.uuid4()),
            "tenant": "shop",
            "agent_id": "retail-refund-agent",
            "key_id": "k",
            "scopes": ["worker"],
        },
    )
    return True


AMOUNT = {"amount": {"value": "1.00", "currency": "USD"}}
FOR_A_PERSON = 200_00
"""An amount that a person is asked about."""


def test_a_worker_whose_key_has_too_many_questions_open_does_the_rest_and_learns_decisions(
    fixtures: Fixtures, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    real = Agent._publish_status
    monkeypatch.setattr(Agent, "_publish_status", lambda self, status: (shown.append(status), real(self, status)))
    monkeypatch.setattr(guard, "LIMIT_MARK_SECONDS", 1)  # after which the client tries once more
    own = closing(LedgerFixtures(fixtures.url, fixtures.tenant_id))

    def is_put_off(name: str, waits: int) -> bool:
        found = ledger.all(
            "select attempts, waits >= %s, last_error from refunds.ledger_entries where ledger_entry_id = %s",
            waits,
            name,
        )
        return found == [(0, True, "busy: status 429")]

    with own as ledger, listening(fixtures.app) as url, ledger.agent(url, key=fixtures.key) as agent:
        ledger.add(new_row("asked", FOR_A_PERSON))
        agent.run_once()
        assert ledger.states() == {"asked": "APPROVAL_REQUIRED"}
        assert mark_keys_at_limits(fixtures.authority.pool, 1000, 1) == 1
        fixtures.admin.execute("update sentinel.keys_at_limit set valid_until = clock_timestamp() + interval '1 hour'")
        ledger.add(new_row("one-more", FOR_A_PERSON))
        single = agent.run_once()
        assert single.trouble is None and single.why_outside is not None and not single.row_failed
        with ledger.agent(url, key=fixtures.key) as loop, looping(loop):
            wait_until(lambda: is_put_off("one-more", 3), 20)
            assert loop.reaches_authority
            ledger.add(new_row("plain"))
            wait_until(lambda: ledger.state("plain") == "EXECUTED", 20)
            decide(fixtures, fixtures.one("select approval_id from sentinel.approvals"))
            wait_until(lambda: ledger.state("asked") == "EXECUTED", 20)
            wait_until(lambda: is_put_off("one-more", 4), 20)
    assert set(shown) <= {"running", "stopped"}
