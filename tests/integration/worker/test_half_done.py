"""After a person's "not executed" nothing more is tried: what was done of a refund in part is taken back or named, and its row ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from sentinel.authority.housekeeping import run_housekeeping
from sentinel.authority.in_doubt import resolve_in_doubt
from sentinel.cli.scratch import listening
from sentinel.platform.resources import policies_dir
from tests.support.effects_server import EffectsServer, InMemory, allowed_row, taken_over
from tests.support.fixtures import Fixtures
from tests.support.harness import actor, let_leave_end
from tests.support.ledger_fixtures import CLEAN, LedgerFixtures, new_row
from tests.support.recording_server import problem
from worker.settlement import Effect, EffectRefused, NoAnswer, Saga, Settled
from worker.settlement.effects import Effects, Left

BUDGET = "select reserved_minor, executed_minor, handled_minor, in_doubt_minor from refunds.order_budgets"
EFFECTS = "select system, state from refunds.effects order by effect_number"


class Desk:
    """A refund in two parts, a ticket and the platform's refund, both on loopback, under a real authority."""

    def __init__(
        self, fixtures: Fixtures, ledger: LedgerFixtures, url: str, ticket: EffectsServer, platform: EffectsServer, policies: Path
    ) -> None:  # fmt: skip
        self.fixtures, self.ledger, self.ticket, self.platform = fixtures, ledger, ticket, platform
        self._agent: dict[str, Any] = {
            "url": url, "key": fixtures.key, "lanes": 1, "policies_dir": policies, "ticket_url": ticket.url, "ticket_key": "k",
            "platform_url": platform.url, "platform_key": "k",
        }  # fmt: skip

    def run(self, times: int = 1) -> None:
        for _ in range(times):
            self.ledger.admin.execute("update refunds.effects set tried_at = tried_at - interval '1 hour'")
            self.ledger.make_due()
            with self.ledger.agent(**self._agent) as agent:
                agent.run_once()

    def say_not_executed(self) -> None:
        run_housekeeping(self.fixtures.authority.pool, 0)
        let_leave_end(self.fixtures)
        resolve_in_doubt(
            self.fixtures.console_pool, actor(self.fixtures, "admin"),
            self.fixtures.one("select operation_id from sentinel.operations"), executed=False, evidence="looked",
        )  # fmt: skip

    def stands(self) -> tuple[Any, ...]:
        return self.ledger.all("select status, reason_code from refunds.ledger_entries")[0]

    def last_error(self) -> str:
        return str(self.ledger.one("select last_error from refunds.ledger_entries"))


@pytest.fixture
def desk(fixtures: Fixtures, tmp_path: Path) -> Iterator[Desk]:
    policies = copytree(policies_dir(), tmp_path / "policies")
    routes = policies / "routes.yaml"
    routes.write_text(routes.read_text().replace("settles_to: simulated_refund", "settles_to: ticket_then_platform", 1))
    ledger = LedgerFixtures(fixtures.url, fixtures.tenant_id)
    with (
        EffectsServer().running() as ticket,
        EffectsServer().running() as platform,
        listening(fixtures.app) as url,
    ):
        yield Desk(fixtures, ledger, url, ticket, platform, policies)
    ledger.close()


def half_done(desk: Desk) -> None:
    """The ticket is there, the refund is refused for now; a person says that it was not executed; then all is well again."""
    desk.platform.forever = ("POST", False, problem(503))
    desk.ledger.add_with_orders(new_row("r", risk=CLEAN))
    desk.run()
    assert desk.stands()[0] == "ALLOWED" and len(desk.ticket.done) == 1 and not desk.platform.done
    desk.say_not_executed()
    desk.platform.forever = None


def test_what_was_done_in_part_is_taken_back_and_the_row_ends(desk: Desk) -> None:
    half_done(desk)
    desk.run(2)
    assert desk.stands() == ("ERROR", "not_executed") and desk.ledger.all(BUDGET) == [(0, 0, 0, 0)]
    assert desk.ticket.gone == set(desk.ticket.done) and not desk.platform.done
    assert desk.ledger.all(EFFECTS) == [("ticket", "compensated"), ("platform_backend", "refused")]
    assert desk.fixtures.broken_invariants() == []


