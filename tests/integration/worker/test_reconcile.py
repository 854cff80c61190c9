"""Every kind of wrong execution is found on live data by one statement, and switches its scenario off within a loop round."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from shutil import copytree
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from sentinel.cli.scratch import authority_on_loopback
from sentinel.client import Client
from sentinel.platform.resources import policies_dir
from sentinel.policy.library import ReloadablePolicies
from sentinel.store import database
from sentinel.store.database import WORKER, Pool, with_role
from tests.support.busy import overload
from tests.support.fixtures import Fixtures
from tests.support.kept_sessions import connect
from tests.support.ledger_fixtures import looping, wait_until, worker_settings
from worker.cli import main as worker_command
from worker.failpoints import Failpoints
from worker.refunds import reconcile
from worker.refunds.build import make_agent, make_reconciler
from worker.refunds.ledger import Ledger, LedgerUnavailable
from worker.refunds.reconcile import Discrepancy, Reconciler, caps_of
from worker.refunds.workflow.routes import Routes
from worker.settlement import stripe_events
from worker.settlement.registry import system_names

SWITCH = "small_refund.refund_fee"
TABLES = ("ledger_entries", "executions", "confirmations", "ledger_events")
ORDER = """insert into refunds.orders (tenant_id, channel, order_ref, account_ref, ordered_at, paid_minor, currency)
  values (%(tenant)s, 'private', %(name)s, 'acct', now(), 10000, 'EUR')"""
ENTRY = """insert into refunds.ledger_entries (tenant_id, ledger_entry_id, refund_id, amount_minor, currency, channel, scenario,
  account_ref, order_ref, status, budget_part) values (%(tenant)s, %(name)s, %(name)s, 900, 'EUR', 'private', 'fee', 'acct', %(name)s, 'EXECUTED', 'executed')"""
BUDGET = (
    """update refunds.order_budgets set executed_minor = 900 where tenant_id = %(tenant)s and order_ref = %(name)s"""
)
CARD = """insert into refunds.confirmations (tenant_id, ledger_entry_id, refund_id, digest, order_ref, channel, scenario, amount_minor,
  currency, status, answered_at, expires_at) values (%(tenant)s, %(name)s, %(name)s, 'sha256:' || repeat('a', 64), %(name)s, 'private',
  'fee', 900, 'EUR', 'confirmed', now(), now() + interval '1 day')"""
EVENTS = """insert into refunds.ledger_events (tenant_id, ledger_entry_id, from_status, event, to_status, claim_epoch, occurred_at)
  values (%(tenant)s, %(name)s, 'NEW', 'claimed', 'GUARDING', 1, now() - interval '5 seconds'),
         (%(tenant)s, %(name)s, 'GUARDING', 'allowed', 'ALLOWED', 1, now() - interval '4 seconds')"""
EXECUTION = """insert into refunds.executions (tenant_id, execution_id, ledger_entry_id, refund_id, amount_minor, currency, system,
  operation_id, start_id, start_event_id, claim_epoch) values (%(tenant)s, gen_random_uuid(), %(name)s, %(name)s, 900, 'EUR',
  'private_refund', gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 1)"""

# What is done to a flawless execution "one" (of "two") → what must be found about it.
FAULTS: dict[str, list[str]] = {
    "amount_differs": ["update refunds.executions set amount_minor = 901 where ledger_entry_id = 'one'",
                       "update refunds.confirmations set amount_minor = 901 where ledger_entry_id = 'one'"],
    "no_route": ["update refunds.ledger_entries set scenario = 'standard' where ledger_entry_id = 'one'"],
    "other_system": ["update refunds.executions set system = 'coupon' where ledger_entry_id = 'one'"],
    "other_currency": ["update refunds.orders set currency = 'USD' where order_ref = 'one'"],
    "order_unknown": ["delete from refunds.orders where order_ref = 'one'"],
    "over_a_tenth": ["update refunds.orders set paid_minor = 8999 where order_ref = 'one'"],
    "over_cap": ["update refunds.orders set paid_minor = 99999 where order_ref = 'one'",
                 *(f"update refunds.{table} set amount_minor = 1501 where ledger_entry_id = 'one'" for table in TABLES[:3])],
    "not_confirmed": ["update refunds.confirmations set answered_at = now() + interval '1 hour' where ledger_entry_id = 'one'"],
    "refund_twice": ["drop index refunds.executions_refund_once", *(f"update refunds.{table} set refund_id = 'two' where ledger_entry_id = 'one'" for table in TABLES[:2])],
    "order_over_refunded": ["update refunds.orders set paid_minor = 899 where order_ref = 'one'"],
    "order_twice": ["update refunds.ledger_entries set order_ref = 'two' where ledger_entry_id = 'one'",
                    "update refunds.executions set executed_at = executed_at + interval '1 second' where ledger_entry_id = 'one'"],
    "blacklisted": ["insert into refunds.blacklist (tenant_id, channel, account_ref, since) select tenant_id, 'private', 'acct-one',"
                    " now() - interval '1 hour' from refunds.defaults",
                    "update refunds.ledger_entries set account_ref = 'acct-one' where ledger_entry_id = 'one'"],
    "open_complaint": ["insert into refunds.order_flags (tenant_id, channel, order_ref, flag, since) select tenant_id, 'private',"
                       " 'one', 'open_complaint', now() - interval '1 hour' from refunds.defaults"],
}  # fmt: skip
EXCUSED = {
    "other_currency",
    "order_unknown",
    "over_a_tenth",
    "over_cap",
    "order_twice",
    "blacklisted",
    "open_complaint",
}


def forge_with(owner: psycopg.Connection[Any], statement: str) -> None:
    """Without the triggers where it writes to one of `TABLES`; within a transaction."""
    is_of_tables = any(f" refunds.{table} " in statement for table in TABLES)
    owner.execute(f"set local session_replication_role = {'replica' if is_of_tables else 'origin'}".encode())
    owner.execute(statement.encode())


class Desk:
    """A worker's view of the fixtures' tenant, and an owner who can write what no program may."""

    def __init__(self, fixtures: Fixtures, url: str) -> None:
        self.fixtures = fixtures
        self.settings = worker_settings(authority_url=url, api_key=fixtures.key)
        self.pool = Pool(with_role(fixtures.url, WORKER), size=6)
        self.ledger = Ledger(self.pool, fixtures.tenant_id, worker_id="worker-1")
        self.client = Client(url, fixtures.key, agent_id="retail-refund-agent")
        self.reconciler = make_reconciler(self.settings, self.ledger, self.client)
        self.owner = connect(fixtures.url)

    def forge(self, *statements: str) -> None:
        """As the owner, past every trigger of `TABLES`."""
        for statement in statements:
            with self.owner.transaction():
                forge_with(self.owner, statement)

    def execute_flawlessly(self, *names: str) -> None:
        for name in names:
            tenant = f"'{self.fixtures.tenant_id}'"
            for statement in (ORDER, ENTRY, BUDGET, CARD, EVENTS, EXECUTION):
                self.forge(statement.replace("%(tenant)s", tenant).replace("%(name)s", f"'{name}'"))

    def turn_on(self) -> None:
        self.fixtures.admin.execute(
            "insert into sentinel.switches values (%s, %s, true, 100, now(), 'test', 'test')",
            [self.fixtures.tenant_id, SWITCH],
        )

    def is_on(self) -> bool:
        return self.client.switches().switches[SWITCH].is_on

    def found(self) -> list[str]:
        return [one.finding for one in self.reconciler.find(since_last=False)]

    def kept(self) -> int:
        return int(self.fixtures.one("select count(*) from refunds.wrong_executions"))

    def looked_to(self, hours: int) -> None:
        """The last round ended so many hours from now."""
        self.fixtures.admin.execute(
            "insert into refunds.reconcile_cursors values (%s, clock_timestamp() + make_interval(hours => %s))",
            [self.fixtures.tenant_id, hours],
        )


@pytest.fixture
def desk(fixtures: Fixtures) -> Iterator[Desk]:
    with authority_on_loopback(fixtures.url, ReloadablePolicies(policies_dir())) as url:
        made = Desk(fixtures, url)
        yield made
        made.owner.close()
        made.client.close()
        made.pool.close()


def without(finding: str, statement: str) -> str:
    """The same statement with one of its checks never true."""
    start = statement.index(f"  ('{finding}', ")
    end = min(place for mark in ("\n  ('", "\n) as f (") if (place := statement.find(mark, start)) > 0)
    comma = "," if statement[end:].startswith("\n  (") else ""
    return f"{statement[:start]}  ('{finding}', false){comma}{statement[end:]}"


@contextmanager
def taken_back(desk: Desk, statements: list[str]) -> Iterator[Callable[..., list[str]]]:
    """A fault in a transaction that never happens, and what a statement finds about entry "one" in it."""
    with psycopg.connect(desk.fixtures.url) as owner:
        for statement in statements:
            forge_with(owner, statement)

        def seen(statement: str, *, approved: bool = False) -> list[str]:
            value = f"'{uuid.uuid4()}'" if approved else "null"
            owner.execute(f"update refunds.ledger_entries set approval_id = {value}".encode())
            fields = {
                "tenant_id": desk.fixtures.tenant_id, "master": "small_refund.enabled", "overlap": 15, "since_last": False,
                "routes": json.dumps(desk.reconciler._expected()),
            }  # fmt: skip
            rows = owner.execute(statement.encode(), fields).fetchall()
            return [finding for _, entry, *_, finding in rows if entry == "one"]

        yield seen
        owner.rollback()


def test_every_kind_of_wrong_execution_is_found_and_by_its_own_check_alone(desk: Desk) -> None:
    desk.execute_flawlessly("one", "two")
    assert desk.found() == []
    for finding, statements in FAULTS.items():
        with taken_back(desk, statements) as seen:
            assert finding in seen(reconcile.FIND), finding
            assert finding not in seen(without(finding, reconcile.FIND)), f"{finding} without its check"
            assert (finding in seen(reconcile.FIND, approved=True)) is (finding not in EXCUSED), f"{finding}, approved"
    assert desk.found() == []
    assert all(f"('{finding}', " in reconcile.FIND for finding in FAULTS) and reconcile.FIND.count("\n  ('") == len(
        FAULTS
    )


def test_an_account_that_is_blacklisted_without_its_source_is_found_under_its_name_with_it(desk: Desk) -> None:
    desk.execute_flawlessly("one")
    statements = [
        "update refunds.ledger_entries set source = 'shop', account_ref = 'shop:acct-one' where ledger_entry_id = 'one'",
        "insert into refunds.blacklist (tenant_id, channel, account_ref, since) select tenant_id, 'private', 'acct-one',"
        " now() - interval '1 hour' from refunds.defaults",
    ]
    with taken_back(desk, statements) as seen:
        assert "blacklisted" in seen(reconcile.FIND)
    with taken_back(desk, statements[:1]) as seen:
        assert "blacklisted" not in seen(reconcile.FIND)


def test_a_complaint_that_came_after_the_refund_was_looked_at_is_no_finding(desk: Desk) -> None:
    desk.execute_flawlessly("one")
    desk.fixtures.admin.execute(
        "insert into refunds.order_flags (tenant_id, channel, order_ref, flag) values (%s, 'private', 'one', 'open_complaint')",
        [desk.fixtures.tenant_id],
    )
    assert desk.found() == []


def test_a_complaint_that_had_ended_before_is_no_finding_however_often_its_end_is_said(desk: Desk) -> None:
    complaint = {"channel": "private", "order_ref": "one", "flag": "open_complaint"}
    desk.ledger.flag_orders([{**complaint, "closed": False}])
    desk.ledger.flag_orders([{**complaint, "closed": True}])
    desk.fixtures.admin.execute(
        "update refunds.order_flags set since = since - interval '1 hour', closed_at = closed_at - interval '30 minutes'"
    )
    desk.execute_flawlessly("one")
    desk.ledger.flag_orders([{**complaint, "closed": True}])
    assert desk.found() == []


CLAIMED_AGAIN = [
    "delete from refunds.confirmations where ledger_entry_id = 'one'",
    "update refunds.executions set claim_epoch = 2 where ledger_entry_id = 'one'",
    "update refunds.ledger_entries set claim_epoch = 2 where ledger_entry_id = 'one'",
]
LATER_CLAIM = """insert into refunds.ledger_events (tenant_id, ledger_entry_id, from_status, event, to_status, claim_epoch)
  select tenant_id, 'one', %s, %s, 'GUARDING', 2 from refunds.defaults"""


def test_a_missing_card_is_excused_only_where_the_refund_was_begun_by_an_earlier_claim(desk: Desk) -> None:
    """Its route may ask customers only since then, and what may have been paid is not asked about."""
    desk.execute_flawlessly("one")
    begun = LATER_CLAIM.replace("%s", "'ALLOWED'", 1).replace("%s", "'reclaimed'")
    put_back = LATER_CLAIM.replace("%s", "'NEW'", 1).replace("%s", "'claimed'")
    never_allowed = "delete from refunds.ledger_events where ledger_entry_id = 'one' and event = 'allowed'"
    for also, is_found in (([begun], False), ([put_back], True), ([begun, never_allowed], True), ([], True)):
        with taken_back(desk, [*CLAIMED_AGAIN, *also]) as seen:
            assert ("not_confirmed" in seen(reconcile.FIND)) is is_found, also
    with taken_back(desk, CLAIMED_AGAIN[:1]) as seen:
        assert "not_confirmed" in seen(reconcile.FIND), "in its first claim"


def _looped(desk: Desk) -> Any:
    agent = make_agent(desk.settings, desk.ledger, desk.client, failpoints=Failpoints())
    return looping(agent)


def test_a_forged_execution_switches_its_scenario_off_within_a_round_and_is_said_once(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reconcile, "EVERY_SECONDS", 0.1)
    desk.turn_on()
    desk.execute_flawlessly("one", "two")
    with _looped(desk):
        wait_until(lambda: desk.fixtures.one("select count(*) from refunds.reconcile_cursors"))
        assert desk.is_on() and desk.kept() == 0
        desk.execute_flawlessly("three")
        desk.forge("update refunds.orders set paid_minor = 8999 where order_ref = 'three'")
        wait_until(lambda: not desk.is_on(), seconds=3)
        wait_until(lambda: desk.kept() == 1)
    assert len([line for line in caplog.messages if "three" in line and "over a tenth" in line]) == 1
    assert desk.reconciler.look() == []
    assert "wrong_execution_found" in desk.fixtures.broken_invariants()
    reason = desk.fixtures.one("select reason from sentinel.switches where name = %s", SWITCH)
    assert "three" in reason and "over a tenth" in reason


def test_the_mutant_that_does_not_look_at_what_was_paid_leaves_the_switch_on(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile, "FIND", without("over_a_tenth", reconcile.FIND))
    desk.turn_on()
    desk.execute_flawlessly("one")
    desk.forge("update refunds.orders set paid_minor = 8999 where order_ref = 'one'")
    assert desk.reconciler.look() == [] and desk.is_on()


def test_a_finding_that_nobody_could_be_told_of_is_told_later(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.turn_on()
    desk.execute_flawlessly("one")
    desk.forge("update refunds.executions set system = 'coupon' where ledger_entry_id = 'one'")
    with Client("http://127.0.0.1:1", "key", agent_id="a", timeout_seconds=0.2, retries=0) as nobody:
        deaf = Reconciler(desk.pool, desk.fixtures.tenant_id, nobody, desk.reconciler._routes, policies_dir())
        assert [one.finding for one in deaf.look()] == ["other_system"]
    assert desk.kept() == 0 and desk.is_on()
    assert [one.finding for one in desk.reconciler.look()] == ["other_system"]
    assert desk.kept() == 1 and not desk.is_on()


def test_an_execution_after_the_clock_was_set_back_is_looked_at(desk: Desk) -> None:
    """As after a failover to a server whose clock is right. The finding: nothing was looked at until the clock had caught up."""
    desk.turn_on()
    desk.looked_to(1)
    desk.execute_flawlessly("one")
    desk.forge("update refunds.executions set system = 'coupon' where ledger_entry_id = 'one'")
    assert [one.finding for one in desk.reconciler.look()] == ["other_system"]
    assert desk.kept() == 1 and not desk.is_on()
    assert desk.fixtures.one("select looked_to <= clock_timestamp() from refunds.reconcile_cursors")


def test_a_round_that_has_hours_to_look_at_may_take_longer_than_a_statement(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A switch could not be turned off for hours. The finding: no round ended any more, and no wrong execution was found."""
    desk.turn_on()
    desk.looked_to(-5)
    desk.execute_flawlessly("one")
    desk.forge("update refunds.orders set paid_minor = 8999 where order_ref = 'one'")
    short = int(300 * overload())
    monkeypatch.setattr(reconcile, "FIND", reconcile.FIND.replace("from seen s", SLOW.format(seconds=short / 500)))
    monkeypatch.setattr(database, "STATEMENT_TIMEOUT_MS", short)
    with closing(Pool(with_role(desk.fixtures.url, WORKER), size=2)) as pool:
        of_loop = Reconciler(pool, desk.fixtures.tenant_id, desk.client, desk.reconciler._routes, policies_dir())
        assert [one.finding for one in of_loop.look()] == ["over_a_tenth"]
        assert desk.kept() == 1 and not desk.is_on()
        desk.execute_flawlessly("two")
        with pytest.raises(LedgerUnavailable):  # a round that follows another has the time of a statement
            of_loop.look()


