"""An order's budget against the real authority: what a person handled elsewhere, and what is in doubt until a person says."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

import pytest
from msgspec.structs import replace

from sentinel.authority.approvals import resolve_approval
from sentinel.authority.halts import set_halt
from sentinel.authority.housekeeping import run_housekeeping
from sentinel.authority.in_doubt import list_in_doubt, resolve_in_doubt
from sentinel.cli.scratch import listening
from sentinel.client import Client, NoAnswerKind, Rejected, Unreachable
from sentinel.core.signing import PermitSigner
from sentinel.platform.resources import policies_dir
from tests import mutants
from tests.integration.worker.test_not_executed import outside, say_not_executed, time_passes
from tests.support.effects_server import InMemory
from tests.support.fixtures import AGENT, Fixtures
from tests.support.harness import actor, digest_of, let_permits_expire
from tests.support.ledger_fixtures import CLEAN, LedgerFixtures, new_row
from tests.support.workflow_fixtures import Shop
from worker.refunds.build import load_routes
from worker.refunds.reconcile import FIND_BUDGETS
from worker.refunds.reporter import InDoubtPoller
from worker.refunds.rows import Change, LedgerRow, OrderFacts
from worker.refunds.transitions import RetryPolicy, after_start_refused
from worker.refunds.workflow.graph import Escalation
from worker.settlement import EffectRefused
from worker.settlement.effects import Effects
from worker.settlement.registry import system_names

PARTS = "select reserved_minor, executed_minor, handled_minor, in_doubt_minor, beyond_minor from refunds.order_budgets"


@pytest.fixture
def shop(fixtures: Fixtures) -> Iterator[Shop]:
    """A shop whose authority is the real one, in this process."""
    ledger = LedgerFixtures(fixtures.url, fixtures.tenant_id)
    with listening(fixtures.app) as url:
        yield Shop(ledger, url, fixtures.key)
    ledger.close()


def asks(shop: Shop, name: str, value: int, account: str | None = None) -> None:
    account = account or f"acct_{name}"
    shop.fixtures.add(new_row(name, value, order_ref="o", account_ref=account, risk=CLEAN))
    shop.run()


def ordered(shop: Shop, paid: int) -> None:
    shop.fixtures.ledger.add_orders([OrderFacts("o", datetime.now(UTC) - timedelta(days=1), paid, "USD")])


def poller(shop: Shop, client: Client) -> InDoubtPoller:
    return InDoubtPoller(shop.fixtures.ledger, client, load_routes(policies_dir(), system_names()))


def vote(shop: Shop, fixtures: Fixtures, name: str, verdict: str, **rest: str) -> None:
    approval = fixtures.one("select approval_id from refunds.ledger_entries where ledger_entry_id = %s", name)
    resolve_approval(fixtures.console_pool, actor(fixtures, "approver"), approval, verdict=verdict, reason="seen",
                     digest=digest_of(fixtures, approval), **rest)  # fmt: skip
    shop.run()


def complain(shop: Shop, closed: bool) -> None:
    flag = {"channel": "retail", "order_ref": "o", "flag": "open_complaint", "closed": closed}
    shop.fixtures.ledger.flag_orders([flag])


def parts(shop: Shop) -> tuple[int, ...]:
    return shop.fixtures.all(PARTS)[0]


def test_what_a_person_handled_elsewhere_is_not_paid_again(shop: Shop, fixtures: Fixtures) -> None:
    ordered(shop, 140_00)
    complain(shop, closed=False)
    asks(shop, "first", 140_00)
    assert parts(shop) == (140_00, 0, 0, 0, 0), "what waits for a person holds its amount"
    complain(shop, closed=True)
    asks(shop, "meanwhile", 140_00)
    vote(shop, fixtures, "first", "handled", reference="CASE-7")
    assert shop.stands("first") == ("DENIED", None, "handled_by_person")
    assert parts(shop) == (0, 0, 140_00, 0, 0)
    asks(shop, "second", 140_00)
    assert {shop.stands(name)[2] for name in ("meanwhile", "second")} == {Escalation.ORDER_OVERDRAWN}
    assert shop.nothing_paid()
    assert fixtures.broken_invariants() == []


def test_what_a_person_handled_beyond_what_is_left_is_on_record_and_named(shop: Shop, fixtures: Fixtures) -> None:
    ordered(shop, 100_00)
    asks(shop, "paid", 60_00)
    asks(shop, "over", 60_00)
    assert shop.stands("over")[2] == Escalation.ORDER_OVERDRAWN
    assert fixtures.one("select offers_approve from sentinel.approvals") is False
    vote(shop, fixtures, "over", "handled", reference="CASE-8")
    assert parts(shop) == (0, 60_00, 60_00, 0, 20_00)
    assert fixtures.broken_invariants() == ["order_over_refunded"]


def test_what_a_person_handled_in_another_currency_is_named_and_its_count_is_held_against_the_ledger(
    shop: Shop, fixtures: Fixtures
) -> None:
    ordered(shop, 100_00)
    asks(shop, "paid", 100_00)
    shop.fixtures.add(new_row("euros", 10_00, currency="EUR", order_ref="o", risk=CLEAN))
    shop.run()
    assert shop.stands("euros")[2] == Escalation.ORDER_OTHER_CURRENCY
    vote(shop, fixtures, "euros", "handled", reference="till-2")
    fields = {"tenant_id": fixtures.tenant_id}
    with shop.fixtures.pool.connection() as worker:
        found = worker.execute(FIND_BUDGETS.encode(), fields).fetchall()
    assert [(row[2], *row[-2:]) for row in found] == [("o", 1, "other_currency")]
    assert fixtures.broken_invariants() == []
    shop.fixtures.admin.execute("update refunds.order_budgets set uncounted_entries = 0")
    assert fixtures.broken_invariants() == ["order_budget_differs"]


def test_a_rejected_refund_gives_its_amount_back(shop: Shop, fixtures: Fixtures) -> None:
    ordered(shop, 200_00)
    asks(shop, "asked", 180_00)
    asks(shop, "meanwhile", 60_00)
    assert shop.stands("meanwhile")[2] == Escalation.ORDER_OVERDRAWN
    vote(shop, fixtures, "asked", "reject")
    asks(shop, "after", 60_00)
    assert shop.stands("asked")[0] == "DENIED" and shop.stands("after")[0] == "EXECUTED"
    assert parts(shop)[1] == 60_00
    assert fixtures.broken_invariants() == []


@pytest.mark.parametrize("executed", [False, True], ids=["not executed", "executed"])
def test_a_doubt_holds_its_amount_until_a_person_has_said_what_happened(
    shop: Shop, fixtures: Fixtures, executed: bool
) -> None:
    ordered(shop, 100_00)
    shop.spies["simulated_refund"].says = [EffectRefused("account closed")]
    asks(shop, "first", 60_00)
    assert shop.stands("first")[0] == "ERROR" and parts(shop) == (0, 0, 0, 60_00, 0)
    with Client(shop.url, fixtures.key, agent_id="retail-refund-agent") as client:
        doubts = poller(shop, client)
        assert doubts.look() == [], "an agent's report of an error frees nothing"
        asks(shop, "second", 60_00)
        assert shop.stands("second")[2] == Escalation.ORDER_OVERDRAWN
        vote(shop, fixtures, "second", "reject")
        (doubt,) = list_in_doubt(fixtures.console_pool, fixtures.tenant_id)
        operation: uuid.UUID = doubt.operation_id
        resolve_in_doubt(
            fixtures.console_pool, actor(fixtures, "admin"), operation, executed=executed, evidence="asked the bank"
        )
        assert doubts.look() == ["first"]
        assert doubts.look() == []
    said = "it was executed, according to the authority" if executed else "a person said that it was not executed"
    assert last_error(shop, "first").startswith(said) and "sentinel in-doubt" not in last_error(shop, "first")
    stays = "handled" if executed else "not_executed"
    assert shop.fixtures.ledger.retry(["first"], who="op", why="w") == {"first": stays}
    asks(shop, "third", 60_00)
    if executed:
        assert parts(shop) == (0, 0, 60_00, 0, 0) and shop.stands("third")[2] == Escalation.ORDER_OVERDRAWN
    else:
        assert parts(shop) == (0, 60_00, 0, 0, 0) and shop.stands("third")[0] == "EXECUTED"
    assert fixtures.broken_invariants() == []


@pytest.mark.parametrize("ran_out", [False, True], ids=["its permit is open", "its permit ran out"])
def test_a_doubt_about_what_was_never_started_is_let_go_and_asked_about_no_more(
    shop: Shop, fixtures: Fixtures, ran_out: bool
) -> None:
    """Its workers died before they asked for the start, until the row had no attempts left."""
    ordered(shop, 100_00)
    with patch.object(Client, "start_many", side_effect=RuntimeError("it dies here")):
        asks(shop, "first", 60_00)
    assert shop.stands("first")[0] == "ALLOWED"
    given_up(shop, "first")
    assert list_in_doubt(fixtures.console_pool, fixtures.tenant_id) == [], "there nobody can be asked about it"
    if ran_out:
        let_permits_expire(fixtures)
    with Client(shop.url, fixtures.key, agent_id="retail-refund-agent") as client:
        assert poller(shop, client).look() == ["first"] and parts(shop) == (0, 0, 0, 0, 0)
        with patch.object(Client, "guard_many", side_effect=AssertionError("nothing is asked about any more")):
            assert poller(shop, client).look() == []
    # What the question left out there is over with its permit: the refund itself may be entered anew.
    let_permits_expire(fixtures)
    run_housekeeping(fixtures.authority.pool, 0)
    shop.fixtures.add(new_row("anew", 60_00, refund_id="rf_first", order_ref="o", account_ref="acct_first", risk=CLEAN))
    shop.run()
    assert shop.stands("anew")[0] == "EXECUTED" and parts(shop) == (0, 60_00, 0, 0, 0)
    assert fixtures.broken_invariants() == []


def last_error(shop: Shop, name: str) -> str:
    return str(shop.fixtures.one("select last_error from refunds.ledger_entries where ledger_entry_id = %s", name))


def test_what_was_let_go_as_never_started_says_so_and_can_be_tried_again(shop: Shop, fixtures: Fixtures) -> None:
    ordered(shop, 100_00)
    with patch.object(Client, "start_many", side_effect=RuntimeError("it dies here")):
        asks(shop, "first", 60_00)
    given_up(shop, "first")
    assert "it may have been started: see `sentinel in-doubt list`" in last_error(shop, "first")
    assert shop.fixtures.ledger.retry(["first"], who="op", why="w") == {"first": "start_in_doubt"}
    with Client(shop.url, fixtures.key, agent_id=AGENT) as client:
        assert poller(shop, client).look() == ["first"]
    said = last_error(shop, "first")
    assert said.startswith("it was never started") and "it had ended with: gave up after" in said
    assert "in-doubt" not in said, "there it is in no list"
    assert shop.fixtures.one("select act_until from refunds.ledger_entries") is None
    assert shop.fixtures.ledger.retry(["first"], who="op", why="w") == {"first": None}
    shop.run()
    assert shop.stands("first")[0] == "EXECUTED" and parts(shop) == (0, 60_00, 0, 0, 0)
    assert fixtures.broken_invariants() == []


def given_up(shop: Shop, name: str) -> None:
    """The row has no attempts left: it ends where it stands."""
    no_attempts_left(shop, name)
    assert parts(shop) == (0, 0, 0, 60_00, 0)


def no_attempts_left(shop: Shop, name: str) -> None:
    shop.fixtures.admin.execute("update refunds.ledger_entries set attempts = 99 where ledger_entry_id = %s", [name])
    shop.fixtures.make_due()
    shop.run()
    assert shop.stands(name)[0] == "ERROR"


# Of a row that names no order


def asks_without_order(shop: Shop, name: str) -> None:
    shop.fixtures.add(new_row(name, 60_00, risk=CLEAN))
    shop.run()


def part(shop: Shop, name: str) -> str | None:
    found: str | None = shop.fixtures.one(
        "select budget_part from refunds.ledger_entries where ledger_entry_id = %s", name
    )
    return found


@pytest.mark.parametrize("executed", [False, True], ids=["not executed", "executed"])
def test_a_row_without_an_order_says_how_its_doubt_ended(shop: Shop, fixtures: Fixtures, executed: bool) -> None:
    shop.spies["simulated_refund"].says = [EffectRefused("account closed")]
    asks_without_order(shop, "first")
    assert shop.stands("first") == ("ERROR", None, "settlement_refused") and part(shop, "first") == "in_doubt"
    with Client(shop.url, fixtures.key, agent_id=AGENT) as client:
        assert poller(shop, client).look() == []
        says(fixtures, executed=executed)
        assert poller(shop, client).look() == ["first"] and poller(shop, client).look() == []
    assert part(shop, "first") == ("handled" if executed else None)
    said = "it was executed, according to the authority; " if executed else "a person said that it was not executed. "
    assert last_error(shop, "first").startswith(said)
    assert "sentinel in-doubt" not in last_error(shop, "first") and "order" not in last_error(shop, "first")
    stays = "handled" if executed else "not_executed"
    assert shop.fixtures.ledger.retry(["first"], who="op", why="w") == {"first": stays}
    assert fixtures.broken_invariants() == []


def test_a_row_without_an_order_that_was_never_started_can_be_tried_again(shop: Shop, fixtures: Fixtures) -> None:
    with patch.object(Client, "start_many", side_effect=RuntimeError("it dies here")):
        asks_without_order(shop, "first")
    assert shop.stands("first")[0] == "ALLOWED"
    no_attempts_left(shop, "first")
    assert "it may have been started: see `sentinel in-doubt list`" in last_error(shop, "first")
    with Client(shop.url, fixtures.key, agent_id=AGENT) as client:
        assert poller(shop, client).look() == ["first"]
    assert last_error(shop, "first").startswith("it was never started, according to the authority; it had ended with: ")
    assert shop.fixtures.ledger.retry(["first"], who="op", why="w") == {"first": None}
    shop.run()
    assert shop.stands("first")[0] == "EXECUTED" and part(shop, "first") is None
    assert fixtures.broken_invariants() == []


def restore_before_the_start(fixtures: Fixtures) -> None:
    """The authority's database as it was a moment before anything was started."""
    fixtures.admin.execute("set session_replication_role = replica")
    fixtures.admin.execute(
        "update sentinel.operation_states set status = 'allowed', start_id = null, started_at = null, start_event_id = null,"
        " start_hash = null, act_until = null"
    )
    fixtures.admin.execute("set session_replication_role = origin")


