"""Real orders while everything dies: worker, intake, authority and PostgreSQL are killed with -9 at random moments.

Several partial refunds of each order, three sources with the same order ids, refunds that people approve, reject or handle
elsewhere, refunds whose settlement is refused, lost or late and that people resolve either way, refunds that analysts file.
At the end our own sums over every order, from what was executed, what people said and what the settlement system paid.
"""

from __future__ import annotations

import os
import random
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import ceil
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ops_console.resolve_order import resolve_order
from sentinel.authority.approvals import resolve_approval
from sentinel.authority.halts import lift_halt, list_halts
from sentinel.authority.in_doubt import list_in_doubt, resolve_in_doubt
from sentinel.core.errors import SentinelError, StillActing
from sentinel.store.embedded import Embedded
from tests.mutants import cut, without_constraint
from tests.support.busy import overload
from tests.support.fixtures import Fixtures, make_fixtures
from tests.support.harness import actor
from tests.support.ledger_fixtures import CLEAN, LedgerFixtures, new_row
from tests.support.order_fixtures import order_body
from tests.support.roomy import roomy_policies
from tests.support.served_programs import SCALE, eventually, run_warm_command
from tests.support.under_fire import PROGRAMS, Busy, LastingReader, Place, Till, fetch, open_place, outside_policies
from worker.refunds.rows import NewRow, OrderFacts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300 * max(1, SCALE))]
IDS, SECONDS, CALM_SECONDS = max(4, round(10 * SCALE)), 14 * SCALE, 60.0
SOURCES = {"": (80_00, 400_00), "shop-b": (5_00, 90_00)}
OUTSIDE, IN_LEDGER = "settled outside", "settled in the ledger"
FATES = ("refuses", "refuses", "lies", "loses", "late", *[None] * 9)

SUMS = """
select r.source, r.order_ref, r.paid_minor, count(e.*)::int as refunds,
  coalesce(sum(e.executed), 0)::bigint as executed, coalesce(sum(e.handled), 0)::bigint as handled,
  coalesce(sum(e.in_doubt), 0)::bigint as in_doubt
from refunds.orders r
left join (
  select l.tenant_id, l.channel, l.source, l.order_ref, x.executed,
    case when a.handled then l.amount_minor end as handled,
    case when x.executed is null and s.doubted then l.amount_minor end as in_doubt
  from refunds.ledger_entries l
  left join lateral (
    select sum(amount_minor) as executed from refunds.executions x
    where x.tenant_id = l.tenant_id and x.ledger_entry_id = l.ledger_entry_id) x on true
  left join lateral (
    select bool_or(a.handled_reference is not null) as handled
    from sentinel.operations o join sentinel.approvals a using (tenant_id, operation_id)
    where o.tenant_id = l.tenant_id and o.idempotency_key = l.idempotency_key) a on true
  left join lateral (
    select bool_or(s.started_at is not null and s.not_executed_at is null) as doubted
    from sentinel.operations o join sentinel.operation_states s using (tenant_id, operation_id)
    where o.tenant_id = l.tenant_id and o.idempotency_key = l.idempotency_key) s on true
) e on (e.tenant_id, e.channel, e.source, e.order_ref) = (r.tenant_id, r.channel, r.source, r.order_ref)
where r.tenant_id = %(tenant_id)s group by 1, 2, 3 order by 1, 2
"""
"""Per order what was paid and where it went: executions, people's decisions and the authority's starts. No view, no budget row,
no column that the budget's triggers write. What a person said was executed, and was not by us, counts as in doubt does."""

