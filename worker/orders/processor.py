"""Processes orders in sets: take, score, guard and start in one call, then fulfil, queue or hold, and report.

The orders of a set go through the steps together, as far as shared statements and calls take them. An outside call
about one order (a look-up, a model, a shop) is made for that order alone; afterwards the order joins another set.

After a crash any process sends the authority the same request under the same start id, and looks the order up in the
shop before it asks the shop again. An order whose outcome is not certain is put off and retried later.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import structlog
from msgspec.structs import replace

from sentinel.client import GuardAnswer, KeyConflict, Rejected, Unreachable
from sentinel.core.errors import SentinelError, TryLater
from worker.failpoints import OrderFailpoint
from worker.orders import metrics
from worker.orders.lanes import LaneEvent
from worker.orders.order import ClaimedOrder, Lane, ReviewStatus
from worker.orders.responses import order_response
from worker.orders.shop import Attempts, EffectKind, look, perform
from worker.orders.silent_shops import SILENT, HeardShop
from worker.orders.store import DeliveredOrder, Row
from worker.orders.taking import ClaimLost, Decided, OrderRun, OrderTaking
from worker.orders.transitions import (
    BACKOFF,
    BACKOFF_IN_SILENCE,
    EXECUTED,
    NOT_EXECUTED,
    QUEUES,
    STARTED_ELSEWHERE,
    decided_work,
    event_of,
    held_alert,
    hold_row,
    is_executed,
    is_start_ruled_out,
    is_started,
    late_alert,
    question_refused_alert,
    row_of,
    settled_row,
    shipped_row,
    unseen_alert,
)
from worker.outbound.effects import EffectResult, NoAnswer, Settled
from worker.outbound.guard_answers import key_conflict_text

# The steps from asking the authority on.

log = structlog.get_logger("worker.orders")


@dataclass(slots=True, kw_only=True)
class OrderSteps(OrderTaking):
    """The later steps of a set: ask the authority, fulfil or hold, settle, report. Each has the contract of `OrderTaking`'s steps."""

    def ask(self, runs: list[OrderRun]) -> None:
        """Ask the authority, which starts what it permits, and record its answers with the resulting status.

        While a halt is in force, orders that were never asked about are put off: the authority would deny them for
        good, but a halt is temporary. They wait too while it is not known whether one is.
        """
        halted = self.authority.is_halted()
        if halted:
            new = [run for run in runs if run.work.status == ReviewStatus.SCORED]
            if isinstance(halted, (Unreachable, Rejected)):
                self._put_off_unanswered([(run, halted) for run in new])
            else:
                self._put_off([(run, HALTED) for run in new])
            runs = [run for run in runs if run.goes_on and run.work.status != ReviewStatus.SCORED]
            if not runs:
                return
        self._pass(OrderFailpoint.BEFORE_GUARD, runs)
        answers = self._answers(runs)
        self._pass(OrderFailpoint.AFTER_GUARD, runs)
        undecided: list[tuple[OrderRun, Row]] = []
        shipped: list[Decided] = []
        decided: list[Decided] = []
        for run, answer in answers:
            event = event_of(run.work, answer)
            if event is None:
                waits = answer.status == "pending"
                until = {"due_at": answer.expires_at if waits else None, "pause_seconds": 3600.0 if waits else 30.0}
                undecided.append((run, {"error": answer.reason_code, **until}))
                continue
            row, was = row_of(run.work, answer, event), run.work.status
            run.claimed = decided_work(run.work, answer, event, row)
            run.effect = EXECUTED if is_executed(answer) else None
            is_new = was == ReviewStatus.SCORED and event == LaneEvent.ALLOWED and run.effect is None
            ships = self.ships_here and is_new and not self._is_late(run)
            (shipped if ships else decided).append((run, row))
        self._put_off(undecided)
        self._decide([*self._ship(shipped), *decided])

    def _answers(self, runs: list[OrderRun]) -> list[tuple[OrderRun, GuardAnswer]]:
        """Return the authority's answers; an order without a usable one is put off, and no response to its sender is recorded."""
        for run in runs:
            run.asked_at = time.monotonic()
        found = list(zip(runs, self.authority.guard([run.work for run in runs]), strict=True))
        self._put_off_unanswered(
            [(run, answer) for run, answer in found if isinstance(answer, (Unreachable, Rejected))]
        )
        return [(run, answer) for run, answer in found if isinstance(answer, GuardAnswer)]

    def _put_off_unanswered(self, without: Sequence[tuple[OrderRun, Unreachable | Rejected]]) -> None:
        """Put off orders without a usable answer of the authority; no response to their senders is recorded."""
        for run, _ in self._record(
            self.store.put_off, [(run, _without_answer(run.work, error)) for run, error in without]
        ):
            metrics.NO_AUTHORITY.inc()
            run.fail(TryLater("no decision is possible now; send the order again later"))

    def _is_late(self, run: OrderRun) -> bool:
        """Whether the time to act on the start is over: a person may have resolved the order as not executed by now."""
        return time.monotonic() > run.asked_at + self.act_seconds

    def _ship(self, steps: list[Decided]) -> list[Decided]:
        """Record decision, fulfilment by the simulated shop and settlement in one commit.

        Returns the orders that were not recorded: their claim was lost, or the simulated shop has them otherwise.
        """
        self._pass(OrderFailpoint.BEFORE_SHOP, steps)
        ready = [(run, *shipped_row(run.work, row)) for run, row in steps]
        results = self.store.ship([(run.work, row) for run, row, _ in ready]) if ready else []
        shipped = [one for one, result in zip(ready, results, strict=True) if result is True]
        for place in (OrderFailpoint.AFTER_DECIDED, OrderFailpoint.AFTER_SHOP, OrderFailpoint.AFTER_SETTLED):
            self._pass(place, shipped)
        metrics.count_decisions((run.work.lane, LaneEvent.ALLOWED) for run, _, _ in shipped)
        metrics.SETTLED.labels(ReviewStatus.FULFILLED).inc(len(shipped))
        for run, _, response in shipped:
            run.response = response
            self.reports.soon(run.work, str(run.work.operation_id))
        for (run, _), result in zip(steps, results, strict=True):
            if isinstance(result, Exception):
                run.fail(result)
        return [step for step, result in zip(steps, results, strict=True) if result is False]

    def _decide(self, steps: list[Decided]) -> None:
        """Record the decisions. A started order has its fulfilment on record before the shop is asked; others get their response."""
        rows: list[tuple[OrderRun, Row]] = []
        for run, row in steps:
            if run.work.status != ReviewStatus.STARTED:
                held = {} if row["event"] in QUEUES else {"alert": held_alert(run.work, row["reason_code"])}
                row = {**row, **held, "answered": order_response(run.work).as_json()}
            rows.append((run, row))
        recorded = self._record(self.store.decide, rows)
        self._pass(OrderFailpoint.AFTER_DECIDED, recorded)
        metrics.count_decisions((run.work.lane, row["event"]) for run, row in recorded)
        for run, row in recorded:
            if run.work.status == ReviewStatus.STARTED:
                run.may_ask_shop = True
                continue
            run.response = order_response(run.work)
            if row["event"] not in QUEUES:
                run.outside_call = self._hold_now

    def confirm_started(self, runs: list[OrderRun]) -> None:
        """Ask the authority whether orders that an earlier run left STARTED still are; the shop is then looked at before it is asked."""
        for run, answer in self._answers(runs):
            work = run.work
            if is_executed(answer):
                run.may_ask_shop, run.effect = True, EXECUTED
            elif is_started(answer):
                run.may_ask_shop, run.tried = True, Attempts(max(1, work.tries or 0), work.seconds_since_try or 0.0)
            elif is_start_ruled_out(answer):
                run.outside_call = partial(self._look, how=answer.resolution or "started")
            elif self.store.refuse_start(work, answer.reason_code):
                # The authority has no start on record, so nothing was fulfilled: the order goes back to where the
                # authority is asked.
                status = ReviewStatus.DECIDED if work.lane == Lane.LOW else ReviewStatus.QUEUED
                run.claimed = replace(work, status=status)
            else:
                run.fail(ClaimLost())

    def fulfil(self, runs: list[OrderRun]) -> None:
        """Have the shop fulfil the started orders, each by an outside call of its own."""
        for run in runs:
            run.outside_call = self._execute

    def _execute(self, run: OrderRun) -> None:
        """Attempt the fulfilment in the shop."""
        self.failpoints.hit(OrderFailpoint.BEFORE_SHOP)
        if self._is_late(run):
            return self._put_off([(run, {"error": "the time to act on its start is over", "pause_seconds": 1.0})])
        work, tried = run.work, run.tried
        answer = self._perform(work, EffectKind.FULFIL, tried)
        self.failpoints.hit(OrderFailpoint.AFTER_SHOP)
        if not isinstance(answer, NoAnswer):
            run.effect = answer
            return None
        pause = max(self._shop_pause_seconds(work), self.under_way_seconds)
        # An attempt without a call leaves the number and time of the calls as they are.
        times, called = (work.attempts, False) if answer is SILENT else (tried.times, True)
        alert = late_alert(work, "fulfil", times, answer.detail)
        return self._put_off([(run, {"error": answer.detail, "pause_seconds": pause, "tried": called, "alert": alert})])

    def _perform(self, work: ClaimedOrder, kind: EffectKind, tried: Attempts) -> EffectResult:
        """Make the effect happen once, or return `SILENT` without a call."""
        assert work.operation_id is not None
        shop = self._shop_to_ask(work.source)
        if shop is None:
            return SILENT
        return perform(shop, work.review, kind, work.operation_id, tried, under_way_seconds=self.under_way_seconds)

    def _shop_to_ask(self, source: str) -> HeardShop | None:
        """The shop of this source, for every call to it; None while it is silent and its next call is not due."""
        return HeardShop(self.shop, source, self.silent_shops) if self.silent_shops.may_be_asked(source) else None

    def _shop_pause_seconds(self, work: ClaimedOrder) -> float:
        """The pause until the next attempt in the shop; a silent one is soon asked again, as only one order in ten seconds calls it."""
        is_silent = self.silent_shops.is_silent(work.source)
        backoff = BACKOFF_IN_SILENCE if is_silent else BACKOFF
        return backoff.pause_seconds(work.attempts, random.random())

    def _look(self, run: OrderRun, how: str) -> None:
        """Look up in the shop an order left STARTED that must not be fulfilled any more.

        If the shop had fulfilled it before, that is settled; if not, the order goes to a person.
        """
        assert run.work.operation_id is not None
        shop = self._shop_to_ask(run.work.source)
        found = look(shop, run.work.review, EffectKind.FULFIL, run.work.operation_id) if shop else SILENT
        run.may_ask_shop = True
        if isinstance(found, NoAnswer):
            alert = unseen_alert(run.work, found.detail)
            row: Row = {"error": found.detail, "pause_seconds": self._shop_pause_seconds(run.work), "alert": alert}
            return self._put_off([(run, row)])
        ruled_out = NOT_EXECUTED if how == "not_executed" else STARTED_ELSEWHERE
        run.effect = found if isinstance(found, Settled) else ruled_out
        return None

    def settle(self, runs: list[OrderRun]) -> None:
        """Record what the shop answered."""
        steps: list[tuple[OrderRun, Row]] = []
        for run in runs:
            assert run.effect is not None
            steps.append((run, settled_row(run.work, run.effect)))
        recorded = self._record(self.store.settle, steps)
        self._pass(OrderFailpoint.AFTER_SETTLED, recorded)
        for run, row in recorded:
            status = ReviewStatus.FULFILLED if row["done"] else ReviewStatus.SHOP_REFUSED
            metrics.SETTLED.labels(status).inc()
            run.response = order_response(run.work, status=status)
            if status is ReviewStatus.FULFILLED:
                # A refusal is not reported yet: a person may have the shop asked again. It is reported once nobody
                # retries it.
                self.reports.soon(run.work, row.get("reference"))

    def answer(self, runs: list[OrderRun]) -> None:
        """Answer orders that have no step left."""
        for run in runs:
            run.response = order_response(run.work)

    def hold(self, work: ClaimedOrder, tried: Attempts) -> None:
        """Attempt a recorded hold in the shop, and store the result."""
        self.failpoints.hit(OrderFailpoint.BEFORE_SHOP)
        answer = self._perform(work, EffectKind.HOLD, tried)
        self.failpoints.hit(OrderFailpoint.AFTER_SHOP)
        row = hold_row(work, answer, tried.times, random.random(), self.under_way_seconds)
        self.store.settle_hold(work, {**row, "tried": answer is not SILENT})

    def _hold_now(self, run: OrderRun) -> None:
        try:
            self.hold(run.work, Attempts())
        except SentinelError as error:
            log.warning("hold_not_recorded", review_id=str(run.work.review_id), error=error.detail)

    def _put_off(self, steps: Sequence[tuple[OrderRun, Row]]) -> None:
        """Answer orders with their present status and have them retried: {error, pause_seconds, due_at?, tried?, alert?}."""
        rows = [
            (run, {**row, "error": row["error"][:500], "answered": order_response(run.work).as_json()})
            for run, row in steps
        ]
        for run, _ in self._record(self.store.put_off, rows):
            metrics.PUT_OFF.labels(run.work.status).inc()
            run.response = order_response(run.work)