def restore_before_the_decision(fixtures: Fixtures) -> None:
    """Or a moment before it was asked: the operation is decided anew when it is asked about again."""
    fixtures.admin.execute("set session_replication_role = replica")
    fixtures.admin.execute("delete from sentinel.operation_states; delete from sentinel.operation_rows")
    fixtures.admin.execute("set session_replication_role = origin")


def done_without_answer(shop: Shop) -> None:
    """A refund of 60.00, of an order over 100.00, that a system did once and whose answers are all lost."""
    ordered(shop, 100_00)
    platform = InMemory("platform_backend")
    outside(shop, platform)
    platform.loses_answers = 99
    asks(shop, "first", 60_00)
    assert shop.stands("first")[0] == "ALLOWED" and len(platform.done) == 1


def let_go_after(
    shop: Shop, fixtures: Fixtures, restore: Callable[[Fixtures], None], *, halted: bool = False
) -> list[str]:
    """What three looks let go of a refund that was done outside, and whose end the ledger does not know, after a restore.

    The ledger is in a database of its own, which was not restored.
    """
    done_without_answer(shop)
    given_up(shop, "first")
    restore(fixtures)
    if halted:
        set_halt(fixtures.console_pool, actor(fixtures, "admin"), scope="tenant", reason="restored")
    with Client(shop.url, fixtures.key, agent_id=AGENT) as client:
        return [name for _ in range(3) for name in poller(shop, client).look()]


