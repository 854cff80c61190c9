"""What a settlement system refuses for good ends at once, for a person; it is never asked for again and never executed."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import pytest

from tests.support.effects_server import EffectsServer, InMemory, allowed_row, broken, taken_over
from tests.support.fake_authority import FakeAuthority
from tests.support.ledger_fixtures import LedgerFixtures, worker_process
from tests.support.recording_server import problem
from tests.support.workflow_fixtures import BRANCHES, FEE, PUBLIC_FEE, SECRETS, Branch, Shop, take_refusals_for_silence
from worker.failpoints import step_place
from worker.refunds.settings import WorkerSettings
from worker.refunds.transitions import after_settlement_refused
from worker.refunds.workflow.graph import StepName
from worker.settlement import Effect, EffectRefused, NoAnswer, Saga, Systems
from worker.settlement.effects import Effects

RETAIL, DEFECT, PRICE = (BRANCHES[name] for name in ("retail/standard", "public/defect", "private/price_diff"))
ENDED = ("ERROR", None, "settlement_refused")


def last_error(shop: Shop, name: str = "r") -> str:
    """The row's last error."""
    return str(shop.fixtures.one("select last_error from refunds.ledger_entries where ledger_entry_id = %s", name))


def ready(shop: Shop, branch: Branch, name: str = "r") -> None:
    """A row that the next run pays."""
    shop.enter(branch, name)
    if branch.card:
        shop.run()
        shop.answer(name)


def never_executed(shop: Shop, authority: FakeAuthority) -> bool:
    """The checker: refused once and then willing, its system was asked once, and nothing was executed in five runs."""
    ready(shop, FEE)
    shop.spies["private_refund"].says = [EffectRefused("account closed")]
    shop.run()
    for _ in range(4):
        shop.fixtures.make_due()
        shop.run()
    asked = [touch for touch in shop.touches() if touch[1] == "settle"]
    return shop.fixtures.executions() == 0 and len(asked) == 1 and authority.operations["refund:r"].outcome == "error"


def test_a_refund_that_was_refused_for_good_is_never_executed(shop: Shop, authority: FakeAuthority) -> None:
    assert never_executed(shop, authority)
    assert shop.stands() == ENDED


