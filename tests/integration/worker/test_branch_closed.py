"""A branch is sent to people, taken out or settled elsewhere while a row of it is begun: that row waits, its neighbours are paid."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from sentinel.authority.halts import set_halt
from sentinel.authority.housekeeping import run_housekeeping
from sentinel.authority.in_doubt import resolve_in_doubt
from sentinel.cli.scratch import listening
from sentinel.platform.resources import policies_dir
from tests.support.effects_server import EffectsServer
from tests.support.fake_authority import FakeAuthority
from tests.support.fake_exchange import Exchange
from tests.support.fixtures import Fixtures
from tests.support.harness import actor, let_leave_end
from tests.support.ledger_fixtures import CLEAN, LedgerFixtures, new_row
from tests.support.recording_server import problem
from tests.support.workflow_fixtures import BRANCHES, SECRETS, Shop, lost_answers
from worker.refunds.workflow.runner import RunResult

RETAIL = "settles_to: simulated_refund"
PRIVATE = {"channel": "private", "scenario": "fee"}


@dataclass
class Desk:
    """A real authority, a platform on loopback, and a route table that can be edited."""

    fixtures: Fixtures
    ledger: LedgerFixtures
    platform: EffectsServer
    price: EffectsServer
    url: str
    routes: Path

    def run(self, times: int = 1, **over: Any) -> list[RunResult]:
        found = []
        for _ in range(times):
            self.ledger.admin.execute("update refunds.effects set tried_at = tried_at - interval '1 hour'")
            self.ledger.make_due()
            systems = {"platform_url": self.platform.url, "platform_key": "k", "price_difference_url": self.price.url,
                       "price_difference_key": "k", "policies_dir": self.routes.parent}  # fmt: skip
            with self.ledger.agent(self.url, key=self.fixtures.key, max_attempts=3, **systems, **over) as agent:
                found.append(agent.run_once())
        return found

    def edit(self, change: Callable[[str], str]) -> None:
        before = self.routes.read_text()
        self.routes.write_text(change(before))
        assert self.routes.read_text() != before

    def stands(self, name: str = "begun") -> tuple[str, str | None]:
        found: tuple[str, str | None] = self.ledger.all(
            "select status, reason_code from refunds.ledger_entries where ledger_entry_id = %s", name
        )[0]  # type: ignore[assignment]
        return found

    def last_error(self) -> str:
        return str(self.ledger.one("select last_error from refunds.ledger_entries where ledger_entry_id = 'begun'"))

    def say_not_executed(self, *, leave_ended: bool = True) -> None:
        run_housekeeping(self.fixtures.authority.pool, 0)
        if leave_ended:
            let_leave_end(self.fixtures)
        self._resolve(executed=False)

    def say_executed(self) -> None:
        run_housekeeping(self.fixtures.authority.pool, 0)
        self._resolve(executed=True)

    def _resolve(self, *, executed: bool) -> None:
        operation = self.fixtures.one(
            "select operation_id from sentinel.operations where idempotency_key = 'refund:begun'"
        )
        resolve_in_doubt(
            self.fixtures.console_pool, actor(self.fixtures, "admin"), operation, executed=executed, evidence="looked"
        )


@pytest.fixture
def desk(fixtures: Fixtures, tmp_path: Path) -> Iterator[Desk]:
    policies = copytree(policies_dir(), tmp_path / "policies")
    ledger = LedgerFixtures(fixtures.url, fixtures.tenant_id)
    with (
        EffectsServer().running() as platform,
        EffectsServer().running() as price,
        listening(fixtures.app) as url,
    ):
        desk = Desk(fixtures, ledger, platform, price, url, policies / "routes.yaml")
        desk.edit(lambda text: text.replace(RETAIL, "settles_to: platform_backend", 1))
        yield desk
    ledger.close()


def begin(desk: Desk, *, done: bool = True) -> None:
    """A row is started; its system does it or not, and says nothing of it."""
    desk.platform.faults.extend([("POST", done, problem(503)), ("GET", False, problem(503))])
    desk.ledger.add_with_orders(new_row("begun", risk=CLEAN))
    desk.run()
    assert desk.stands()[0] == "ALLOWED" and bool(desk.platform.done) is done


def retail(text: str) -> str:
    """The retail branch's lines."""
    return text[text.index("  - channel: retail") : text.index("  # Own membership")]


def to_person(text: str) -> str:
    closed = "  - channel: retail\n    scenario: standard\n    action: refund.create\n    switch: retail.standard\n    to_person: mode_needs_person\n\n"  # fmt: skip
    return text.replace(retail(text), closed)


def removed(text: str) -> str:
    return text.replace(retail(text), "")


def elsewhere(text: str) -> str:
    return text.replace(retail(text), retail(text).replace("platform_backend", "price_difference"))


