"""The workflow against the real authority: its policies, its approvals, its switches, its halts decide; the worker only asks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

import pytest
from psycopg.types.json import Jsonb

from ops_console.read_models.overview import ledger_load
from sentinel.authority.approvals import resolve_approval
from sentinel.authority.gate_reports import record_gate_report
from sentinel.authority.halts import lift_halt, set_halt
from sentinel.authority.in_doubt import list_in_doubt, resolve_in_doubt
from sentinel.authority.keys import revoke_key
from sentinel.authority.switches import turn_switch_off
from sentinel.cli.scratch import listening
from sentinel.core.errors import SentinelError
from sentinel.core.money import Money
from sentinel.store.database import WORKER
from tests.support.fixtures import Fixtures
from tests.support.harness import actor, digest_of, dump, let_approvals_expire, let_permits_expire
from tests.support.ledger_fixtures import ROOT, LedgerFixtures, new_row, worker_settings
from tests.support.logins import program_url
from tests.support.switch_fixtures import BOOK, MASTER, on, passing_report
from tests.support.workflow_fixtures import BRANCHES, FEE, SECRETS, Branch, Shop, Spy, executed_once, lost_answers
from worker.images import Recognised
from worker.refunds.intake import parse_row
from worker.refunds.settings import WorkerSettings
from worker.settlement import EffectRefused
from worker.settlement.registry import Systems

RECEIPT = Recognised("fee_receipt", Money(2000, "USD"))


def switch_on(fixtures: Fixtures, name: str, percent: int = 100) -> None:
    """As an administrator does it, with a passing launch-gate report where one is wanted."""
    declared = BOOK.switches[name]
    if declared.gate is not None:
        digest = fixtures.one(
            "select policy_digest from sentinel.policies_in_force where policy_id = %s", declared.policy
        )
        report = passing_report(digest, name, declared.gate)
        record_gate_report(fixtures.console_pool, actor(fixtures, "approver"), BOOK, report)
    on(fixtures, name, min(percent, declared.first_canary))
    on(fixtures, name, percent)


@pytest.fixture
def shop(fixtures: Fixtures) -> Iterator[Shop]:
    """A shop whose authority is the real one, in this process, with every switch on."""
    for name in (MASTER, *(name for name in BOOK.switches if name.startswith("small_refund.") and name != MASTER)):
        switch_on(fixtures, name)
    ledger = LedgerFixtures(fixtures.url, fixtures.tenant_id)
    with listening(fixtures.app) as url:
        yield Shop(ledger, url, fixtures.key)
    ledger.close()


def vote(fixtures: Fixtures, name: str, verdict: str = "approve", **rest: Any) -> None:
    """A person's vote on what the row waits for."""
    approval = fixtures.one("select approval_id from refunds.ledger_entries where ledger_entry_id = %s", name)
    resolve_approval(
        fixtures.console_pool, actor(fixtures, "approver"), approval, verdict=verdict, reason="looked at it",
        digest=digest_of(fixtures, approval), **rest,
    )  # fmt: skip


def offers(fixtures: Fixtures, name: str) -> tuple[Any, Any]:
    """(reasons, whether approving is offered) of what the row waits for."""
    query = (
        "select {} from sentinel.approvals join refunds.ledger_entries using (approval_id) where ledger_entry_id = %s"
    )
    return fixtures.one(query.format("reasons"), name), fixtures.one(query.format("offers_approve"), name)


def test_the_whole_way_of_a_private_fee(shop: Shop, fixtures: Fixtures) -> None:
    shop.enter(FEE)
    shop.run()
    assert shop.stands()[1:] == ("customer", "awaiting_customer")
    assert fixtures.one("select count(*) from sentinel.operations") == 0, "nothing is reserved for who may decline"
    shop.answer("r")
    shop.run()
    assert shop.stands()[0] == "EXECUTED"
    assert executed_once(shop, ["r"], "private_refund")
    assert fixtures.broken_invariants() == []


