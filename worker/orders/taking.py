"""The first steps of a set of orders (take, enrich, score), and `OrderRun`, one order as a process handles it.

Every step is recorded before the next is tried, so after a crash any process resumes from an order's stored status. The
score and the question to the authority are stored before the authority is asked, and never change.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog

from sentinel.core.errors import SentinelError, TryLater
from worker.failpoints import Failpoints, OrderFailpoint
from worker.orders import metrics
from worker.orders.authority import AuthorityClient, OutcomeReporter
from worker.orders.enrich import Enriched, Enricher, Lookup
from worker.orders.order import (
    ClaimedOrder,
    KnownAccount,
    Order,
    as_received,
    missing_facts,
    with_orders_beside,
)
from worker.orders.responses import DeliveryInFlight, OrderResponse, response_to_repeat
from worker.orders.scoring import Scorer, raised_for_missing_facts
from worker.orders.settings import AFTER_SCORE_SECONDS
from worker.orders.shop import UNDER_WAY_SECONDS, Attempts, Shop
from worker.orders.silent_shops import SilentShops
from worker.orders.sources import SourcesFile
from worker.orders.store import DeliveredOrder, OrderStore, Row, Step, TakeOutcome
from worker.orders.transitions import score_row, scored_work
from worker.outbound.effects import EffectRefused, Settled

log = structlog.get_logger("worker.orders")


class ClaimLost(Exception):
    """The claim was taken over by another process."""


@dataclass(slots=True, eq=False)
class OrderRun:
    """One order being processed: a new delivery, or a claimed order that an earlier run left unfinished.

    It ends with a response or an error; `deadline` is an instant of `time.monotonic`.
    """

    deadline: float
    delivery: DeliveredOrder | None = None
    claimed: ClaimedOrder | None = None
    known: KnownAccount | None = None
    """The account's orders of the last 24 hours; None until this run has read them."""
    score: Row | None = None
    """The score as a row of the store, until it is stored."""
    asked_at: float = 0.0
    """When the authority was last asked to start it, as an instant of `time.monotonic`."""
    may_ask_shop: bool = False
    """Whether the shop may be asked: this run recorded the fulfilment, or the authority confirmed that it is started."""
    tried: Attempts = Attempts()
    """The earlier attempts in the shop, which may have taken effect."""
    effect: Settled | EffectRefused | None = None
    """The outcome of the fulfilment (the shop's answer, or a person's resolution), until it is stored."""
    outside_call: Callable[[OrderRun], None] | None = None
    """The next outside call for this order alone; the sender is answered after it, even where a response is recorded already."""
    response: OrderResponse | None = None
    error: Exception | None = None

    @property
    def goes_on(self) -> bool:
        """Whether the next step of a set can process it: it has neither an outcome nor a pending outside call."""
        return self.response is None and self.error is None and self.outside_call is None

    @property
    def work(self) -> ClaimedOrder:
        """The claimed order."""
        assert self.claimed is not None
        return self.claimed

    def fail(self, error: Exception) -> None:
        """End the run with an error; the stored order keeps its status, and the next attempt resumes from there."""
        if isinstance(error, ClaimLost):
            error = DeliveryInFlight()
        elif not isinstance(error, SentinelError):
            log.error("order_failed", review_id=str(self.claimed and self.claimed.review_id), exc_info=error)
            error = TryLater("the order could not be finished now; send it again later")
        self.error = error

    def result(self) -> OrderResponse:
        """The response.

        Raises `TryLater` (no answer from the authority, and no response recorded; or a defect), `DeliveryInFlight` (the
        claim was lost, or another delivery is in flight), `BodyConflict`, or `EngineUnavailable`.
        """
        if self.error is not None:
            raise self.error
        assert self.response is not None
        return self.response


Decided = tuple[OrderRun, Row]
"""An order, and the row that a step records for it."""