COUNTED = """
select l.ledger_entry_id, l.source, l.order_ref from refunds.ledger_entries l
where l.tenant_id = %(tenant_id)s and (exists (select from refunds.executions x where x.tenant_id = l.tenant_id
  and x.ledger_entry_id = l.ledger_entry_id) or exists (
  select from sentinel.operations o join sentinel.operation_states s using (tenant_id, operation_id)
  where o.tenant_id = l.tenant_id and o.idempotency_key = l.idempotency_key and s.started_at is not null
    and s.not_executed_at is null))
"""
EXECUTED = "select ledger_entry_id, refund_id from refunds.executions where tenant_id = %(tenant_id)s"
STANDING = """
select concat_ws(' ', status, reason_code), count(*)::int from refunds.ledger_entries where tenant_id = %(tenant_id)s
group by 1 order by 1
"""
REVIEWED = "select status, count(*)::int from orders.reviews where tenant_id = %(tenant_id)s group by 1"
DOUBTS = """
select count(*) filter (where s.not_executed_at is not null)::int,
  count(*) filter (where s.not_executed_at is null and l.status = 'ERROR' and s.started_at is not null and s.outcome = 'success')::int,
  count(*) filter (where s.not_executed_at is null and l.status = 'ERROR' and s.started_at is not null and s.outcome is distinct from 'success')::int
from sentinel.operation_states s join sentinel.operations o using (tenant_id, operation_id)
join refunds.ledger_entries l on (l.tenant_id, l.idempotency_key) = (o.tenant_id, o.idempotency_key)
where s.tenant_id = %(tenant_id)s
"""
"""How many were resolved as not executed, resolved as executed (and not by us), and are open."""
UNDER_WAY = """
select ledger_entry_id from refunds.ledger_entries
where tenant_id = %(tenant_id)s and status in ('NEW', 'GUARDING', 'ALLOWED')
"""
UNSETTLED = """
select e.ledger_entry_id, e.status, e.last_error from refunds.ledger_entries e
left join sentinel.approvals a on a.tenant_id = e.tenant_id and a.approval_id = e.approval_id
where e.tenant_id = %(tenant_id)s and (e.status not in ('EXECUTED', 'DENIED', 'ERROR', 'APPROVAL_REQUIRED')
  or e.status = 'APPROVAL_REQUIRED' and a.status is distinct from 'pending')
union all
select ledger_entry_id, 'report', last_error from refunds.outbox where tenant_id = %(tenant_id)s and acknowledged_at is null
"""
"""What neither ended nor waits for a person's decision: rows on their way, decisions nobody has followed, reports not received."""
ROWS = """
select l.ledger_entry_id, l.status, o.operation_id from refunds.ledger_entries l
join sentinel.operations o on (o.tenant_id, o.idempotency_key) = (l.tenant_id, l.idempotency_key)
where l.tenant_id = %(tenant_id)s
"""
"""Entries and their operations."""
HELD_QUESTIONS = """
select a.approval_id, a.digest from sentinel.approvals a
join refunds.ledger_entries e on e.tenant_id = a.tenant_id and e.approval_id = a.approval_id
where a.tenant_id = %(tenant_id)s and a.status = 'pending' and e.budget_part = 'reserved' and e.order_ref <> 'o-3' order by random() limit 4
"""
"""What a person is asked and the order's budget holds the amount for. Nobody ever answers about one order: it waits."""
OTHER_QUESTIONS = """
select a.approval_id, a.digest from sentinel.approvals a
join refunds.ledger_entries e on e.tenant_id = a.tenant_id and e.approval_id = a.approval_id
where a.tenant_id = %(tenant_id)s and a.status = 'pending' and e.budget_part is null and e.order_ref <> 'o-3' order by random() limit 4
"""
QUEUED = """
select r.source, r.order_id, a.digest from orders.reviews r join sentinel.approvals a using (tenant_id, approval_id)
where r.tenant_id = %(tenant_id)s and r.status = 'QUEUED' and r.resolution is null limit 4
"""