HALTED: Row = {"error": "halted", "pause_seconds": 30.0}
"""The row that puts off an order while a halt is in force: its reason, and the seconds until the next attempt."""
REFUSED_AGAIN = (400, 422)
"""Statuses that refuse the question for its content. As an order's question never changes, a retry gets the same refusal."""
_HOLD_IT = "this order can only be put on hold here, and handled in the shop"


def _without_answer(work: ClaimedOrder, error: Unreachable | Rejected) -> Row:
    why = key_conflict_text(error, _HOLD_IT) if isinstance(error, KeyConflict) else error.detail
    backoff = BACKOFF_IN_SILENCE if isinstance(error, Unreachable) else BACKOFF
    row: dict[str, object] = {
        "error": why[:500],
        "pause_seconds": backoff.pause_seconds(work.attempts, random.random()),
    }
    if isinstance(error, Rejected) and error.status in REFUSED_AGAIN:
        row["alert"] = question_refused_alert(work, why)
    if isinstance(error, Rejected):
        log.error("authority_refused_question", review_id=str(work.review_id), error=error.detail)
    return row


# Sets.

_ROUNDS = 8
"""More steps than any order needs; an order that needs more rounds is a defect."""
MOST = 64
"""The maximum number of orders in a set: as many as the authority answers in one call."""
SETS, SLOW_SETS, SLOW_SECONDS = 2, 8, 0.25
"""Up to SETS sets are in flight at once; a further one, up to SLOW_SETS, starts once the last start is SLOW_SECONDS ago."""
GATHER_SECONDS = 0.004
"""How long a set gathers orders while another is in flight: much less than the commits that it saves take."""