@dataclass(slots=True, kw_only=True)
class OrderTaking:
    """The first steps of a set: take, enrich, score.

    A step is given the orders that need it, and leaves each of them advanced, answered, failed, or with a pending
    outside call.
    """

    store: OrderStore
    authority: AuthorityClient
    scorer: Scorer
    enricher: Enricher
    shop: Shop
    reports: OutcomeReporter
    sources: SourcesFile
    failpoints: Failpoints
    budget_seconds: float = 30.0
    under_way_seconds: float = UNDER_WAY_SECONDS
    act_seconds: float = 35.0
    """Seconds after the authority was asked during which the shop may be asked; later the authority is asked again
    first. The start declares this time, plus the time for which a call to the shop may be in flight."""
    scores_at_once: bool = False
    """Whether the scorer makes no outside call: then a new order of a source without look-ups is stored with its score at once."""
    ships_here: bool = False
    """Whether the shop is the simulated one of this database: then its row is written in the commit that decides the order."""
    silent_shops: SilentShops = field(default_factory=SilentShops)
    _taking: threading.Lock = field(init=False, default_factory=threading.Lock)
    """Held while a set counts its accounts' orders and takes its own, so that orders of one account count each other.
    Across processes the database ensures that: it takes no order whose account has more orders than were counted, and
    `take` counts them again."""

    def take(self, runs: list[OrderRun]) -> None:
        """Store delivered orders, with their score where scoring needs no outside call; repeated deliveries get their response."""
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
                        # A score that was made before the order was taken counted fewer orders of its account: score it
                        # again.
                        run.claimed, run.known, run.score = found.work, found.known, None
                    else:
                        run.response = response_to_repeat(
                            self.store, run.delivery.order, found, run.delivery.body_sha256
                        )
                except Exception as error:
                    run.fail(error)

    def _take_scored(self, runs: list[OrderRun]) -> None:
        """Take the new orders with their score. Repeats with a recorded final response get it; all others are left to `take`."""
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
            scored = [(delivery, seen.known, run.score or {}) for run, delivery, seen in new]
            taken = self.store.take_scored(scored) if scored else []
        except SentinelError:
            return  # the database may have refused the set because of one order: `take` tries each by itself
        for (run, _, _), claimed in zip(new, taken, strict=True):
            run.claimed = claimed
        self._pass(OrderFailpoint.AFTER_TAKE, new)
        self._pass(OrderFailpoint.AFTER_SCORE, new)

    def enrich(self, runs: list[OrderRun]) -> None:
        """Score orders that were taken without a score: at once, or by an outside call where one is needed.

        An order that an earlier run left unscored first gets the count of its account's orders, like one just taken.
        """
        left = [run for run in runs if run.known is None]
        for run, known in zip(left, self.store.known_accounts([run.work for run in left]) if left else [], strict=True):
            run.known = known
        for run in runs:
            if self._scores_now(run):
                self._enrich_one(run)
            else:
                run.outside_call = self._enrich_one

    def _enrich_one(self, run: OrderRun) -> None:
        self.failpoints.hit(OrderFailpoint.AFTER_TAKE)
        # The stored order, not the delivered one: the source's field map may have changed since it was stored.
        # Only outside calls must leave time for the authority and the shop; scoring without them takes next to none.
        until = run.deadline if self._scores_now(run) else run.deadline - AFTER_SCORE_SECONDS
        self._make_score(run, run.work.order, until)

    def _scores_now(self, run: OrderRun) -> bool:
        return self.scores_at_once and not self._source(run)[1]

    def _source(self, run: OrderRun) -> tuple[str, Sequence[Lookup], Sequence[str]]:
        """(name of the order's source, its look-ups, the facts that it always sends)."""
        name = run.delivery.order.source if run.delivery else run.work.source
        source = self.sources.current().find(name)
        return (name, source.lookups, source.always) if source else (name, (), ())

    def _make_score(self, run: OrderRun, order: Order, until: float) -> None:
        began = time.monotonic()
        # Unread counts would make the velocity rules pass in silence: fail here instead.
        assert run.known is not None
        _, lookups, always = self._source(run)
        enriched = self.enricher.enrich(order, lookups, until) if lookups else Enriched(order)
        found = self.scorer.score(enriched.order, run.known, until, enriched.signals)
        score = raised_for_missing_facts(found, missing_facts(enriched.order, always))
        seconds = time.monotonic() - began
        metrics.scored(score, seconds)
        run.score = score_row(order, score, seconds)

    def store_scores(self, runs: list[OrderRun]) -> None:
        """Store band, signals and the question, which must be on record before the authority is asked."""
        for run, row in self._record(self.store.score, [(run, run.score or {}) for run in runs]):
            run.claimed = scored_work(run.work, row)
            self.failpoints.hit(OrderFailpoint.AFTER_SCORE)

    def _record(
        self, record: Callable[[Sequence[Step]], list[bool | Exception]], steps: Sequence[Decided]
    ) -> list[Decided]:
        """Record a step of a set; return the orders for which it was recorded, and fail the others."""
        results = record([(run.work, row) for run, row in steps]) if steps else []
        for (run, _), result in zip(steps, results, strict=True):
            if result is not True:
                run.fail(result if isinstance(result, Exception) else ClaimLost())
        return [step for step, result in zip(steps, results, strict=True) if result is True]

    def _pass(self, place: OrderFailpoint, orders: Sequence[object]) -> None:
        if self.failpoints.place is not None:
            for _ in orders:
                self.failpoints.hit(place)
