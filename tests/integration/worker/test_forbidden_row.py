"""A row that the worker's key may not ask about, or not for now, waits with growing pauses, alone: the worker works on, and nobody
wakes it."""

from __future__ import annotations

import uuid
from contextlib import closing

import pytest
from msgspec.structs import replace

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
    with ledger_fixtures.agent(authority.url, lanes=1, backoff_seconds=0.02, backoff_max_seconds=60.0) as agent, looping(agent):  # fmt: skip
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
    with ledger_fixtures.agent(authority.url, lanes=1, batch=1) as agent:
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

    with own as ledger, listening(fixtures.app) as url, ledger.agent(url, key=fixtures.key, lanes=1) as agent:
        ledger.add(new_row("asked", FOR_A_PERSON))
        agent.run_once()
        assert ledger.states() == {"asked": "APPROVAL_REQUIRED"}
        assert mark_keys_at_limits(fixtures.authority.pool, 1000, 1) == 1
        fixtures.admin.execute("update sentinel.crowded_keys set valid_until = clock_timestamp() + interval '1 hour'")
        ledger.add(new_row("one-more", FOR_A_PERSON))
        single = agent.run_once()
        assert single.trouble is None and single.why_outside is not None and not single.row_failed
        with ledger.agent(url, key=fixtures.key, lanes=1) as loop, looping(loop):
            wait_until(lambda: is_put_off("one-more", 3), 20)
            assert loop.reaches_authority
            ledger.add(new_row("plain"))
            wait_until(lambda: ledger.state("plain") == "EXECUTED", 20)
            decide(fixtures, fixtures.one("select approval_id from sentinel.approvals"))
            wait_until(lambda: ledger.state("asked") == "EXECUTED", 20)
            wait_until(lambda: is_put_off("one-more", 4), 20)
    assert set(shown) <= {"running", "stopped"}