@pytest.mark.parametrize("halted", [False, True], ids=["nothing is halted", "everything is halted"])
@pytest.mark.parametrize("restore", [restore_before_the_start, restore_before_the_decision])
def test_an_authority_that_forgot_the_start_frees_nothing_that_was_begun_outside(
    shop: Shop, fixtures: Fixtures, restore: Callable[[Fixtures], None], halted: bool
) -> None:
    assert let_go_after(shop, fixtures, restore, halted=halted) == []
    assert parts(shop) == (0, 0, 0, 60_00, 0)


def asked_anew_after(shop: Shop, fixtures: Fixtures, restore: Callable[[Fixtures], None], *, names_order: bool) -> None:
    """A refund that was done outside, whose end the ledger does not know, is asked about again after a restore.

    By then a person has to be asked: everything is halted, or the customer has complained of an order.
    """
    if names_order:
        ordered(shop, 100_00)
    platform = InMemory("platform_backend")
    outside(shop, platform)
    platform.loses_answers = 99
    shop.fixtures.add(new_row("first", 60_00, order_ref="o" if names_order else None, risk=CLEAN))
    shop.run()
    assert shop.stands("first")[0] == "ALLOWED" and len(platform.done) == 1
    restore(fixtures)
    if restore is restore_before_the_start:
        complain(shop, closed=False)
    else:
        set_halt(fixtures.console_pool, actor(fixtures, "admin"), scope="tenant", reason="restored")
    shop.fixtures.make_due()
    shop.run()