@pytest.mark.parametrize("limit", [1500, 3000])
def test_exactly_the_limit_is_paid_and_one_minor_unit_more_goes_to_a_person(shop: Shop, limit: int) -> None:
    """The cap of one fee (15.00), and the account's day (30.00, here as 15.00 twice)."""
    names = []
    for number, value in enumerate([1500] * (limit // 1500)):
        names.append(shop.enter(FEE, f"n{number}", value=value, order={"shipping_fee_minor": 2000, "account_ref": "acct"},
                                account_ref="acct", image=RECEIPT))  # fmt: skip
        shop.show(names[-1], RECEIPT)
    over = 1501 if limit == 1500 else 1
    shop.run()
    shop.answer(*names)
    shop.run()
    assert executed_once(shop, names, "private_refund")
    shop.show(shop.enter(FEE, "over", value=over, order={"shipping_fee_minor": 2000, "account_ref": "acct"}, account_ref="acct"), RECEIPT)  # fmt: skip
    shop.run()
    # A third row of one account is also its third try in a day, which leads.
    leads = "repeated_attempts" if len(names) >= 2 else "over_limit_early"
    assert shop.stands("over") == ("APPROVAL_REQUIRED", "operator", leads)
    assert executed_once(shop, names, "private_refund")


@pytest.mark.parametrize(
    ("channel", "scenario", "known"),
    [("private", "fe", True), ("private", "fe", False), ("privat", "fee", True), ("privat", "fee", False),
     ("public", "compensation", True), ("public", "compensation", False), ("retail", "fee", True)],
)  # fmt: skip
def test_a_row_that_no_route_takes_up_goes_to_a_person_whatever_is_known_of_it(
    shop: Shop, fixtures: Fixtures, channel: str, scenario: str, known: bool
) -> None:
    shop.enter(replace(FEE, channel=channel, scenario=scenario), has_order=known)
    shop.run()
    assert shop.stands()[:2] == ("APPROVAL_REQUIRED", "operator")
    reasons, approve_offered = offers(fixtures, "r")
    assert {"no_route", "order_unknown"} & set(reasons)
    assert not approve_offered
    assert shop.nothing_paid()


def test_approved_it_asks_its_customer_and_passes_every_hard_rule_again(shop: Shop, fixtures: Fixtures) -> None:
    shop.flag(shop.enter(FEE, days_ago=8), FEE, "open_complaint")
    shop.run()
    asked = []
    while shop.stands()[1] == "operator":
        asked.append(shop.stands()[2])
        vote(fixtures, "r")
        shop.run()
    assert asked == ["open_complaint", "outside_window"]
    shop.answer("r")
    fixtures.admin.execute("update refunds.ledger_entries set risk = %s", [Jsonb({"customer_attempts_24h": 6})])
    shop.run()
    # The question was fixed when a person was first asked: what changes later is the next row's.
    assert shop.stands()[0] == "EXECUTED"
    assert fixtures.broken_invariants() == []


def test_what_a_person_approved_after_the_early_look_is_not_taken_for_another_rows_refund(
    shop: Shop, fixtures: Fixtures
) -> None:
    """The early look knows no key: the row's own question held its refund id, and the person was asked again as `over_limit_early`."""
    shop.enter(FEE, reason="the vase arrived broken")
    shop.run()
    assert shop.stands() == ("APPROVAL_REQUIRED", "operator", "critic_scenario")
    vote(fixtures, "r")
    shop.run()
    assert shop.stands() == ("APPROVAL_REQUIRED", "customer", "awaiting_customer")
    shop.answer("r")
    shop.run()
    assert executed_once(shop, ["r"], "private_refund")
    assert fixtures.one("select count(*) from sentinel.approvals") == 1


def test_a_dry_run_of_what_was_asked_before_says_what_is_on_record(shop: Shop, fixtures: Fixtures) -> None:
    shop.enter(BRANCHES["retail/standard"], value=42_000)
    shop.run()
    vote(fixtures, "r")
    shop.fixtures.ledger.wake_decided([str(fixtures.one("select approval_id from refunds.ledger_entries"))])
    assert shop.simulated() == ("APPROVAL_REQUIRED", shop.stands()[2])
    shop.run()
    assert executed_once(shop, ["r"], "simulated_refund")


def test_a_simulation_of_a_row_whose_system_is_not_ready_asks_a_person_as_its_run_does(
    shop: Shop, fixtures: Fixtures
) -> None:
    shop.spies["simulated_refund"].ready = False
    shop.enter(BRANCHES["retail/standard"])
    assert shop.simulated() == ("APPROVAL_REQUIRED", "system_not_ready")
    shop.run()
    assert shop.stands() == ("APPROVAL_REQUIRED", "operator", "system_not_ready")


def test_under_a_halt_an_approval_pays_nothing(shop: Shop, fixtures: Fixtures) -> None:
    shop.flag(shop.enter(FEE), FEE, "open_complaint")
    shop.run()
    vote(fixtures, "r")
    set_halt(
        fixtures.console_pool, actor(fixtures, "approver"), scope="tenant", target="", level="pause", reason="stop"
    )
    for _ in range(3):
        shop.run()
        shop.fixtures.make_due()
        assert shop.nothing_paid()
    assert shop.stands()[0] in ("NEW", "APPROVAL_REQUIRED", "DENIED")
    assert shop.cards() == 0


def test_a_permission_that_never_arrived_outlives_a_halt(shop: Shop, fixtures: Fixtures) -> None:
    shop.enter(BRANCHES["retail/standard"])
    with lost_answers():
        shop.run()
    assert shop.stands()[0] == "NEW" and fixtures.one("select decision from sentinel.operation_states") == "ALLOW"
    halt = set_halt(
        fixtures.console_pool, actor(fixtures, "approver"), scope="tenant", target="", level="pause", reason="stop"
    )
    for _ in range(2):
        shop.fixtures.make_due()
        shop.run()
        assert shop.stands()[0] == "NEW" and shop.nothing_paid(), "refused now, not for ever"
    lift_halt(fixtures.console_pool, actor(fixtures, "admin"), halt.halt_id, reason="over")
    shop.fixtures.make_due()
    shop.run()
    assert executed_once(shop, ["r"], "simulated_refund") and fixtures.broken_invariants() == []


def test_what_falls_due_under_a_halt_waits_for_a_person_and_runs_out_whether_the_halt_is_lifted_or_not(
    shop: Shop, fixtures: Fixtures
) -> None:
    retail = BRANCHES["retail/standard"]
    halt = set_halt(
        fixtures.console_pool, actor(fixtures, "approver"), scope="tenant", target="", level="pause", reason="stop"
    )
    for name in ("approved", "undecided"):
        shop.enter(retail, name)
    shop.run()
    for name in ("approved", "undecided"):
        assert shop.stands(name) == ("APPROVAL_REQUIRED", "operator", "halted")
    vote(fixtures, "approved")
    shop.run()
    assert shop.stands("approved")[0] == "NEW" and shop.nothing_paid(), "put back until the halt is lifted"
    lift_halt(fixtures.console_pool, actor(fixtures, "admin"), halt.halt_id, reason="over")
    shop.fixtures.make_due()
    shop.run()
    assert shop.stands("approved")[0] == "EXECUTED" and shop.stands("undecided")[0] == "APPROVAL_REQUIRED"
    let_approvals_expire(fixtures)
    fixtures.admin.execute(
        "update refunds.ledger_entries set next_attempt_at = clock_timestamp() where status = 'APPROVAL_REQUIRED'"
    )
    shop.run()
    assert shop.stands("undecided") == ("DENIED", None, "approval_expired")
    anew = {"refund_id": "rf_undecided", "order_ref": "ord_undecided", "account_ref": "acct_undecided"}
    shop.enter(retail, "anew", has_order=False, **anew)
    shop.run()
    assert shop.stands("anew")[0] == "EXECUTED"


@pytest.mark.parametrize("branch, over", [(FEE, {"scenario": "quality"}), (BRANCHES["private/price_diff"], {})])
def test_what_no_machine_can_pay_is_not_offered_for_approval(
    shop: Shop, fixtures: Fixtures, branch: Branch, over: dict[str, Any]
) -> None:
    shop.spies["price_difference"].ready = False
    shop.enter(branch, **over)
    shop.run()
    assert shop.stands()[1] == "operator"
    reasons, may_approve = offers(fixtures, "r")
    assert may_approve is False and shop.stands()[2] in reasons
    with pytest.raises(SentinelError):
        vote(fixtures, "r")
    vote(fixtures, "r", "handled", reference="CASE-7")
    shop.run()
    assert shop.stands() == ("DENIED", None, "handled_by_person")
    assert shop.nothing_paid()
    assert fixtures.broken_invariants() == []


def test_rejected_and_handled_rows_end(shop: Shop, fixtures: Fixtures) -> None:
    for name in ("rejected", "handled"):
        shop.flag(shop.enter(FEE, name), FEE, "open_complaint")
    shop.run()
    vote(fixtures, "rejected", "reject")
    vote(fixtures, "handled", "handled", reference="CASE-8")
    shop.run()
    assert shop.stands("rejected")[::2] == ("DENIED", "approval_rejected")
    assert shop.stands("handled")[::2] == ("DENIED", "handled_by_person")
    assert shop.nothing_paid()


def test_an_order_whose_refund_a_person_handled_is_not_refunded_again_by_the_machine(
    shop: Shop, fixtures: Fixtures
) -> None:
    """The order was paid far more than its one fee: its budget would have room."""
    shop.flag(shop.enter(FEE, "first", value=490), FEE, "open_complaint")
    shop.run()
    vote(fixtures, "first", "handled", reference="CASE-9")
    shop.run()
    assert shop.stands("first")[::2] == ("DENIED", "handled_by_person")
    shop.fixtures.ledger.flag_orders(
        [{"channel": "private", "order_ref": "ord_first", "flag": "open_complaint", "closed": True}]
    )
    shop.enter(FEE, "again", value=490, has_order=False, order_ref="ord_first", account_ref="acct_first")
    shop.run()
    assert shop.stands("again") == ("APPROVAL_REQUIRED", "operator", "refunded_before")
    assert shop.cards() == 0 and shop.nothing_paid()
    assert fixtures.broken_invariants() == []


def test_what_is_entered_anew_after_a_person_approved_it_has_a_refund_id_of_its_own(
    shop: Shop, fixtures: Fixtures
) -> None:
    """What a person approved holds its refund id for its own row; here that ended, because its customer declined."""
    shop.flag(shop.enter(FEE), FEE, "open_complaint")
    shop.run()
    vote(fixtures, "r")
    shop.run()
    shop.answer("r", answer="decline")
    shop.run()
    assert shop.stands()[::2] == ("DENIED", "customer_declined")
    shop.fixtures.ledger.flag_orders(
        [{"channel": "private", "order_ref": "ord_r", "flag": "open_complaint", "closed": True}]
    )
    let_permits_expire(fixtures)
    for name, refund in (("own", "rf_own"), ("same", "rf_r")):
        shop.enter(FEE, name, has_order=False, order_ref="ord_r", account_ref="acct_r", refund_id=refund)
    shop.run()
    assert shop.stands("same")[::2] == ("DENIED", "duplicate_resource")
    shop.answer("own")
    shop.run()
    assert executed_once(shop, ["own"], "private_refund")
    assert fixtures.broken_invariants() == []


def test_a_switch_that_is_turned_off_counts_for_rows_that_were_asked_already(shop: Shop, fixtures: Fixtures) -> None:
    shop.enter(FEE)
    shop.run()
    shop.answer("r")
    turn_switch_off(fixtures.console_pool, actor(fixtures, "approver"), BOOK, "small_refund.refund_fee", reason="odd")
    shop.run()
    assert shop.stands()[1:] == ("operator", "switch_off")
    vote(fixtures, "r")
    shop.run()
    assert executed_once(shop, ["r"], "private_refund")


def test_a_permit_that_was_never_used_is_taken_back_when_its_system_goes_away(shop: Shop, fixtures: Fixtures) -> None:
    shop.enter(FEE)
    shop.run()
    shop.answer("r")
    with patch.object(Spy, "is_ready", side_effect=[True] * 4 + [False] * 20):
        shop.run()
    assert shop.nothing_paid()
    for _ in range(3):
        shop.spies["private_refund"].ready = False
        shop.fixtures.make_due()
        shop.run()
    assert shop.stands()[:2] == ("APPROVAL_REQUIRED", "operator")
    assert offers(fixtures, "r")[1] is False
    assert fixtures.broken_invariants() == []


def test_what_its_system_refuses_for_good_is_in_doubt_at_once_and_its_budget_free_when_a_person_has_said_so(
    shop: Shop, fixtures: Fixtures
) -> None:
    """The account's day is 30.00: two fees of 15.00, of which one is refused, leave room for one more, and only then."""
    over = {"order": {"shipping_fee_minor": 2000, "account_ref": "acct"}, "account_ref": "acct", "image": RECEIPT}
    yesterday = datetime.now(UTC) - timedelta(hours=25)  # so that no third request of a day is why somebody is asked
    for name in ("kept", "refused"):
        shop.show(shop.enter(FEE, name, value=1500, requested_at=yesterday, **over), RECEIPT)
        shop.run()
        shop.answer(name)
        shop.spies["private_refund"].says = [EffectRefused("account closed")] if name == "refused" else []
        shop.run()
    assert shop.stands("refused") == ("ERROR", None, "settlement_refused")
    (doubt,) = list_in_doubt(fixtures.console_pool, fixtures.tenant_id)
    assert (doubt.resource, doubt.amount_minor, doubt.in_doubt_reason) == ("refund/rf_refused", 1500, "error_reported")
    assert f"resolve {doubt.operation_id} --not-executed" in shop.fixtures.one(
        "select last_error from refunds.ledger_entries where ledger_entry_id = 'refused'"
    )
    shop.show(shop.enter(FEE, "before", value=1500, **over), RECEIPT)
    shop.run()
    assert shop.stands("before")[1:] == ("operator", "over_limit_early"), "what is in doubt holds its budget"
    assert "limit_exceeded" in str(shop.steps("before"))
    vote(fixtures, "before", "reject")
    admin = actor(fixtures, "admin")
    resolve_in_doubt(
        fixtures.console_pool, admin, doubt.operation_id, executed=False, evidence="refused: account closed"
    )
    assert list_in_doubt(fixtures.console_pool, fixtures.tenant_id) == []
    shop.show(shop.enter(FEE, "after", value=1500, **over), RECEIPT)
    shop.run()
    shop.answer("after")
    shop.run()
    assert executed_ids(fixtures) == ["after", "kept"] and shop.stands("refused")[0] == "ERROR"
    assert ledger_load(fixtures.console_pool, fixtures.tenant_id).failed == 1, (
        "a person still sees the refund that was not made"
    )
    assert fixtures.broken_invariants() == []


def executed_ids(fixtures: Fixtures) -> list[str]:
    """The rows that were executed."""
    return [row[0] for row in fixtures.admin.execute("select ledger_entry_id from refunds.executions order by 1")]


def test_the_same_words_from_many_accounts_go_to_a_person(shop: Shop, fixtures: Fixtures) -> None:
    words = "The parcel was opened when it came and half of what was in it was not there any more."
    names = [shop.enter(BRANCHES["private/compensation"], f"n{number}", reason=words) for number in range(4)]
    shop.run()
    assert [shop.stands(name)[1] for name in names] == ["customer"] * 3 + ["operator"]
    assert "suspicious_reason" in offers(fixtures, "n3")[0]


# Simulated

MIXED = {
    "fee": (FEE, {}), "complaint": (FEE, {}), "late": (FEE, {"days_ago": 8}), "low": (BRANCHES["retail/standard"], {}),
    "mid": (BRANCHES["retail/standard"], {"value": 42_000}), "high": (BRANCHES["retail/standard"], {"value": 200_000, "order": {"paid_minor": 10**6}}),
    "nowhere": (FEE, {"scenario": "quality"}), "degraded": (BRANCHES["private/price_diff"], {}),
    "confirmed": (FEE, {}), "coupon": (BRANCHES["private/compensation"], {}),
}  # fmt: skip


def test_a_simulation_changes_nothing_and_says_what_the_run_then_does(shop: Shop, fixtures: Fixtures) -> None:
    shop.spies["price_difference"].ready = False
    shop.parts["systems"] = Systems.from_settings(WorkerSettings(api_key="key"))
    shop.enter(FEE, "confirmed")
    shop.run()
    shop.answer("confirmed")
    lines = []
    for name, (branch, over) in MIXED.items():
        if name != "confirmed":
            lines.append(line_of(shop, name, branch, dict(over)))
    shop.flag("complaint", FEE, "open_complaint")
    before = dump(fixtures.admin)
    done = simulated(shop, lines)
    assert dump(fixtures.admin) == before
    assert done == simulated(shop, lines), "asked again it says the same"
    for line in lines:
        shop.fixtures.add(parse_row(line))
    shop.run()
    became = {name: shop.stands(name) for name in done}
    says = {
        "ALLOW": ("EXECUTED", None), "DENY": ("DENIED", None), "ERROR": ("ERROR", None),
    }  # fmt: skip
    for name, (decision, reason) in done.items():
        waits = "customer" if reason == "awaiting_customer" else "operator"
        wanted = says.get(decision, ("APPROVAL_REQUIRED", waits))
        assert became[name][:2] == wanted, name
        if decision == "APPROVAL_REQUIRED":
            assert became[name][2] == reason, name
    assert {status for status, _, _ in became.values()} == {"EXECUTED", "DENIED", "APPROVAL_REQUIRED"}
    assert len({reason for _, reason in done.values()}) >= 6, "the file is mixed"


def test_a_simulation_names_the_orders_that_its_rows_would_overdraw_together(shop: Shop) -> None:
    """Of 90.00, 10.00 is refunded: 50 and 40 do not both fit, 50 and 30 do; what alone is too much says so itself."""
    retail, paid = BRANCHES["retail/standard"], {"paid_minor": 9_000}

    def rows_of(order: str, *amounts: int) -> list[dict[str, Any]]:
        shop.enter(retail, order, value=1_000, order=paid, requested_at=datetime.now(UTC) - timedelta(hours=30))
        of = {"order_ref": f"ord_{order}", "account_ref": f"acct_{order}", "has_order": False}
        return [line_of(shop, f"{order}{place}", retail, {"value": value, **of}) for place, value in enumerate(amounts)]

    lines = [*rows_of("over", 5_000, 4_000), *rows_of("within", 5_000, 3_000), *rows_of("alone", 10_000, 5_000)]
    shop.run()
    found = json.loads(simulate(shop, lines, "--json"))
    decisions = {row["ledger_entry_id"]: row["decision"] for row in found["rows"]}
    assert {name for name in decisions if decisions[name] != "ALLOW"} == {"alone0", "confirmed"}
    assert found["overdrawn_orders"] == [{
        "channel": "retail", "source": "", "order_ref": "ord_over", "ledger_entry_ids": ["over0", "over1"],
        "together": {"value": 90, "currency": "USD"}, "left": {"value": 80, "currency": "USD"},
    }]  # fmt: skip
    said = " ".join(simulate(shop, lines).split())
    assert "order retail/ord_over: 2 rows together are 90.00 USD, but only 80.00 USD is left of it" in said
    assert "Each row was simulated alone" in said and said.count("of it;") == 1
    for line in lines:
        shop.fixtures.add(parse_row(line))
    shop.run()
    assert {shop.stands("over0")[0], shop.stands("over1")[0]} == {"EXECUTED", "APPROVAL_REQUIRED"}
    assert {shop.stands("within0")[0], shop.stands("within1")[0]} == {"EXECUTED"}


def test_a_simulation_sees_an_order_that_nothing_was_refunded_of(shop: Shop) -> None:
    retail = BRANCHES["retail/standard"]
    lines = [
        line_of(shop, "n0", retail, {"value": 5_000, "order": {"paid_minor": 9_000}}),
        line_of(
            shop, "n1", retail, {"value": 5_000, "order_ref": "ord_n0", "account_ref": "acct_n0", "has_order": False}
        ),
    ]
    (order,) = json.loads(simulate(shop, lines, "--json"))["overdrawn_orders"]
    assert (order["together"]["value"], order["left"]["value"]) == (100, 90)


def line_of(shop: Shop, name: str, branch: Branch, over: dict[str, Any]) -> dict[str, Any]:
    """The row as a line of a file; its order is told, the row itself not entered."""
    with patch.object(shop.fixtures, "add") as add:
        shop.enter(branch, name, **over)
    (row,) = add.call_args.args
    fields = {
        key: getattr(row, key)
        for key in ("ledger_entry_id", "refund_id", "channel", "scenario", "account_ref", "order_ref")
    }
    return {**fields, "amount": {"value": f"{row.amount_minor / 100:.2f}", "currency": row.currency}}


def simulated(shop: Shop, lines: list[dict[str, Any]]) -> dict[str, tuple[str, str | None]]:
    """`worker workflow simulate`, as an operator runs it: row → (decision, reason)."""
    rows = json.loads(simulate(shop, lines, "--json"))["rows"]
    return {row["ledger_entry_id"]: (row["decision"], row["reason_code"]) for row in rows}


def simulate(shop: Shop, lines: list[dict[str, Any]], *words: str) -> str:
    """What `worker workflow simulate` prints of these lines, and of a row that is confirmed."""
    text = "".join(json.dumps(line) + "\n" for line in [*lines, CONFIRMED])
    env = {
        "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "WORKER_DATABASE_URL": program_url(shop.fixtures.url, WORKER), "SENTINEL_URL": shop.url,
        "SENTINEL_REFUND_AGENT_API_KEY": shop.key, "SENTINEL_TENANT_ID": str(shop.fixtures.tenant_id),
        "CONFIRM_SECRETS": ",".join(SECRETS),
    }  # fmt: skip
    command = [sys.executable, "-m", "worker.cli", "workflow", "simulate", "-", *words]
    done = subprocess.run(command, env=env, input=text, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


CONFIRMED = {
    "ledger_entry_id": "confirmed", "refund_id": "rf_confirmed", "channel": "private", "scenario": "fee",
    "account_ref": "acct_confirmed", "order_ref": "ord_confirmed", "amount": {"value": "4.00", "currency": "USD"},
}  # fmt: skip


def test_a_worker_whose_key_was_revoked_learns_by_the_next_key_of_its_agent_what_was_decided(
    fixtures: Fixtures,
) -> None:
    ledger = LedgerFixtures(fixtures.url, fixtures.tenant_id)
    ledger.add(new_row("r", 42000))
    with listening(fixtures.app) as url:
        with ledger.agent(url, key=fixtures.key) as agent:
            agent.run_once()
        assert ledger.states() == {"r": "APPROVAL_REQUIRED"}
        revoke_key(fixtures.console_pool, fixtures.tenant_id, fixtures.one("select key_id from sentinel.agent_keys"))
        vote(fixtures, "r")
        with ledger.agent(url, key=fixtures.new_key(agent_id=worker_settings().agent_id)) as agent:
            agent.run_once()
    assert ledger.states() == {"r": "EXECUTED"}
    ledger.close()
    assert fixtures.broken_invariants() == []
