"""The steps of order review, each for a set of orders at once.

Every step is recorded before the next is tried, so after a crash any process resumes where an order stands: it sends the
authority the same request under the same start id, and looks into the shop before it asks it again. What is unsure is put off.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import structlog

from sentinel.client import GuardAnswer, KeyConflict, Rejected, Unreachable
from sentinel.core.errors import SentinelError, TryLater
from worker.failpoints import Failpoints
from worker.orders import metrics
from worker.orders.authority_client import AuthorityClient
from worker.orders.claims import ClaimedOrder, TakeOutcome
from worker.orders.enrich import Enriched, Lookup
from worker.orders.facts import as_received, missing_facts
from worker.orders.failpoints import OrderFailpoint
from worker.orders.idempotency import DeliveryInFlight, response_to_repeat
from worker.orders.lanes import LaneEvent
from worker.orders.order import KnownAccount, Lane, Order, ReviewStatus, Score, Signal, with_orders_beside
from worker.orders.reporter import OutcomeReporter
from worker.orders.responses import OrderResponse, order_response
from worker.orders.scoring import without_facts
from worker.orders.shop import Shop
from worker.orders.shop_effects import UNDER_WAY_SECONDS, Attempts, EffectKind, look, perform
from worker.orders.sources import SourcesFile
from worker.orders.store import Delivery, OrderStore, Row, Step
from worker.orders.transitions import (
    decided_work,
    event_of,
    held_alert,
    hold_row,
    is_settled_elsewhere,
    is_started,
    late_alert,
    pause_seconds,
    row_of,
    score_row,
    scored_work,
    seconds_until,
    settled_row,
    shipped_row,
)  # fmt: skip
from worker.outbound.effects import NoAnswer, Refused, Settled

AFTER_SCORE_SECONDS = 16.0
"""What guard, start and shop may need of an order's budget together; scoring ends before."""

log = structlog.get_logger("worker.orders")


class Scoring(Protocol):
    """The scoring interface; never raises."""

    def score(self, order: Order, known: KnownAccount, deadline: float, noticed: Sequence[Signal] = ()) -> Score:
        """By `deadline` (monotonic)."""


class Enriching(Protocol):
    """The enrichment interface; never raises."""

    def enrich(self, order: Order, lookups: Sequence[Lookup], deadline: float) -> Enriched:
        """By `deadline` (monotonic)."""


class ClaimLost(Exception):
    """The claim was taken over by another process."""


@dataclass(slots=True, eq=False)
class OrderRun:
    """One order on its way through this process: delivered (not claimed yet) or left behind. Over with a response or an error."""

    deadline: float
    delivery: Delivery | None = None
    claimed: ClaimedOrder | None = None
    known: KnownAccount = KnownAccount()
    score: Row | None = None
    """Made, and not stored yet."""
    asked_at: float = 0.0
    """When the authority was last asked to start it (monotonic)."""
    is_ours: bool = False
    """The fulfilment was recorded by this run, or the authority confirms that it is started: the shop may be asked."""
    tried: Attempts = Attempts()
    """What may have been asked of the shop before."""
    effect: Settled | Refused | None = None
    """The shop's answer, not stored yet."""
    outside: Callable[[OrderRun], None] | None = None
    """What this order alone has to ask outside next; with a response, after it."""
    response: OrderResponse | None = None
    error: Exception | None = None

    @property
    def goes_on(self) -> bool:
        """Whether a set has something to do for it."""
        return self.response is None and self.error is None and self.outside is None

    @property
    def work(self) -> ClaimedOrder:
        """The claimed order."""
        assert self.claimed is not None
        return self.claimed

    def fail(self, error: Exception) -> None:
        """End it; it keeps its state, and the next try resumes from what is recorded."""
        if isinstance(error, ClaimLost):
            error = DeliveryInFlight()
        elif not isinstance(error, SentinelError):
            log.error("order_failed", review_id=str(self.claimed and self.claimed.review_id), exc_info=error)
            error = TryLater("the order could not be finished now; send it again")
        self.error = error

    def result(self) -> OrderResponse:
        """The response.

        Raises `TryLater` (no answer from the authority, nothing on record as answered), `DeliveryInFlight` (claim lost, or
        another delivery is under way), `BodyConflict`, or `EngineUnavailable`.
        """
        if self.error is not None:
            raise self.error
        assert self.response is not None
        return self.response