def neighbours(desk: Desk) -> None:
    """Rows that no branch is closed for: small ones that go to a person of their own, and are not touched by it."""
    desk.ledger.add_with_orders(*(new_row(f"n{number}", risk=CLEAN, **PRIVATE) for number in range(3)))


CLOSINGS = pytest.mark.parametrize("close", [to_person, removed])


@CLOSINGS
def test_a_begun_row_of_a_closed_branch_waits_and_its_neighbours_go_on(desk: Desk, close: Callable[[str], str]) -> None:
    begin(desk)
    before = desk.routes.read_text()
    desk.edit(close)
    neighbours(desk)
    first, *_ = desk.run(6)
    assert first.trouble is None and len(first.rows) == 4, "no row loses its run"
    assert {desk.stands(f"n{number}")[0] for number in range(3)} == {"APPROVAL_REQUIRED"}
    assert desk.stands()[0] == "ALLOWED" and desk.ledger.executions() == 0, "neither paid again nor given up"
    assert desk.last_error().startswith("it was started, but no route says any more where it settles")
    desk.edit(lambda _: before)
    desk.run()
    assert desk.stands()[0] == "EXECUTED" and list(desk.platform.done.values()) == [1]


@CLOSINGS
@pytest.mark.parametrize("done", [True, False], ids=["done", "not done"])
def test_a_persons_not_executed_is_held_against_the_system_that_it_was_begun_in(
    desk: Desk, close: Callable[[str], str], done: bool
) -> None:
    begin(desk, done=done)
    desk.edit(close)
    desk.say_not_executed()
    desk.run(2)
    assert desk.stands() == ("ERROR", "not_executed")
    part = desk.ledger.one("select in_doubt_minor from refunds.order_budgets where order_ref = 'o_begun'")
    assert part == (100 if done else 0)
    assert ("but platform_backend did it" in desk.last_error()) is done


@pytest.mark.parametrize("done", [True, False], ids=["done", "not done"])
def test_a_branch_that_settles_elsewhere_by_now_does_not_speak_for_where_it_was_begun(desk: Desk, done: bool) -> None:
    begin(desk, done=done)
    desk.edit(elsewhere)
    desk.run(2)
    assert desk.stands()[0] == "ALLOWED" and not desk.price.done
    desk.say_not_executed()
    desk.run(2)
    assert desk.stands() == ("ERROR", "not_executed") and not desk.price.done
    assert ("but platform_backend did it" in desk.last_error()) is done


@pytest.mark.parametrize("close", [to_person, removed, elsewhere])
@pytest.mark.parametrize("done", [True, False], ids=["done", "not done"])
def test_a_look_at_what_nothing_is_tried_of_keeps_no_person_from_saying_that_it_was_not_executed(
    desk: Desk, close: Callable[[str], str], done: bool
) -> None:
    """The leave to act that its start was answered with has ended, and the worker goes on looking at it."""
    begin(desk, done=done)
    desk.edit(close)
    let_leave_end(desk.fixtures)
    desk.run(2)
    assert desk.stands()[0] == "ALLOWED" and desk.last_error().startswith("it was started")
    desk.say_not_executed(leave_ended=False)
    desk.run(2)
    assert desk.stands() == ("ERROR", "not_executed") and not desk.price.done
    assert ("but platform_backend did it" in desk.last_error()) is done


# A start that its question enclosed: settled by the execution, in the ledger


def shipped(text: str) -> str:
    return text.replace("settles_to: platform_backend", RETAIL, 1)


def outside(text: str) -> str:
    return text.replace(retail(text), retail(text).replace(RETAIL, "settles_to: platform_backend"))


def begin_by_question(desk: Desk) -> None:
    """The authority permits and starts a row in one, and its answer never arrives."""
    desk.edit(shipped)
    desk.ledger.add(new_row("begun", risk=CLEAN))
    with lost_answers():
        desk.run()
    assert desk.stands()[0] == "GUARDING"
    assert desk.fixtures.one("select status from sentinel.operation_states") == "started"


@pytest.mark.parametrize("close", [to_person, removed, outside])
def test_a_start_that_its_question_enclosed_waits_for_its_route_too(desk: Desk, close: Callable[[str], str]) -> None:
    begin_by_question(desk)
    before = desk.routes.read_text()
    desk.edit(close)
    desk.run(6)
    assert desk.stands()[0] == "GUARDING" and desk.ledger.executions() == 0 and not desk.platform.done
    assert desk.last_error().removeprefix("platform_backend: ").startswith("it was started")
    desk.edit(lambda _: before)
    desk.run()
    assert desk.stands()[0] == "EXECUTED" and desk.ledger.executions() == 1
    assert desk.fixtures.broken_invariants() == []


