"""A row is asked about, and reported about, by the action that its first question had, whatever the route table says later."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from shutil import copytree

import pytest

from sentinel.authority.approvals import resolve_approval
from sentinel.authority.in_doubt import list_in_doubt, resolve_in_doubt
from sentinel.cli.scratch import listening
from sentinel.client import Client
from sentinel.platform.resources import policies_dir
from tests.support import switch_fixtures as switches
from tests.support.fixtures import Fixtures
from tests.support.harness import actor, digest_of
from tests.support.ledger_fixtures import LedgerFixtures, new_row
from tests.support.workflow_fixtures import FEE, Shop
from worker.refunds.build import load_routes
from worker.refunds.reporter import InDoubtPoller
from worker.refunds.rows import FixedQuestion
from worker.refunds.transitions import give_up
from worker.settlement import EffectRefused, NoAnswer
from worker.settlement.registry import system_names

IN_DOUBT = "select in_doubt_minor, handled_minor from refunds.order_budgets"


@pytest.fixture
def shop(fixtures: Fixtures, tmp_path: Path) -> Iterator[Shop]:
    """A shop with a route table of its own, whose authority is the real one; small refunds are on."""
    switches.record(fixtures)
    for name, percent in ((switches.MASTER, 100), (switches.FEE, 5), (switches.FEE, 100)):
        switches.on(fixtures, name, percent)
    ledger = LedgerFixtures(fixtures.url, fixtures.tenant_id)
    with listening(fixtures.app) as url:
        yield Shop(
            ledger, url, fixtures.key, settings={"policies_dir": copytree(policies_dir(), tmp_path / "policies")}
        )
    ledger.close()


def edit_action(shop: Shop) -> None:
    """The branch asks for another action from now on."""
    path: Path = shop.settings["policies_dir"] / "routes.yaml"
    text = path.read_text()
    path.write_text(text.replace("    scenario: fee\n    action: refund.small.fee\n", "    scenario: fee\n    action: refund.small.shipping\n", 1))  # fmt: skip
    assert path.read_text() != text


def remove_route(shop: Shop) -> None:
    """The branch is taken out of the table."""
    path: Path = shop.settings["policies_dir"] / "routes.yaml"
    text = path.read_text()
    begin, end = text.index("  - channel: private\n    scenario: fee"), text.index("  # The price fell")
    path.write_text(text[:begin] + text[end:])


def confirmed(shop: Shop, name: str) -> None:
    """A row of a small refund that its customer has confirmed, run."""
    shop.enter(FEE, name)
    shop.run()
    shop.answer(name)
    shop.run()


def say(fixtures: Fixtures, executed: bool) -> None:
    (doubt,) = list_in_doubt(fixtures.console_pool, fixtures.tenant_id)
    resolve_in_doubt(
        fixtures.console_pool, actor(fixtures, "admin"), doubt.operation_id, executed=executed, evidence="asked"
    )


def look(shop: Shop) -> list[str]:
    with Client(shop.url, shop.key, agent_id="retail-refund-agent") as client:
        routes = load_routes(shop.settings["policies_dir"], system_names())
        return InDoubtPoller(shop.fixtures.ledger, client, routes).look()


def forget_action(shop: Shop) -> None:
    """The question as releases kept it that fixed its params alone."""
    shop.fixtures.admin.execute("set session_replication_role = replica")
    shop.fixtures.admin.execute("update refunds.ledger_entries set guard_request = guard_request -> 'params'")
    shop.fixtures.admin.execute("set session_replication_role = origin")


@pytest.mark.parametrize("kept", ["action and params", "the params alone"])
@pytest.mark.parametrize("executed", [False, True], ids=["not executed", "executed"])
def test_a_doubt_about_a_small_refund_is_settled_by_a_persons_decision(
    shop: Shop, fixtures: Fixtures, executed: bool, kept: str
) -> None:
    shop.spies["private_refund"].says = [EffectRefused("account closed")]
    confirmed(shop, "first")
    assert shop.stands("first")[0] == "ERROR" and shop.fixtures.all(IN_DOUBT) == [(400, 0)]
    assert fixtures.one("select action from sentinel.operations") == "refund.small.fee"
    if kept == "the params alone":
        forget_action(shop)
    assert look(shop) == []
    say(fixtures, executed)
    assert look(shop) == ["first"]
    assert shop.fixtures.all(IN_DOUBT) == [(0, 400 if executed else 0)]
    assert fixtures.broken_invariants() == []


@pytest.mark.parametrize("edit", [edit_action, remove_route])
def test_a_doubt_is_settled_although_its_route_reads_otherwise_by_now(shop: Shop, fixtures: Fixtures, edit) -> None:  # type: ignore[no-untyped-def]
    shop.spies["private_refund"].says = [EffectRefused("account closed")]
    confirmed(shop, "first")
    edit(shop)
    say(fixtures, False)
    assert look(shop) == ["first"] and shop.fixtures.all(IN_DOUBT) == [(0, 0)]


def test_a_row_that_waits_for_a_person_is_not_stranded_by_an_edited_action(shop: Shop, fixtures: Fixtures) -> None:
    shop.flag("r", FEE, "open_complaint")
    shop.enter(FEE, "r")
    shop.run()
    assert shop.stands("r") == ("APPROVAL_REQUIRED", "operator", "open_complaint")
    edit_action(shop)
    approval = fixtures.one("select approval_id from refunds.ledger_entries")
    resolve_approval(fixtures.console_pool, actor(fixtures, "approver"), approval, verdict="approve", reason="seen",
                     digest=digest_of(fixtures, approval))  # fmt: skip
    shop.run(2)
    shop.answer("r")
    shop.run(2)
    assert shop.stands("r")[0] == "EXECUTED"
    assert fixtures.one("select array_agg(action) from sentinel.operations") == ["refund.small.fee"]


def test_a_started_row_is_found_out_by_its_own_action_after_the_route_was_edited(
    shop: Shop, fixtures: Fixtures
) -> None:
    shop.spies["private_refund"].says = [NoAnswer("503")]
    confirmed(shop, "r")
    assert shop.stands("r")[0] == "ALLOWED"
    edit_action(shop)
    shop.run(2)
    assert shop.stands("r")[0] == "EXECUTED" and shop.fixtures.executions() == 1
    assert fixtures.one("select count(*) from refunds.outbox where acknowledged_at is null") == 0, (
        "and its report is taken"
    )


def test_the_question_reads_as_it_was_kept_and_as_it_was_kept_before() -> None:
    params = {"amount": {"value": "4.00", "currency": "USD"}, "action": "a customer's word"}
    assert FixedQuestion.read('{"amount": 1, "action": "x"}') == FixedQuestion({"amount": 1, "action": "x"})
    assert FixedQuestion.read('{"action": "refund.create", "params": {"amount": 1}}') == FixedQuestion({"amount": 1}, "refund.create")  # fmt: skip
    assert FixedQuestion(params, "refund.create").as_json() == {"action": "refund.create", "params": params}


def test_no_number_of_doubts_that_nobody_resolves_keeps_another_from_being_asked_about(
    ledger_fixtures: LedgerFixtures,
) -> None:
    names = [f"d{number}" for number in range(7)]
    ledger_fixtures.add_with_orders(*(new_row(name) for name in names))
    rows = ledger_fixtures.ledger.claim(10)
    ledger_fixtures.ledger.fix_requests([(row, FixedQuestion({"amount": 1}, "refund.create"), None) for row in rows])
    assert len(ledger_fixtures.ledger.apply([give_up(row, "elsewhere", in_doubt=True) for row in rows])) == 7
    pages = [[row.ledger_entry_id for row in ledger_fixtures.ledger.in_doubt(2)] for _ in range(200)]
    assert {name for page in pages for name in page} == set(names)
    assert {len(page) for page in pages} == {1, 2}
    assert len(ledger_fixtures.ledger.in_doubt()) == 7