Decided = tuple[OrderRun, Row]
"""An order, and what is recorded of it."""


@dataclass(slots=True, kw_only=True)
class OrderSteps:
    """Each takes orders that need it, and leaves each of them changed, answered, failed, or with an outside call to make."""

    store: OrderStore
    authority: AuthorityClient
    scorer: Scoring
    enricher: Enriching
    shop: Shop
    reports: OutcomeReporter
    sources: SourcesFile
    failpoints: Failpoints
    budget_seconds: float = 30.0
    under_way_seconds: float = UNDER_WAY_SECONDS
    act_seconds: float = 35.0
    """For so long after the authority was asked the shop may be asked; then the authority is asked again. The start declares it,
    and on top of it the time that a call to the shop may be under way."""
    scores_at_once: bool = False
    """The scorer makes no outside call: a new order of a source without look-ups is taken with its score."""
    ships_here: bool = False
    """The shop is the simulated one of this database: its row is written in the commit that decides the order."""
    _taking: threading.Lock = field(init=False, default_factory=threading.Lock)
    """One set at a time looks at the accounts of its orders and takes them: orders of one account count each other."""

    def take(self, runs: list[OrderRun]) -> None:
        """Take delivered orders, scored already where that asks nobody; repeats get their response."""
        first = {
            (run.delivery.order.source, run.delivery.order.order_id): run for run in reversed(runs) if run.delivery
        }
        with self._taking:
            self._take_scored([run for run in first.values() if self._scores_now(run)])
            rest = [run for run in runs if run.goes_on and run.claimed is None]
            for run, found in zip(rest, self.store.take([run.delivery for run in rest if run.delivery]), strict=True):
                assert run.delivery is not None
                try:
                    if isinstance(found, Exception):
                        raise found
                    if found.outcome is TakeOutcome.TAKEN:
                        run.claimed, run.known = found.work, found.known
                    else:
                        run.response = response_to_repeat(
                            self.store, run.delivery.order, found, run.delivery.body_sha256
                        )
                except Exception as error:
                    run.fail(error)

    def _take_scored(self, runs: list[OrderRun]) -> None:
        """Those of them that are new; the others are left as they are, or answered as before."""
        deliveries = [run.delivery for run in runs if run.delivery]
        looks = self.store.look(deliveries) if deliveries else []
        found = list(zip(runs, deliveries, looks, strict=True))
        new = [one for one in found if one[2].is_new]
        beside = [delivery.order for _, delivery, _ in new]
        for run, delivery, seen in new:
            run.known = with_orders_beside(seen.known, delivery.order, beside)
            self._make_score(run, as_received(delivery.order, seen.seen_at), run.deadline)
        for run, _, seen in found:
            if seen.response_body is not None and seen.response_status is not None:
                run.response = OrderResponse(seen.response_status, seen.response_body.encode(), True, replayed=True)
        try:
            taken = self.store.take_scored([(delivery, run.score or {}) for run, delivery, _ in new]) if new else []
        except SentinelError:
            return  # one of them may be what the database refuses: each is taken by itself
        for (run, _, _), claimed in zip(new, taken, strict=True):
            run.claimed = claimed
        self._pass(OrderFailpoint.AFTER_TAKE, new)
        self._pass(OrderFailpoint.AFTER_SCORE, new)

    def enrich(self, runs: list[OrderRun]) -> None:
        """Score what was taken without: at once, or in a thread of its own where somebody has to be asked."""
        for run in runs:
            if self._scores_now(run):
                self._enrich_one(run)
            else:
                run.outside = self._enrich_one

    def _enrich_one(self, run: OrderRun) -> None:
        self.failpoints.hit(OrderFailpoint.AFTER_TAKE)
        order = as_received(run.delivery.order, run.work.received_at) if run.delivery else run.work.order
        self._make_score(run, order, run.deadline - AFTER_SCORE_SECONDS)

    def _scores_now(self, run: OrderRun) -> bool:
        return self.scores_at_once and not self._source(run)[1]

    def _source(self, run: OrderRun) -> tuple[str, Sequence[Lookup], Sequence[str]]:
        """The name of an order's source, its look-ups, and the facts that it always sends."""
        name = run.delivery.order.source if run.delivery else run.work.source
        source = self.sources.current().find(name)
        return (name, source.lookups, source.always) if source else (name, (), ())

    def _make_score(self, run: OrderRun, order: Order, until: float) -> None:
        began = time.monotonic()
        _, lookups, always = self._source(run)
        enriched = self.enricher.enrich(order, lookups, until) if lookups else Enriched(order)
        found = self.scorer.score(enriched.order, run.known, until, enriched.signals)
        score = without_facts(found, missing_facts(enriched.order, always))
        seconds = time.monotonic() - began
        metrics.scored(score, seconds)
        run.score = score_row(order, score, seconds)

    def store_scores(self, runs: list[OrderRun]) -> None:
        """Band, signals and the question are on record before the authority is asked."""
        for run, row in self._record(self.store.score, [(run, run.score or {}) for run in runs]):
            run.claimed = scored_work(run.work, row)
            self.failpoints.hit(OrderFailpoint.AFTER_SCORE)

    def ask(self, runs: list[OrderRun]) -> None:
        """Ask the authority, which starts what it permits, and record its answers and what follows from them at once."""
        self._pass(OrderFailpoint.BEFORE_GUARD, runs)
        answers = self._answers(runs)
        self._pass(OrderFailpoint.AFTER_GUARD, runs)
        undecided: list[tuple[OrderRun, Row]] = []
        shipped: list[Decided] = []
        decided: list[Decided] = []
        for run, answer in answers:
            event = event_of(run.work, answer)
            if event is None:
                pause = seconds_until(answer.expires_at) if answer.status == "pending" else 30.0
                undecided.append((run, {"error": answer.reason_code, "pause_seconds": pause}))
                continue
            row, was = row_of(run.work, answer, event), run.work.status
            run.claimed = decided_work(run.work, answer, event, row)
            ships = (
                self.ships_here and was == ReviewStatus.SCORED and event == LaneEvent.ALLOWED and not self._is_late(run)
            )
            (shipped if ships else decided).append((run, row))
        self._put_off(undecided)
        self._decide([*self._ship(shipped), *decided])

    def _answers(self, runs: list[OrderRun]) -> list[tuple[OrderRun, GuardAnswer]]:
        """What the authority says to each; without a usable answer an order is put off, and nothing is answered on record."""
        for run in runs:
            run.asked_at = time.monotonic()
        found = list(zip(runs, self.authority.guard([run.work for run in runs]), strict=True))
        without = [(run, answer) for run, answer in found if isinstance(answer, (Unreachable, Rejected))]
        for run, _ in self._record(
            self.store.put_off, [(run, _without_answer(run.work, error)) for run, error in without]
        ):
            metrics.NO_AUTHORITY.inc()
            run.fail(TryLater("no decision can be given now; send it again"))
        return [(run, answer) for run, answer in found if isinstance(answer, GuardAnswer)]

    def _is_late(self, run: OrderRun) -> bool:
        """Whether a person may have said by now that it was not executed."""
        return time.monotonic() > run.asked_at + self.act_seconds

    def _ship(self, steps: list[Decided]) -> list[Decided]:
        """Decided, fulfilled and settled in one commit; returns those of which the simulated shop has something else to say."""
        self._pass(OrderFailpoint.BEFORE_SHOP, steps)
        ready = [(run, *shipped_row(run.work, row)) for run, row in steps]
        results = self.store.ship([(run.work, row) for run, row, _ in ready]) if ready else []
        shipped = [one for one, result in zip(ready, results, strict=True) if result is True]
        for place in (OrderFailpoint.AFTER_DECIDED, OrderFailpoint.AFTER_SHOP, OrderFailpoint.AFTER_SETTLED):
            self._pass(place, shipped)
        for run, _, response in shipped:
            metrics.decided(run.work, LaneEvent.ALLOWED)
            self._over(run, ReviewStatus.FULFILLED, response, str(run.work.operation_id))
        for (run, _), result in zip(steps, results, strict=True):
            if isinstance(result, Exception):
                run.fail(result)
        return [step for step, result in zip(steps, results, strict=True) if result is False]

    def _decide(self, steps: list[Decided]) -> None:
        """Low is started: the fulfilment is on record before the shop is asked. Queued or held: the response is stored with it."""
        rows: list[tuple[OrderRun, Row]] = []
        for run, row in steps:
            if run.work.status != ReviewStatus.STARTED:
                held = (
                    {}
                    if row["event"] == LaneEvent.NEEDS_ANALYST
                    else {"alert": held_alert(run.work, row["reason_code"])}
                )
                row = {**row, **held, "answered": order_response(run.work).as_json()}
            rows.append((run, row))
        recorded = self._record(self.store.decide, rows)
        self._pass(OrderFailpoint.AFTER_DECIDED, recorded)
        for run, row in recorded:
            metrics.decided(run.work, row["event"])
            if run.work.status == ReviewStatus.STARTED:
                run.is_ours = True
                continue
            run.response = order_response(run.work)
            if row["event"] != LaneEvent.NEEDS_ANALYST:
                run.outside = self._hold_now

    def confirm_started(self, runs: list[OrderRun]) -> None:
        """Orders left STARTED by somebody: the authority says whether they still are, and the shop is looked at first."""
        for run, answer in self._answers(runs):
            work = run.work
            if is_started(answer):
                run.is_ours, run.tried = True, Attempts(max(1, work.tries or 0), work.seconds_since_try or 0.0)
            elif is_settled_elsewhere(answer):
                run.outside = partial(self._look, how=answer.resolution or "started")
            elif self.store.refuse_start(work, answer.reason_code):
                # Surely nothing happened: it is asked again, as one that is not started.
                status = ReviewStatus.DECIDED if work.lane == Lane.LOW else ReviewStatus.QUEUED
                run.claimed = replace(work, status=status)
            else:
                run.fail(ClaimLost())

    def fulfil(self, runs: list[OrderRun]) -> None:
        """Have the shop fulfil what is started, each order in a thread of its own."""
        for run in runs:
            run.outside = self._execute

    def _execute(self, run: OrderRun) -> None:
        """One try in the shop."""
        self.failpoints.hit(OrderFailpoint.BEFORE_SHOP)
        if self._is_late(run):
            return self._put_off([(run, {"error": "the time to act on its start is over", "pause_seconds": 1.0})])
        work, tried = run.work, run.tried
        assert work.operation_id is not None
        answer = perform(
            self.shop,
            work.review,
            EffectKind.FULFIL,
            work.operation_id,
            tried,
            under_way_seconds=self.under_way_seconds,
        )
        self.failpoints.hit(OrderFailpoint.AFTER_SHOP)
        if not isinstance(answer, NoAnswer):
            run.effect = answer
            return None
        pause = max(pause_seconds(work.attempts, random.random()), self.under_way_seconds)
        alert = late_alert(work, "fulfil", tried.times, answer.detail)
        return self._put_off([(run, {"error": answer.detail, "pause_seconds": pause, "tried": True, "alert": alert})])

    def _look(self, run: OrderRun, how: str) -> None:
        """An order left STARTED that may not be fulfilled any more: what the shop did before is reported, else a person looks."""
        assert run.work.operation_id is not None
        found = look(self.shop, run.work.review, EffectKind.FULFIL, run.work.operation_id)
        run.is_ours = True
        if isinstance(found, NoAnswer):
            pause = pause_seconds(run.work.attempts, random.random())
            return self._put_off([(run, {"error": found.detail, "pause_seconds": pause})])
        why = "a person said that it was not executed" if how == "not_executed" else "started or settled elsewhere"
        run.effect = found if isinstance(found, Settled) else Refused(why)
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
            self._over(run, status, order_response(run.work, status=status), row.get("reference"))

    def _over(self, run: OrderRun, status: ReviewStatus, response: OrderResponse, reference: str | None) -> None:
        run.claimed = replace(run.work, status=status)
        run.response = response
        metrics.settled(run.work)
        if status is ReviewStatus.FULFILLED:
            # A refusal ends nothing: a person may have the shop asked again, and it is reported when nobody may.
            self.reports.soon(run.work, done=True, reference=reference, error=None)

    def answer(self, runs: list[OrderRun]) -> None:
        """Nothing is left to do."""
        for run in runs:
            run.response = order_response(run.work)

    def hold(self, work: ClaimedOrder, tried: Attempts) -> None:
        """One try of a hold that is on record."""
        self.failpoints.hit(OrderFailpoint.BEFORE_SHOP)
        assert work.operation_id is not None
        answer = perform(
            self.shop, work.review, EffectKind.HOLD, work.operation_id, tried, under_way_seconds=self.under_way_seconds
        )
        self.failpoints.hit(OrderFailpoint.AFTER_SHOP)
        self.store.settle_hold(work, hold_row(work, answer, tried.times, random.random()))

    def _hold_now(self, run: OrderRun) -> None:
        try:
            self.hold(run.work, Attempts())
        except SentinelError as error:
            log.warning("hold_not_recorded", review_id=str(run.work.review_id), error=error.detail)

    def _put_off(self, steps: Sequence[tuple[OrderRun, Row]]) -> None:
        """Answered with where they stand, and taken up again after a pause: {error, pause_seconds, tried?, alert?}."""
        rows = [
            (run, {**row, "error": row["error"][:500], "answered": order_response(run.work).as_json()})
            for run, row in steps
        ]
        for run, _ in self._record(self.store.put_off, rows):
            metrics.PUT_OFF.labels(run.work.status).inc()
            run.response = order_response(run.work)

    def _record(
        self, record: Callable[[Sequence[Step]], list[bool | Exception]], steps: Sequence[Decided]
    ) -> list[Decided]:
        """Record a step of a set; returns the orders of which it is recorded, and ends the others."""
        results = record([(run.work, row) for run, row in steps]) if steps else []
        for (run, _), result in zip(steps, results, strict=True):
            if result is not True:
                run.fail(result if isinstance(result, Exception) else ClaimLost())
        return [step for step, result in zip(steps, results, strict=True) if result is True]

    def _pass(self, place: OrderFailpoint, orders: Sequence[object]) -> None:
        for _ in orders:
            self.failpoints.hit(place)


def _without_answer(work: ClaimedOrder, error: Unreachable | Rejected) -> Row:
    row: dict[str, object] = {
        "error": error.detail[:500],
        "pause_seconds": pause_seconds(work.attempts, random.random()),
    }
    if isinstance(error, KeyConflict):
        row["alert"] = held_alert(work, "the authority knows another order under this key") | {
            "occasion": "key_conflict"
        }
    if isinstance(error, Rejected):
        log.error("authority_refused_question", review_id=str(work.review_id), error=error.detail)
    return row