@pytest.mark.parametrize(
    ("restore", "names_order"),
    [(restore_before_the_start, True), (restore_before_the_decision, True), (restore_before_the_decision, False)],
)
def test_what_was_begun_outside_is_in_doubt_where_a_restored_authority_asks_a_person_about_it(
    shop: Shop, fixtures: Fixtures, restore: Callable[[Fixtures], None], names_order: bool
) -> None:
    """The finding: it waited for that person, and was DENIED when nobody answered: its order's amount was free, and paid again."""
    asked_anew_after(shop, fixtures, restore, names_order=names_order)
    assert shop.stands("first") == ("ERROR", None, "start_forgotten") and part(shop, "first") == "in_doubt"
    with Client(shop.url, fixtures.key, agent_id=AGENT) as client:
        assert [name for _ in range(3) for name in poller(shop, client).look()] == []
    assert shop.fixtures.ledger.retry(["first"], who="op", why="w") == {"first": "effects_open"}
    if names_order:
        assert parts(shop) == (0, 0, 0, 60_00, 0)


def begun_before_its_secret_was_replaced(shop: Shop, fixtures: Fixtures) -> None:
    """A refund that was done outside without an answer, whose permit the authority cannot read any more."""
    done_without_answer(shop)
    with patch.object(PermitSigner, "read", lambda signer, *_: None):
        for _ in range(12):
            shop.fixtures.make_due()
            shop.run()
    assert shop.stands("first")[0] == "ERROR"