def test_a_finding_whose_switch_is_not_declared_is_recorded_once_and_holds_up_no_other(
    desk: Desk, tmp_path: Path
) -> None:
    """An undeclared switch is off, and the authority refuses to turn it off at every round."""
    text = (policies_dir() / "routes.yaml").read_text()
    (tmp_path / "routes.yaml").write_text(text.replace(f"switch: {SWITCH}", "switch: small_refund.taken_out"))
    routes = Routes.load(tmp_path / "routes.yaml", switches=None, systems=system_names())
    reconciler = Reconciler(desk.pool, desk.fixtures.tenant_id, desk.client, routes, policies_dir())
    desk.execute_flawlessly("one")
    desk.forge("update refunds.executions set system = 'coupon' where ledger_entry_id = 'one'")
    assert [one.switch for one in reconciler.look()] == ["small_refund.taken_out"]
    assert desk.kept() == 1 and desk.fixtures.one("select count(*) from refunds.reconcile_cursors") == 1
    assert reconciler.look() == []


def for_commands(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment in which `worker` acts on the desk."""
    for name, value in {"WORKER_DATABASE_URL": desk.fixtures.url, "SENTINEL_URL": desk.settings.authority_url,
                        "SENTINEL_REFUND_AGENT_API_KEY": desk.fixtures.key, "SENTINEL_TENANT_ID": str(desk.fixtures.tenant_id)}.items():  # fmt: skip
        monkeypatch.setenv(name, value)


def test_worker_reconcile_names_what_is_wrong_and_ends_with_1(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    for_commands(desk, monkeypatch)
    desk.execute_flawlessly("one")
    assert CliRunner().invoke(worker_command, ["reconcile"]).exit_code == 0
    # Where that took long the next look would begin after the execution.
    desk.forge("update refunds.reconcile_cursors set looked_to = looked_to - interval '5 minutes'")
    desk.forge("update refunds.orders set paid_minor = 8999 where order_ref = 'one'")
    for is_new in (True, False):
        ran = CliRunner().invoke(worker_command, ["reconcile", "--json"])
        wrong = json.loads(ran.stdout)["wrong"]
        assert ran.exit_code == 1 and [(one["finding"], one["new"]) for one in wrong] == [("over_a_tenth", is_new)]


def test_worker_reconcile_lists_the_orders_whose_budget_a_person_must_look_at(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for_commands(desk, monkeypatch)
    run = CliRunner().invoke
    desk.execute_flawlessly("one", "two", "three", "four")
    assert json.loads(run(worker_command, ["reconcile", "--json"]).stdout)["orders"] == []
    desk.forge("update refunds.order_budgets set handled_minor = 9900, beyond_minor = 800 where order_ref = 'one'")
    desk.forge("update refunds.order_budgets set executed_minor = executed_minor - 1 where order_ref = 'two'")
    desk.forge(
        "insert into refunds.ledger_entries (tenant_id, ledger_entry_id, refund_id, amount_minor, currency, channel, scenario, order_ref, status,"
        f" reason_code, budget_part) values ('{desk.fixtures.tenant_id}', 'dollars', 'dollars', 5, 'USD', 'private', 'fee', 'three', 'DENIED',"
        " 'handled_by_person', 'handled')"
    )
    desk.forge("update refunds.order_budgets set uncounted_entries = 1 where order_ref in ('three', 'four')")
    ran = run(worker_command, ["reconcile", "--json"])
    assert ran.exit_code == 1
    found = json.loads(ran.stdout)["orders"]
    assert [(one["order_ref"], one["finding"], one["handled_minor"], one["beyond_minor"]) for one in found] == [
        ("four", "sums_differ", 0, 0), ("one", "beyond_paid", 9900, 800), ("three", "other_currency", 0, 0), ("two", "sums_differ", 0, 0),
    ]  # fmt: skip
    plain = run(worker_command, ["reconcile"])
    assert plain.exit_code == 1 and "\n4 orders whose budget a person must check." in plain.output
    monkeypatch.setattr("worker.refunds.ledger_commands.MOST_BUDGETS", 4)
    cut_off = run(worker_command, ["reconcile"])
    assert "\nAt least 4 orders whose budget a person must check." in cut_off.output, "as many as are read"
    found = found[1:2]
    executed = found[0]["executed_minor"]
    assert (
        f"wrong: order private one: beyond paid: paid {found[0]['paid_minor']}, reserved 0, executed {executed}, handled 9900,"
        in plain.output
    )
    assert "in doubt 0, beyond 800, in minor units of EUR; refunds in another currency: 0" in plain.output


FOUND_AT_STRIPE = """
insert into refunds.settlement_findings (tenant_id, system, system_refund, finding, payment_ref, amount_minor, currency)
values (%s, 'stripe', 're_1', 'refunded_elsewhere', 'pi_1', 100, 'USD')
"""
SLOW_FOUND = ") found cross join (select pg_sleep({seconds})) slow\n"
SLOW = "from seen s cross join (select pg_sleep({seconds})) slow"


@pytest.mark.parametrize(
    ("allowed", "status", "wrong"), [("5min", 1, ["over_a_tenth"]), ("", 1, None)], ids=["minutes", "no longer"]
)  # fmt: skip
def test_worker_reconcile_looks_longer_than_a_statement_and_each_look_is_told(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, allowed: str, status: int, wrong: list[str] | None
) -> None:
    for_commands(desk, monkeypatch)
    desk.execute_flawlessly("one")
    desk.forge("update refunds.orders set paid_minor = 8999 where order_ref = 'one'")
    desk.fixtures.admin.execute(FOUND_AT_STRIPE, [desk.fixtures.tenant_id])
    short = int(300 * overload())
    monkeypatch.setattr(reconcile, "FIND", reconcile.FIND.replace("from seen s", SLOW.format(seconds=short / 500)))
    if allowed:
        slow_found = SLOW_FOUND.format(seconds=short / 500)
        monkeypatch.setattr(stripe_events, "_FINDINGS", stripe_events._FINDINGS.replace(") found\n", slow_found))
    monkeypatch.setattr(database, "STATEMENT_TIMEOUT_MS", short)
    monkeypatch.setattr(
        database, "LONG_STATEMENT_TIMEOUT", f"set local statement_timeout = '{allowed or f'{short}ms'}'"
    )
    ran = CliRunner().invoke(worker_command, ["reconcile", "--json"])
    told = json.loads(ran.stdout)
    assert (ran.exit_code, [one["system_refund"] for one in told["settlement"]], told["orders"]) == (
        status,
        ["re_1"],
        [],
    )
    assert (told["wrong"] and [one["finding"] for one in told["wrong"]]) == wrong
    assert ("error: executions could not be checked: the database took too long" in ran.stderr) is (wrong is None)


def test_a_ledger_that_cannot_be_looked_at_is_no_ledger_without_faults(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for_commands(desk, monkeypatch)
    desk.execute_flawlessly("one")
    monkeypatch.setattr(reconcile, "FIND", reconcile.FIND.replace("from seen s", SLOW.format(seconds=0.5)))
    monkeypatch.setattr(database, "LONG_STATEMENT_TIMEOUT", "set local statement_timeout = '100ms'")
    ran = CliRunner().invoke(worker_command, ["reconcile"])
    assert ran.exit_code == 3 and "Every execution is correct." not in ran.output


def test_no_program_can_take_a_finding_back(desk: Desk) -> None:
    desk.execute_flawlessly("one")
    desk.forge("update refunds.executions set system = 'coupon' where ledger_entry_id = 'one'")
    desk.reconciler.look()
    for role in ("sentinel_worker", "sentinel_console", "sentinel_authority"):
        for statement in ("delete from refunds.wrong_executions", "update refunds.wrong_executions set finding = 'x'"):
            with desk.fixtures.as_role(role) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement.encode())


def test_caps_are_those_of_the_policy_file() -> None:
    caps = caps_of(policies_dir())
    assert caps["fee"] == {"USD": 1500, "EUR": 1500, "GBP": 1500}
    assert set(caps) == {"fee", "price_diff", "compensation", "defect", "quality"}


def test_a_finding_reads_as_a_sentence() -> None:
    found = Discrepancy(uuid.uuid4(), "lge-1", "private", "fee", SWITCH, "over_a_tenth")
    assert str(found) == "lge-1 (private/fee): over a tenth"


@pytest.mark.parametrize("edit", ["lowered", "cut off"])
def test_a_cap_that_is_edited_makes_no_mistake_of_what_was_paid_before_it_is_in_force(
    desk: Desk, tmp_path: Path, edit: str
) -> None:
    """The finding: the switch of a scenario went off, and its refunds were to be got back, because a file was being edited."""
    policies = copytree(policies_dir(), tmp_path / "policies")
    reconciler = Reconciler(desk.pool, desk.fixtures.tenant_id, desk.client, desk.reconciler._routes, policies)
    assert reconciler.look() == []
    text = (policies / "small_refund.yaml").read_text()
    caps = next(line for line in text.splitlines() if line.strip().startswith("cap_fee:"))
    (policies / "small_refund.yaml").write_text(text.replace(caps, "  cap_fee: {USD: \"1.00\"}") if edit == "lowered" else text.replace(caps, "  cap_fee: {USD: ["))  # fmt: skip
    desk.execute_flawlessly("one")
    assert reconciler.look() == []
    fresh = Reconciler(desk.pool, desk.fixtures.tenant_id, desk.client, desk.reconciler._routes, policies)
    assert {found.finding for found in fresh.find(since_last=False)} == {"over_cap"}, "who read nothing else goes by it"