def test_mutant_that_takes_a_refusal_for_silence_executes_it(
    shop: Shop, authority: FakeAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_refusals_for_silence(monkeypatch)
    assert not never_executed(shop, authority)
    assert shop.fixtures.executions() == 1


def test_a_refused_row_ends_in_one_run_and_its_authority_is_told(shop: Shop, authority: FakeAuthority) -> None:
    for name, says in {
        "refused": [EffectRefused("422 account closed")],
        "silent": [NoAnswer("timeout")],
        "paid": [],
    }.items():
        shop.enter(RETAIL, name)
        shop.spies["simulated_refund"].says += says
    shop.settings["concurrency"] = 1
    with shop.agent() as agent:
        outcome = agent.run_once()
    stood = {name: shop.stands(name)[0] for name in ("refused", "silent", "paid")}
    by_state = {status: name for name, status in stood.items()}
    assert set(by_state) == {"ERROR", "ALLOWED", "EXECUTED"}, "each ends as its system said, and holds up no other"
    name = by_state["ERROR"]
    operation = authority.operations[f"refund:{name}"]
    assert operation.outcome == "error"
    assert authority.operations[f"refund:{by_state['ALLOWED']}"].outcome is None, "silence tells nothing"
    assert last_error(shop, name).startswith("simulated_refund refused: 422 account closed. Nothing was executed;")
    operation_id = shop.fixtures.one("select operation_id from refunds.ledger_entries where ledger_entry_id = %s", name)
    assert f"`sentinel in-doubt resolve {operation_id} --not-executed`" in last_error(shop, name)
    (row,) = [row for row in outcome.rows if row.ledger_entry_id == name]
    assert (row.state, row.failed, row.what_next) == ("ERROR", True, "needs a person") and outcome.failed
    assert row.as_json()["detail"] == last_error(shop, name) and row.reason_code == "settlement_refused"
    assert (
        outcome.reported == 2
        and shop.fixtures.one("select count(*) from refunds.outbox where acknowledged_at is null") == 0
    )
    last = shop.steps(name)[-1]
    (report_id,) = shop.fixtures.all("select outbox_id::text from refunds.outbox where ledger_entry_id = %s", name)[0]
    assert (last["step"], last["output"]) == ("execute_by_system", {"settlement": "refused", "report": report_id})
    assert "next" not in last


def test_the_command_line_says_what_became_of_it(shop: Shop) -> None:
    shop.enter(RETAIL)
    shop.spies["simulated_refund"].says = [EffectRefused("422 account closed")]
    shop.run()
    assert worker_output(shop, "workflow", "explain", "r").count("ALLOWED → ERROR  (settlement_refused)") == 1
    summary = json.loads(worker_output(shop, "summary", "--json"))
    assert [(line["status"], line["decision"], line["reason_code"]) for line in summary] == [
        ("ERROR", "ALLOW", "settlement_refused")
    ]


def worker_output(shop: Shop, *words: str) -> str:
    """What a command of the worker prints."""
    with worker_process(
        list(words), database_url=shop.fixtures.url, authority_url=shop.url, script=["-m", "worker.cli"],
        SENTINEL_TENANT_ID=str(shop.fixtures.tenant_id),
    ) as process:  # fmt: skip
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return str(out)


def test_an_event_of_a_claim_that_was_taken_over_writes_neither_state_nor_report(
    ledger_fixtures: LedgerFixtures,
) -> None:
    stale = allowed_row(ledger_fixtures, "r")
    fresh = taken_over(ledger_fixtures, "r")
    event = after_settlement_refused(stale, str(stale.operation_id), system="s", reason="no")
    assert ledger_fixtures.ledger.apply([event]) == {}
    assert ledger_fixtures.state("r") == "ALLOWED" and ledger_fixtures.one("select count(*) from refunds.outbox") == 0
    event = after_settlement_refused(fresh, str(fresh.operation_id), system="s", reason="no")
    assert set(ledger_fixtures.ledger.apply([event])) == {"r"}
    assert ledger_fixtures.ledger.apply([event]) == {}, "said again after a lost answer it changes nothing"
    assert ledger_fixtures.all("select payload ->> 'outcome' from refunds.outbox") == [("error",)]


# With effects outside


def test_a_refund_whose_second_effect_is_refused_ends_with_nothing_left_of_the_first(
    shop: Shop, authority: FakeAuthority
) -> None:
    ticket, platform = InMemory("ticket"), InMemory("platform_backend")
    platform.refuses = ticket.keeps = True
    book = Effects(shop.fixtures.pool, shop.fixtures.tenant_id)
    saga = Saga("ticket_then_platform", [Effect(ticket), Effect(platform)], book, in_flight_seconds=0)
    shop.parts["systems"] = Systems({**shop.spies, saga.name: saga}, {})
    ready(shop, DEFECT)
    shop.run()
    assert shop.stands()[0] == "ALLOWED", "while the ticket cannot be taken back nobody may say that nothing happened"
    assert authority.operations["refund:r"].outcome is None
    ticket.keeps = False
    shop.fixtures.make_due()
    shop.run()
    assert shop.stands() == ENDED and authority.operations["refund:r"].outcome == "error"
    assert last_error(shop).startswith("ticket_then_platform refused: platform_backend: no. Nothing was executed;")
    assert [record.state for record in book.of_entry("r")] == ["compensated", "refused"] and broken(shop.fixtures) == []


def test_silence_names_the_system_once(shop: Shop) -> None:
    book, platform = Effects(shop.fixtures.pool, shop.fixtures.tenant_id), InMemory("platform_backend")
    platform.loses_answers = 9
    shop.parts["systems"] = Systems({**shop.spies, platform.name: Saga(platform.name, [Effect(platform)], book)}, {})
    ready(shop, PUBLIC_FEE)
    shop.run()
    assert (shop.stands()[0], last_error(shop)) == ("ALLOWED", "platform_backend: lost")


def test_what_may_be_done_outside_is_not_paid_another_way_and_its_row_says_why(shop: Shop) -> None:
    book, platform = Effects(shop.fixtures.pool, shop.fixtures.tenant_id), InMemory("platform_backend")
    platform.loses_answers = 2
    outside = Systems({**shop.spies, platform.name: Saga(platform.name, [Effect(platform)], book)}, {})
    shop.parts["systems"] = outside
    ready(shop, PUBLIC_FEE)
    shop.run()
    shop.parts["systems"] = Systems(shop.spies, {})
    shop.fixtures.make_due()
    shop.run()
    assert (shop.stands()[0], shop.fixtures.executions()) == ("ALLOWED", 0)
    assert last_error(shop) == "the database refused the execution: an effect of this entry is not done"
    shop.parts["systems"] = outside
    shop.fixtures.make_due()
    shop.run()
    assert (shop.stands()[0], shop.fixtures.executions(), list(platform.done.values())) == ("EXECUTED", 1, [1])


@pytest.fixture
def server() -> Iterator[EffectsServer]:
    with EffectsServer().running() as running:
        yield running


def outside(server: EffectsServer) -> dict[str, str]:
    """The settings of a worker whose price differences are settled by the server."""
    return {
        "WORKER_PRICE_DIFFERENCE_URL": server.url, "WORKER_PRICE_DIFFERENCE_KEY": "k", "WORKER_SETTLEMENT_TIMEOUT_SECONDS": "20",
    }  # fmt: skip


def systems_of(server: EffectsServer, shop: Shop) -> Systems:
    """The same in this process."""
    settings = WorkerSettings(
        price_difference_url=server.url, price_difference_key="k", settlement_timeout_seconds=20.0
    )
    return Systems.from_settings(settings, Effects(shop.fixtures.pool, shop.fixtures.tenant_id))


@pytest.mark.parametrize(
    "place", [f"{step_place(StepName.EXECUTE_BY_SYSTEM)}:kill:2", "before_report:kill", "after_report:kill"]
)
def test_killed_between_the_refusal_and_its_record_or_report_it_ends_the_same(
    shop: Shop, authority: FakeAuthority, server: EffectsServer, place: str
) -> None:
    shop.parts["systems"] = systems_of(server, shop)
    ready(shop, PRICE)
    server.forever = ("POST", False, problem(422, "account closed"))
    with worker_process(
        ["--once"], database_url=shop.fixtures.url, authority_url=authority.url, SENTINEL_FAILPOINT=place,
        SENTINEL_ALLOW_FAILPOINTS="1", CONFIRM_SECRETS=",".join(SECRETS), WORKER_NOTIFIER="log", WORKER_LANES="1",
        SENTINEL_TENANT_ID=str(shop.fixtures.tenant_id), **outside(server),
    ) as process:  # fmt: skip
        _, err = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL, err
    assert shop.stands()[0] == ("ALLOWED" if place.startswith("step") else "ERROR")
    server.forever = None  # what was refused stays refused, even where the system would do it now
    for _ in range(2):
        shop.fixtures.make_due()
        shop.run()
    assert shop.stands() == ENDED and shop.fixtures.executions() == 0 and not server.done
    assert last_error(shop).startswith("price_difference refused: 422 account closed. Nothing was executed;")
    assert shop.fixtures.one("select count(*) from refunds.outbox where acknowledged_at is not null") == 1
    assert authority.operations["refund:r"].outcome == "error" and broken(shop.fixtures) == []


@pytest.mark.parametrize("status", [408, 425, 429, 503])
def test_what_a_later_try_may_lift_is_asked_for_again(shop: Shop, server: EffectsServer, status: int) -> None:
    shop.parts["systems"] = systems_of(server, shop)
    ready(shop, PRICE)
    server.forever = ("POST", False, problem(status))
    shop.run()
    assert shop.stands()[0] == "ALLOWED" and shop.fixtures.one("select count(*) from refunds.outbox") == 0
    server.forever = None
    shop.fixtures.admin.execute("update refunds.effects set tried_at = tried_at - interval '1 minute'")
    shop.fixtures.make_due()
    shop.run()
    assert shop.stands()[0] == "EXECUTED" and sum(server.done.values()) == 1