def test_a_refund_that_is_under_way_when_its_permits_secret_goes_is_in_doubt_and_a_person_says_what_came_of_it(
    shop: Shop, fixtures: Fixtures
) -> None:
    """The finding: its start was refused eight times, and its amount was free to be paid again."""
    begun_before_its_secret_was_replaced(shop, fixtures)
    assert shop.stands("first") == ("ERROR", None, "start_unconfirmed") and parts(shop) == (0, 0, 0, 60_00, 0)
    assert shop.fixtures.ledger.retry(["first"], who="op", why="w") == {"first": "effects_open"}
    asks(shop, "second", 60_00)
    assert shop.stands("second")[2] == Escalation.ORDER_OVERDRAWN
    run_housekeeping(fixtures.authority.pool, 0)
    says(fixtures, executed=True)
    with Client(shop.url, fixtures.key, agent_id=AGENT) as client:
        assert poller(shop, client).look() == ["first"]
    assert parts(shop)[2] == 60_00
    assert fixtures.broken_invariants() == []


def test_the_ledger_itself_frees_nothing_of_what_was_begun_outside(shop: Shop, fixtures: Fixtures) -> None:
    """Whatever a worker makes of a refused start."""

    def believed(row: LedgerRow, refused: Rejected, policy: RetryPolicy, *, was_started: bool) -> tuple[Change, Change]:
        return after_start_refused(replace(row, is_begun_outside=False), refused, policy, was_started=False)

    with patch("worker.refunds.transitions.after_start_refused", believed):
        begun_before_its_secret_was_replaced(shop, fixtures)
    assert parts(shop) == (0, 0, 0, 60_00, 0)