@pytest.mark.parametrize("close", [to_person, removed, outside])
def test_such_a_row_ends_once_a_person_said_that_it_was_not_executed(desk: Desk, close: Callable[[str], str]) -> None:
    begin_by_question(desk)
    desk.edit(close)
    desk.run(2)
    desk.say_not_executed()
    desk.run(2)
    assert desk.stands() == ("ERROR", "not_executed") and desk.ledger.executions() == 0 and not desk.platform.done


@pytest.mark.parametrize(
    "close", [to_person, removed, outside, None], ids=["to_person", "removed", "outside", "halted"]
)
def test_such_a_row_is_no_start_of_somebody_else_once_a_person_said_that_it_was_executed(
    desk: Desk, close: Callable[[str], str] | None
) -> None:
    """The start was the row's own, although its receipt never arrived and nothing of it is tried any more."""
    begin_by_question(desk)
    if close is None:
        set_halt(desk.fixtures.console_pool, actor(desk.fixtures, "admin"), scope="tenant", reason="looking")
    else:
        desk.edit(close)
    desk.say_executed()
    desk.run(2)
    assert desk.stands() == ("ERROR", "executed_elsewhere") and desk.ledger.executions() == 0 and not desk.platform.done
    assert desk.last_error().startswith("it was executed")


@pytest.mark.parametrize("close", [to_person, removed, outside])
def test_nor_does_a_look_at_such_a_row(desk: Desk, close: Callable[[str], str]) -> None:
    begin_by_question(desk)
    desk.edit(close)
    let_leave_end(desk.fixtures)
    desk.run(2)
    assert desk.stands()[0] == "GUARDING"
    desk.say_not_executed(leave_ended=False)
    desk.run(2)
    assert desk.stands() == ("ERROR", "not_executed") and desk.ledger.executions() == 0 and not desk.platform.done


def test_a_begun_row_whose_route_asks_its_customer_by_now_is_followed_and_its_customer_is_not_asked(desk: Desk) -> None:
    """Whether to pay is no question any more: it may have been paid."""
    begin(desk)
    desk.edit(
        lambda text: text.replace(
            retail(text), retail(text).replace("    critic:", "    confirm_card: true\n    critic:")
        )
    )
    desk.run(3, confirm_secrets=SECRETS, notifier="log")
    assert desk.stands()[0] == "EXECUTED" and sum(desk.platform.done.values()) == 1
    assert desk.ledger.one("select count(*) from refunds.confirmations") == 0


def test_a_begun_row_that_was_finished_without_a_card_is_no_wrong_execution(desk: Desk) -> None:
    """Its customer is not asked on purpose, so nothing is wrong with its execution, and its scenario stays on."""
    begin(desk)
    desk.edit(
        lambda text: text.replace(
            retail(text), retail(text).replace("    critic:", "    confirm_card: true\n    critic:")
        )
    )
    desk.run(3, confirm_secrets=SECRETS, notifier="log")
    assert desk.stands()[0] == "EXECUTED"
    assert desk.ledger.all("select finding from refunds.wrong_executions") == []
    assert desk.ledger.one("select count(*) from sentinel.switches where not is_on") == 0


@pytest.mark.parametrize("then", ["its start is refused", "a halt", "a person is asked"])
def test_a_row_of_which_surely_nothing_was_started_is_not_begun_and_its_customer_is_asked(
    shop: Shop, authority: FakeAuthority, tmp_path: Path, then: str
) -> None:
    """Its permission is on record, and a route that asks the customer by now asks this one too."""
    shop.enter(BRANCHES["retail/standard"])
    said = (lambda exchange: exchange.problem(403, "permit-refused")) if "refused" in then else Exchange.hang_up
    authority.misbehave = lambda exchange: exchange.path.endswith("guard/start") and said(exchange) is None
    shop.run()
    assert shop.stands()[0] == ("NEW" if "refused" in then else "ALLOWED") and shop.nothing_paid()
    authority.misbehave = lambda exchange: False
    authority.halted = then == "a halt"
    authority.switches["retail.standard"]["on"] = then != "a person is asked"
    shop.fixtures.make_due()
    if "refused" not in then:
        shop.run()
        assert shop.stands()[0] == ("NEW" if authority.halted else "APPROVAL_REQUIRED")
    authority.halted, authority.switches["retail.standard"]["on"] = False, True
    copytree(policies_dir(), tmp_path / "policies")
    shop.settings["policies_dir"] = tmp_path / "policies"
    routes = tmp_path / "policies" / "routes.yaml"
    text = routes.read_text()
    routes.write_text(
        text.replace(retail(text), retail(text).replace("    critic:", "    confirm_card: true\n    critic:"))
    )
    if then == "a person is asked":
        authority.approve("refund:r")
    shop.fixtures.make_due()
    shop.run()
    assert shop.stands()[1] == "customer" and shop.cards() == 1 and shop.nothing_paid()
    shop.answer("r")
    shop.run()
    assert shop.stands()[0] == "EXECUTED" and shop.fixtures.executions() == 1