def test_a_system_that_does_not_answer_is_asked_until_it_is_taken_back(desk: Desk) -> None:
    half_done(desk)
    desk.ticket.forever = ("DELETE", False, problem(503))
    desk.run(3)
    assert desk.stands()[0] == "ALLOWED" and "ticket" in desk.last_error()
    desk.ticket.forever = None
    desk.run(2)
    assert desk.stands() == ("ERROR", "not_executed") and desk.ticket.gone == set(desk.ticket.done)
    assert not desk.platform.done, "and at no time is the rest of it tried"


def test_what_cannot_be_taken_back_is_named_to_a_person_and_the_row_ends(desk: Desk) -> None:
    half_done(desk)
    desk.ticket.forever = ("DELETE", False, problem(422))
    desk.run(2)
    assert desk.stands() == ("ERROR", "not_executed") and not desk.platform.done
    assert "no money was paid, but ticket is done and not taken back: 422" in desk.last_error()
    assert desk.ledger.all(BUDGET) == [(0, 0, 0, 0)]
    assert desk.ledger.ledger.retry(["r"], who="p", why="again") == {"r": "effects_open"}


def test_what_was_done_in_whole_after_all_stays_and_is_reported(desk: Desk) -> None:
    desk.platform.faults += [("POST", True, problem(503)), ("GET", False, problem(503))]
    desk.ledger.add_with_orders(new_row("r", risk=CLEAN))
    desk.run()
    desk.say_not_executed()
    desk.run(2)
    assert desk.stands() == ("ERROR", "not_executed") and not desk.ticket.gone
    assert "but ticket_then_platform did it" in desk.last_error() and desk.ledger.all(BUDGET) == [(0, 0, 0, 100)]


@pytest.mark.parametrize("keeps", [False, True])
def test_an_end_takes_back_money_too_or_says_that_it_stays(ledger_fixtures: LedgerFixtures, keeps: bool) -> None:
    first, second = InMemory("first"), InMemory("second")
    book = Effects(ledger_fixtures.pool, ledger_fixtures.tenant_id)
    saga = Saga("both", [Effect(first), Effect(second)], book, in_flight_seconds=0)
    row = allowed_row(ledger_fixtures, "r")
    assert row.start_id is not None
    second.ready, second.settle = False, lambda *_: NoAnswer("503")  # type: ignore[method-assign]
    assert isinstance(saga.settle(row, row.start_id), NoAnswer) and first.stands(row.start_id)
    first.keeps = keeps
    row = taken_over(ledger_fixtures, "r")
    found = saga.end(row, row.start_id)
    if keeps:
        assert found == Left("first is done and not taken back: it stays", moves_money=True)
        assert ledger_fixtures.all(EFFECTS) == [("first", "in_doubt"), ("second", "refused")]
    else:
        assert found == EffectRefused("nothing is left of it") and not first.stands(row.start_id)
        assert saga.end(row, row.start_id) == found, "once more it is as it was"


def test_an_end_of_what_may_still_be_on_its_way_waits(ledger_fixtures: LedgerFixtures) -> None:
    only = InMemory("only")
    book = Effects(ledger_fixtures.pool, ledger_fixtures.tenant_id)
    row = allowed_row(ledger_fixtures, "r")
    assert row.start_id is not None
    only.settle = lambda *_: NoAnswer("503")  # type: ignore[method-assign]
    assert isinstance(Saga("only", [Effect(only)], book, in_flight_seconds=600).settle(row, row.start_id), NoAnswer)
    assert isinstance(Saga("only", [Effect(only)], book, in_flight_seconds=600).end(row, row.start_id), NoAnswer)
    only.done[row.start_id] += 1
    assert isinstance(Saga("only", [Effect(only)], book, in_flight_seconds=600).end(row, row.start_id), Settled)