def test_the_ledger_itself_denies_nothing_that_was_begun_outside(shop: Shop, fixtures: Fixtures) -> None:
    """Whatever a worker makes of an answer."""
    with patch("worker.refunds.transitions._NEVER_STARTED", ()):
        asked_anew_after(shop, fixtures, restore_before_the_decision, names_order=True)
        vote(shop, fixtures, "first", "reject")
    assert shop.stands("first")[0] != "DENIED" and parts(shop) == (60_00, 0, 0, 0, 0)
    mutants.cut(
        fixtures,
        "refunds.set_budget_part",
        "and refunds.is_begun_outside(new.tenant_id, new.ledger_entry_id)",
        "and false",
    )
    with patch("worker.refunds.transitions._NEVER_STARTED", ()):
        shop.fixtures.make_due()
        shop.run()
    assert shop.stands("first")[0] == "DENIED" and parts(shop) == (0, 0, 0, 0, 0), "the mutant frees what was paid"


def test_mutant_that_believes_it_gives_the_amount_away_twice(shop: Shop, fixtures: Fixtures) -> None:
    fence = "or exists (select from refunds.effects f where f.tenant_id = e.tenant_id and f.ledger_entry_id = e.ledger_entry_id)"
    mutants.cut(fixtures, "refunds.resolve_budget_doubts", fence)
    assert let_go_after(shop, fixtures, restore_before_the_start) == ["first"]
    assert parts(shop) == (0, 0, 0, 0, 0), "free for another refund, and given back once already"


def test_what_was_started_by_somebody_else_is_not_let_go_by_an_authority_that_forgot_it(
    shop: Shop, fixtures: Fixtures
) -> None:
    """Here nothing of it is on record: whoever started it may have paid it."""
    ordered(shop, 100_00)
    redeem = Client.start_many

    def another_was_quicker(client: Client, permits: Sequence[Any], **rest: Any) -> list[Any]:
        redeem(client, [(permit, uuid.uuid4()) for permit, _ in permits], **rest)
        return redeem(client, permits, **rest)

    with patch.object(Client, "start_many", another_was_quicker):
        asks(shop, "first", 60_00)
    assert shop.stands("first")[::2] == ("ERROR", "started_elsewhere") and parts(shop) == (0, 0, 0, 60_00, 0)
    restore_before_the_start(fixtures)
    with Client(shop.url, fixtures.key, agent_id=AGENT) as client:
        assert poller(shop, client).look() == [] and parts(shop) == (0, 0, 0, 60_00, 0)


def test_what_a_person_called_executed_before_its_row_had_ended_is_handled_and_in_no_doubt(
    shop: Shop, fixtures: Fixtures
) -> None:
    """Its system fell silent, a person asked it by telephone, and the worker takes the row up again."""
    ordered(shop, 100_00)
    platform = InMemory("platform_backend")
    outside(shop, platform)
    platform.loses_answers = 99
    asks(shop, "first", 60_00)
    assert shop.stands("first")[0] == "ALLOWED"
    run_housekeeping(fixtures.authority.pool, 0)
    says(fixtures, executed=True)
    shop.fixtures.make_due()
    shop.run()
    assert shop.stands("first") == ("ERROR", None, "executed_elsewhere") and parts(shop) == (0, 0, 60_00, 0, 0)
    assert last_error(shop, "first").startswith("it was executed") and "doubt" not in last_error(shop, "first")
    assert shop.fixtures.ledger.retry(["first"], who="op", why="w") == {"first": "handled"}
    asks(shop, "second", 60_00)
    assert shop.stands("second")[2] == Escalation.ORDER_OVERDRAWN
    assert len(platform.done) == 1 and shop.fixtures.executions() == 0
    assert fixtures.broken_invariants() == []