@dataclass(slots=True, kw_only=True)
class OrderProcessor(OrderSteps):
    """Takes sets of orders through their steps, each order as far as it can go now. Thread-safe."""

    def run_all(self, runs: list[OrderRun]) -> None:
        """Process orders until each has a response or an error; their outside calls run in parallel."""
        self.advance(runs)
        while outside := [run for run in runs if run.outside_call]:
            with ThreadPoolExecutor(len(outside), thread_name_prefix="order") as threads:
                list(threads.map(self.call_outside, outside))
            self.advance([run for run in outside if run.goes_on])

    def left_behind(self, works: Iterable[ClaimedOrder]) -> list[OrderRun]:
        """Make runs of claimed orders, for `run_all`."""
        return [OrderRun(self._deadline(), claimed=work) for work in works]

    def delivered(self, delivery: DeliveredOrder) -> OrderRun:
        """Make the run of a delivery, for a set."""
        return OrderRun(self._deadline(), delivery)

    def _deadline(self) -> float:
        return time.monotonic() + self.budget_seconds

    def call_outside(self, run: OrderRun) -> None:
        """Make the pending outside call of one order. Never raises: an error ends the run."""
        call, run.outside_call = run.outside_call, None
        try:
            if call is not None:
                call(run)
        except Exception as error:
            run.fail(error)

    def advance(self, runs: list[OrderRun]) -> None:
        """Take a set of orders through its steps until each is answered, failed or needs an outside call. Never raises."""
        _step(self.take, [run for run in runs if run.claimed is None])
        for _ in range(_ROUNDS):
            under_way = [(self._next(run), run) for run in runs if run.goes_on]
            if not under_way:
                return
            for step in dict.fromkeys(step for step, _ in under_way):
                _step(step, [run for its, run in under_way if its == step])
        for run in runs:
            if run.goes_on:
                run.fail(TryLater("the order did not leave a loop of steps"))

    def _next(self, run: OrderRun) -> Callable[[list[OrderRun]], None]:
        """The step that an order needs next."""
        match run.work.status:
            case ReviewStatus.RECEIVED:
                return self.enrich if run.score is None else self.store_scores
            case ReviewStatus.SCORED | ReviewStatus.DECIDED | ReviewStatus.QUEUED:
                return self.ask
            case ReviewStatus.STARTED if not run.may_ask_shop:
                return self.confirm_started
            case ReviewStatus.STARTED:
                return self.fulfil if run.effect is None else self.settle
            case _:
                return self.answer