@dataclass
class Entered:
    """The shop's orders and their refunds, in statements of up to three, and what the till does with each."""

    orders: list[OrderFacts]
    statements: list[list[NewRow]]
    fates: dict[str, str]

    @classmethod
    def roll(cls, dice: random.Random) -> Entered:
        """Orders of two sources under the same ids; the refunds of each together ask for about twice what was paid."""
        made = cls([], [], {})
        for number in range(IDS):
            for source, (least, most) in SOURCES.items():
                paid = dice.randint(least, most)
                yesterday = datetime.now(UTC) - timedelta(days=1)
                made.orders.append(OrderFacts(f"o-{number}", yesterday, paid, "USD", source=source))
                made._refunds(dice, f"o-{number}", source, paid)
        dice.shuffle(made.statements)
        return made

    def _refunds(self, dice: random.Random, order: str, source: str, paid: int) -> None:
        rows = []
        for part in range(dice.randint(4, 7)):
            name = f"{source or 'plain'}.{order}.{part}"
            value = max(1, paid * dice.randint(15, 65) // 100)
            rows.append(new_row(name, value, order_ref=order, source=source, risk=CLEAN))
            if (fate := dice.choice(FATES)) is not None:
                self.fates[name] = fate
        while rows:
            size = dice.randint(1, 3)
            self.statements.append(rows[:size])
            rows = rows[size:]

    @property
    def refunds(self) -> int:
        """How many there are."""
        return sum(map(len, self.statements))


@dataclass
class People:
    """Who works at the shop meanwhile. Each has dice of their own."""

    fixtures: Fixtures
    desk: LedgerFixtures
    reader: LastingReader
    place: Place
    till: Till
    entered: Entered
    seed: int
    seconds: float

    def __post_init__(self) -> None:
        self._dice = {name: random.Random(f"{self.seed} {name}") for name in ("answer", "doubt", "buy")}
        self._verdicts = deque(("handled", "approve", "approve", "reject"))
        self._began = time.monotonic()
        self._next = 0

    @property
    def all_entered(self) -> bool:
        """Whether every statement is in."""
        return self._next == len(self.entered.statements)

    def enter(self) -> None:
        """Enter what is due; a second entering of what was entered changes nothing."""
        share = min(1.0, (time.monotonic() - self._began) / (0.75 * self.seconds))
        while self._next < ceil(share * len(self.entered.statements)):
            self.desk.ledger.add_rows(self.entered.statements[self._next])
            self._next += 1

    def buy(self) -> None:
        """Customers order at a third source, whose ids are the same, and a complaint now and then stands against an order."""
        dice = self._dice["buy"]
        number, lane = dice.randrange(IDS), dice.choice(("low", "medium", "medium"))
        amount = {"value": f"{dice.randint(10, 60)}.50", "currency": "USD"}
        self.place.intake.post(order_body(f"o-{number}", lane, amount=amount), timeout=3)
        flag = {"channel": "retail", "order_ref": f"o-{dice.randrange(IDS)}", "flag": "open_complaint"}
        self.desk.ledger.flag_orders([{**flag, "source": dice.choice(list(SOURCES)), "closed": dice.random() < 0.5}])

    def answer(self) -> None:
        """Approvers vote and analysts decide; handled elsewhere is only what the order's budget holds the amount for."""
        dice, pool, person = self._dice["answer"], self.fixtures.console_pool, actor(self.fixtures, "approver")
        for approval, digest in self._all(HELD_QUESTIONS):
            verdict = self._verdicts[0]
            elsewhere = {"reference": "CASE-1"} if verdict == "handled" else {}
            try:
                resolve_approval(pool, person, approval, verdict=verdict, reason="looked", digest=digest, **elsewhere)
            except SentinelError:  # for another question, after the one that would have come next
                self._verdicts.insert(1, self._verdicts.popleft())
            else:
                self._verdicts.rotate(-1)
        for source, order_id, digest in self._all(QUEUED):
            decision = dice.choice(("refund", "refund", "fulfil", "hold"))
            with suppress(SentinelError):
                resolve_order(pool, person, source, order_id, decision=decision, reason="asked for it", digest=digest)
        for approval, digest in self._all(OTHER_QUESTIONS):
            verdict = dice.choice(("approve", "reject"))
            with suppress(SentinelError):
                resolve_approval(pool, person, approval, verdict=verdict, reason="no room", digest=digest)

    def resolve(self) -> None:
        """Say what became of doubts. What the till has paid was executed; else a person may have paid it by hand, once its row has ended.

        A success that is reported after "not executed" was said halts the agent, until a person has looked into it.
        """
        dice, pool, person = self._dice["doubt"], self.fixtures.console_pool, actor(self.fixtures, "admin")
        for halt in list_halts(pool, self.fixtures.tenant_id):
            lift_halt(pool, person, halt.halt_id, reason="looked into it")
        rows = self._all(ROWS)
        ended = {name for name, status, _ in rows if status == "ERROR"}
        entries = {operation: name for name, _, operation in rows}
        for doubt in list_in_doubt(pool, self.fixtures.tenant_id):
            name = entries.get(doubt.operation_id)
            if name is None or doubt.act_until is not None or dice.random() < 0.3:
                continue
            paid = name in {entry for entry, _ in self.till.paid()}
            executed = paid or (name in ended and dice.random() < 0.3)
            with suppress(StillActing):
                resolve_in_doubt(
                    pool, person, doubt.operation_id, executed=executed, evidence="asked the till", in_doubt_since=doubt.in_doubt_since
                )  # fmt: skip

    def _all(self, query: str) -> list[Any]:
        return self.reader.fetch(query)


@pytest.fixture(params=[OUTSIDE])
def policies(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return outside_policies(tmp_path) if request.param == OUTSIDE else roomy_policies(tmp_path)


@pytest.fixture
def shop(doomed_url: str, policies: Path) -> Iterator[Fixtures]:
    """A tenant on a server that may be killed."""
    fixtures = make_fixtures(doomed_url, policies=policies)
    yield fixtures
    fixtures.close()


def fire(
    shop: Fixtures, victim: Embedded, policies: Path, folder: Path, *, seconds: float = SECONDS, kills: bool = True
) -> tuple[Till, list[Any]]:
    """Let everything happen until nothing is under way, where nothing is killed until an order is overpaid; prints what happened.

    Returns the till and the sums of all orders.
    """
    seed = int(os.environ.get("SENTINEL_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
    dice = random.Random(seed)
    entered = Entered.roll(dice)
    print(f"seed={seed} {len(entered.orders)} orders of two sources, {entered.refunds} refunds, {seconds:g} s")
    with ExitStack() as stack:
        till = stack.enter_context(Till(entered.fates).running())
        desk = LedgerFixtures(shop.url, shop.tenant_id)
        stack.callback(desk.close)
        desk.ledger.add_orders(entered.orders)
        reader = LastingReader(shop.url, shop.tenant_id)
        stack.callback(reader.close)
        place = stack.enter_context(open_place(shop, victim, till, policies, folder))
        people = People(shop, desk, reader, place, till, entered, seed, seconds)
        comers = [Busy(people.enter), Busy(people.buy)]
        staff = [Busy(people.answer, 0.3), Busy(people.resolve, 0.5)]
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            time.sleep(dice.uniform(0.1, 1.2))
            if kills:
                place.kill(dice.choice(PROGRAMS), dice)
            elif overpaid_for_good(reader.fetch(SUMS)):
                for busy in comers + staff:
                    busy.stop()
                return till, _told(shop, place)
            place.mend()
        assert eventually(lambda: people.all_entered, within=10)
        for busy in comers:
            busy.stop()

        def left(query: str) -> list[Any]:
            place.mend()
            return reader.fetch(query)

        # Each decision brings a row under way again, and people go on answering: on a slow machine there may be no such moment.
        eventually(lambda: not left(UNDER_WAY), within=CALM_SECONDS / 3, every=0.3)
        staff[0].stop()
        eventually(lambda: not left(UNSETTLED), within=CALM_SECONDS, every=0.3)
        staff[1].stop()
        assert left(UNSETTLED) == [], "neither ended nor waiting for a person"
    return till, _told(shop, place)


def _told(shop: Fixtures, place: Place) -> list[Any]:
    sums = fetch(shop.url, SUMS, shop.tenant_id)
    refunds, executed, handled, in_doubt = (sum(row[column] for row in sums) for column in range(3, 7))
    over = sum(max(0, row[4] + row[5] + row[6] - row[2]) for row in sums)
    (doubts,) = fetch(shop.url, DOUBTS, shop.tenant_id)
    print(f"N={len(sums)} orders, {refunds} refunds: {dict(fetch(shop.url, STANDING, shop.tenant_id))}")
    print(f"reviews: {dict(fetch(shop.url, REVIEWED, shop.tenant_id))}")
    print(f"doubts: {doubts[0]} not executed, {doubts[1]} executed, {doubts[2]} open")
    print(
        f"killed {place.killed.total()}: {dict(place.killed)}; ended by itself and started again: {dict(place.ended)}"
    )
    print(
        f"paid {sum(row[2] for row in sums)}, executed {executed}, handled {handled}, in doubt {in_doubt}; minor units over: {over}"
    )
    return sums


def overpaid(sums: list[Any]) -> list[Any]:
    """Orders for which more went out, or may have, than was paid."""
    return [row for row in sums if row[4] + row[5] + row[6] > row[2]]


def overpaid_for_good(sums: list[Any]) -> list[Any]:
    """Those of them that nothing to come changes: what was executed or handled stays so, a doubt may be resolved."""
    return [row for row in sums if row[4] + row[5] > row[2]]


def _compare_with_the_till(shop: Fixtures, till: Till, executed: set[str], *, outside: bool) -> None:
    """The same from outside: what the settlement system really paid, each once, is executed here or counted as in doubt."""
    references = defaultdict(set)
    for entry, reference in till.paid():
        references[entry].add(reference)
    assert [entry for entry, those in references.items() if len(those) > 1] == [], "paid twice under two references"
    counted = {entry for entry, _, _ in fetch(shop.url, COUNTED, shop.tenant_id)}
    assert set(references) <= counted, "paid, and no order counts it"
    if outside or references:
        assert executed <= set(references), "executed and not paid"


@pytest.mark.parametrize("policies", [OUTSIDE, IN_LEDGER], indirect=True)
def test_no_order_is_paid_back_more_than_it_cost_whatever_dies(
    shop: Fixtures, victim: Embedded, policies: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    till, sums = fire(shop, victim, policies, tmp_path)
    assert overpaid(sums) == []
    assert sum(row[4] for row in sums) > 0 and sum(row[5] for row in sums) > 0, "nothing was paid, or handled"
    executed = fetch(shop.url, EXECUTED, shop.tenant_id)
    assert len({refund for _, refund in executed}) == len(executed) == len({entry for entry, _ in executed})
    outside = request.node.callspec.params["policies"] == OUTSIDE
    _compare_with_the_till(shop, till, {entry for entry, _ in executed}, outside=outside)
    shop.admin.close()
    shop.admin = psycopg.connect(shop.url, autocommit=True)
    assert shop.broken_invariants() == [], run_warm_command("doctor", SENTINEL_DATABASE_URL=shop.url).stderr
    doctor = run_warm_command("doctor", SENTINEL_DATABASE_URL=shop.url)
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr


def test_mutant_that_looks_and_then_takes_is_caught(
    shop: Fixtures, victim: Embedded, policies: Path, tmp_path: Path
) -> None:
    """The same day at the same shop where nothing dies, but whether there is room is only looked at, early."""
    cut(shop, "refunds.changes_within_budget", "one.amount_minor <= left_minor", "true")
    without_constraint(shop, "refunds.order_budgets", "order_budget_not_exceeded")
    # Longer on a busy machine: as many refunds meet at an order in it.
    _, sums = fire(shop, victim, policies, tmp_path, seconds=min(6 * overload(), 40), kills=False)
    assert overpaid(sums)