# After a success that contradicts a person's "not executed"


def says(fixtures: Fixtures, *, executed: bool) -> None:
    """A person decides on the one operation in doubt."""
    (doubt,) = list_in_doubt(fixtures.console_pool, fixtures.tenant_id)
    resolve_in_doubt(
        fixtures.console_pool, actor(fixtures, "admin"), doubt.operation_id, executed=executed, evidence="asked again",
        in_doubt_since=doubt.in_doubt_since,
    )  # fmt: skip


@pytest.mark.parametrize("executed", [False, True], ids=["not executed", "executed"])
def test_after_a_contradiction_the_last_decision_says_where_the_amount_goes(
    shop: Shop, fixtures: Fixtures, executed: bool
) -> None:
    ordered(shop, 100_00)
    shop.spies["simulated_refund"].says = [EffectRefused("account closed")]
    asks(shop, "first", 60_00)
    says(fixtures, executed=False)
    body = {"idempotency_key": "refund:first", "action": "refund.create", "agent_id": AGENT}
    assert fixtures.report(body).get_json()["contradiction"] is True
    with Client(shop.url, fixtures.key, agent_id=AGENT) as client:
        doubts = poller(shop, client)
        assert doubts.look() == [] and parts(shop) == (0, 0, 0, 60_00, 0), "neither of the two words frees or takes it"
        says(fixtures, executed=executed)
        assert doubts.look() == ["first"]
    assert parts(shop) == ((0, 0, 60_00, 0, 0) if executed else (0, 0, 0, 0, 0))
    stays = "handled" if executed else "not_executed"
    assert shop.fixtures.ledger.retry(["first"], who="op", why="w") == {"first": stays}
    assert fixtures.broken_invariants() == []


@pytest.mark.parametrize("executed", [False, True], ids=["not executed", "executed"])
def test_what_was_done_after_not_executed_is_settled_by_the_decision_after_it_was_told(
    shop: Shop, fixtures: Fixtures, executed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordered(shop, 100_00)
    outside(shop, InMemory("platform_backend"))
    with monkeypatch.context() as dies, monkeypatch.context() as unheard:
        dies.setattr(Effects, "move", lambda *args, **rest: False)  # after the call, before it is on record
        asks(shop, "first", 60_00)
        dies.undo()
        time_passes(fixtures)
        assert say_not_executed(fixtures) == ""
        unheard.setattr(
            Client, "report_many", lambda self, told: [Unreachable(NoAnswerKind.REFUSED, "away") for _ in told]
        )
        shop.fixtures.make_due()
        shop.run()
    assert shop.stands("first")[::2] == ("ERROR", "not_executed") and parts(shop) == (0, 0, 0, 60_00, 0)
    with Client(shop.url, fixtures.key, agent_id=AGENT) as client:
        doubts = poller(shop, client)
        assert doubts.look() == [], "the authority does not know yet that it was done"
        shop.fixtures.admin.execute("update refunds.outbox set next_attempt_at = clock_timestamp()")
        shop.run()
        assert fixtures.one("select in_doubt_reason from sentinel.operation_states") == "contradiction"
        assert doubts.look() == [], "and now nobody has decided"
        says(fixtures, executed=executed)
        assert doubts.look() == ["first"]
    assert parts(shop) == ((0, 0, 60_00, 0, 0) if executed else (0, 0, 0, 0, 0))
    left = ["execution_missing"] if executed else []
    assert fixtures.broken_invariants() == left, "paid after the word, so by no execution of the ledger's"