def _step(step: Callable[[list[OrderRun]], None], runs: list[OrderRun]) -> None:
    """Run one step of a set; an exception fails those of its orders that the step had not finished."""
    if not runs:
        return
    try:
        step(runs)
    except Exception as error:
        for run in runs:
            if run.goes_on:
                run.fail(error)


Done = Callable[[OrderRun], None]
"""Called on the event loop with a finished order; `OrderRun.result` has its outcome."""


class OrderSets:
    """Gathers the orders of one event loop into sets.

    An order that arrives while no set is in flight is processed at once; orders that arrive while sets are in flight
    share the next one. `outside` runs the outside calls of single orders. Not thread-safe: for the loop's own thread.
    """

    def __init__(self, processor: OrderProcessor, outside: Executor) -> None:
        self._processor, self._outside = processor, outside
        self._threads = ThreadPoolExecutor(SLOW_SETS, thread_name_prefix="orders")
        self._waiting: list[tuple[OrderRun, Done]] = []
        self._under_way = 0
        self._started_at = 0.0
        self._timer: asyncio.Handle | None = None
        self._starts_at = 0.0

    def join(self, run: OrderRun, done: Done) -> None:
        """Add an order to the next set; `done` is called with it once it has its outcome."""
        self._waiting.append((run, done))
        self._schedule_set(asyncio.get_running_loop())

    def _schedule_set(self, loop: asyncio.AbstractEventLoop) -> None:
        """Schedule the next set: at once if none is in flight, else after a moment, with the orders that arrive until then."""
        if not self._waiting or self._under_way >= SLOW_SETS:
            return
        starts_at = loop.time() + (GATHER_SECONDS if self._under_way else 0.0)
        if self._under_way >= SETS:
            starts_at = max(starts_at, self._started_at + SLOW_SECONDS)
        if self._timer is not None:
            if starts_at >= self._starts_at:
                return
            self._timer.cancel()
        self._starts_at, self._timer = starts_at, loop.call_at(starts_at, self._start_set, loop)

    def _start_set(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        batch, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
        self._under_way += 1
        self._started_at = loop.time()
        self._threads.submit(self._process, loop, batch)
        self._schedule_set(loop)

    def _process(self, loop: asyncio.AbstractEventLoop, batch: list[tuple[OrderRun, Done]]) -> None:
        try:
            self._processor.advance([run for run, _ in batch])
        finally:
            loop.call_soon_threadsafe(self._set_done, loop, batch)

    def _set_done(self, loop: asyncio.AbstractEventLoop, batch: list[tuple[OrderRun, Done]]) -> None:
        """Pass on each order of a finished set: it is answered, makes its outside call, or joins the next set."""
        self._under_way -= 1
        for run, done in batch:
            self._go_on(loop, run, done)
        self._schedule_set(loop)

    def _go_on(self, loop: asyncio.AbstractEventLoop, run: OrderRun, done: Done) -> None:
        if run.outside_call is not None:
            self._outside.submit(self._call_outside, loop, run, done)
        elif run.goes_on:
            self._waiting.append((run, done))
        else:
            done(run)

    def _call_outside(self, loop: asyncio.AbstractEventLoop, run: OrderRun, done: Done) -> None:
        self._processor.call_outside(run)
        loop.call_soon_threadsafe(self._outside_done, loop, run, done)

    def _outside_done(self, loop: asyncio.AbstractEventLoop, run: OrderRun, done: Done) -> None:
        self._go_on(loop, run, done)
        self._schedule_set(loop)
