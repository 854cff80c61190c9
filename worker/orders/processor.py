"""Processes an order: take, enrich, score, guard and start in one call, then fulfil, queue or hold.

Every step is recorded before the next is tried, so after a crash any process resumes where the order stands: it sends the
authority the same request under the same start id, and looks into the shop before it asks it again.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, Protocol

import structlog

from sentinel.client import KeyConflict, Rejected, Unreachable
from sentinel.core.errors import SentinelError, TryLater
from worker.failpoints import Failpoints
from worker.orders import metrics
from worker.orders.authority_client import AuthorityClient
from worker.orders.claims import ClaimedOrder, TakeResult
from worker.orders.enrich import Enriched, Lookup
from worker.orders.facts import as_received, missing_facts
from worker.orders.failpoints import OrderFailpoint
from worker.orders.group_commit import InFlight
from worker.orders.idempotency import DeliveryInFlight
from worker.orders.lanes import LaneEvent
from worker.orders.order import KnownAccount, Lane, Order, ReviewStatus, Score, Signal
from worker.orders.reporter import OutcomeReporter
from worker.orders.responses import OrderResponse, order_response
from worker.orders.scoring import without_facts
from worker.orders.shop import Shop
from worker.orders.shop import shop_payload as told_to_shop
from worker.orders.shop_effects import UNDER_WAY_SECONDS, Attempts, EffectKind, look, perform
from worker.orders.store import OrderStore, Shipped
from worker.orders.transitions import (
    event_of,
    guard_params,
    held_alert,
    hold_row,
    is_settled_elsewhere,
    is_started,
    late_alert,
    pause_seconds,
    refused_alert,
    row_of,
    seconds_until,
    status_after,
)
from worker.outbound.effects import NoAnswer, Refused, Settled

AFTER_SCORE_SECONDS = 16.0
"""What guard, start and shop may need of an order's budget together; scoring ends before."""
_ROUNDS = 8
"""More steps than any way has; a loop that needs more is a defect."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderProcessor:
    """The parts. Thread-safe."""

    store: OrderStore
    authority: AuthorityClient
    scorer: Scoring
    enricher: Enriching
    shop: Shop
    reports: OutcomeReporter
    lookups: Callable[[str], Sequence[Lookup]]
    """The look-ups of a source, by its name."""
    always: Callable[[str], Sequence[str]]
    """The facts that a source always sends, by its name."""
    failpoints: Failpoints
    budget_seconds: float = 30.0
    under_way_seconds: float = UNDER_WAY_SECONDS
    act_seconds: float = 35.0
    """For so long after the authority was asked the shop may be asked; then the authority is asked again. The start declares it,
    and on top of it the time that a call to the shop may be under way."""
    scores_at_once: bool = False
    """The scorer makes no outside call: an order of a source without look-ups is scored in the commit that takes it."""
    ships_here: bool = False
    """The shop is the simulated one of this database: its row is written in the commit that decides the order."""
    in_flight: InFlight = field(default_factory=InFlight)
    """The deliveries in flight."""

    def take(self, order: Order, digest: str) -> TakeResult:
        """Take a delivered order, scored already where that takes no time, or learn how it stands."""
        at_once = self.scores_at_once and not self.lookups(order.source)

        def score(work: ClaimedOrder, known: KnownAccount) -> tuple[ClaimedOrder, dict[str, Any]]:
            return self._scored(
                work, Enriched(as_received(order, work.received_at)), known, time.monotonic() + self.budget_seconds
            )

        return self.store.take(order, digest, score if at_once else None)

    def run(
        self, work: ClaimedOrder, *, order: Order | None = None, known: KnownAccount | None = None
    ) -> OrderResponse:
        """Bring a claimed order as far as it goes; with `order` it has just come, else it was left behind.

        Raises `TryLater` (no answer from the authority, nothing on record as answered) or `DeliveryInFlight` (claim lost).
        """
        try:
            if order is not None and work.status == ReviewStatus.SCORED:
                self.failpoints.hit(OrderFailpoint.AFTER_TAKE)
                self.failpoints.hit(OrderFailpoint.AFTER_SCORE)
            return self._advance(
                work, _OrderRun(order, known or KnownAccount(), time.monotonic() + self.budget_seconds)
            )
        except ClaimLost:
            raise DeliveryInFlight from None
        except SentinelError:
            raise
        except Exception as error:
            # The order keeps its state: the next try resumes from what is recorded.
            log.exception("order_failed", review_id=str(work.review_id))
            raise TryLater("the order could not be finished now; send it again") from error

    def hold(self, work: ClaimedOrder, tried: Attempts) -> None:
        """One try of a hold that is on record."""
        self.failpoints.hit(OrderFailpoint.BEFORE_SHOP)
        assert work.operation_id is not None
        answer = perform(
            self.shop, work.review, EffectKind.HOLD, work.operation_id, tried, under_way_seconds=self.under_way_seconds
        )
        self.failpoints.hit(OrderFailpoint.AFTER_SHOP)
        self.store.settle_hold(work, hold_row(work, answer, tried.times, random.random()))

    def _advance(self, work: ClaimedOrder, way: _OrderRun) -> OrderResponse:
        for _ in range(_ROUNDS):
            match work.status:
                case ReviewStatus.RECEIVED:
                    found: ClaimedOrder | OrderResponse = self._score(work, way)
                case ReviewStatus.SCORED | ReviewStatus.DECIDED | ReviewStatus.QUEUED:
                    found = self._ask(work, way)
                case ReviewStatus.STARTED:
                    found = self._execute(work, way)
                case _:
                    return order_response(work)
            if isinstance(found, OrderResponse):
                return found
            work = found
        raise TryLater("the order goes round in circles")

    def _score(self, work: ClaimedOrder, way: _OrderRun) -> ClaimedOrder:
        self.failpoints.hit(OrderFailpoint.AFTER_TAKE)
        began = time.monotonic()
        until = way.deadline - AFTER_SCORE_SECONDS
        order = as_received(way.order, work.received_at) if way.order else work.order
        enriched = self.enricher.enrich(order, self.lookups(work.source), until)
        after, row = self._scored(work, enriched, way.known, until, began)
        _mine(self.store.score(work, row))
        self.failpoints.hit(OrderFailpoint.AFTER_SCORE)
        return after

    def _scored(
        self, work: ClaimedOrder, enriched: Enriched, known: KnownAccount, until: float, began: float | None = None
    ) -> tuple[ClaimedOrder, dict[str, Any]]:
        """The order with its score, and what is stored of it."""
        began = time.monotonic() if began is None else began
        score = without_facts(
            self.scorer.score(enriched.order, known, until, enriched.signals),
            missing_facts(enriched.order, self.always(work.source)),
        )
        seconds = time.monotonic() - began
        metrics.scored(score, seconds)
        signals = [{"code": signal.code, "detail": signal.detail} for signal in score.signals]
        params, band = guard_params(work, score), score.band.value
        row = {
            "band": band, "model": score.model, "score_ms": round(seconds * 1000), "signals": signals,
            "guard_params": params,
        }  # fmt: skip
        after = replace(
            work, status=ReviewStatus.SCORED, band=band, model=score.model, signals=signals, guard_params=params
        )
        return after, row

    def _ask(self, work: ClaimedOrder, way: _OrderRun) -> ClaimedOrder | OrderResponse:
        """Ask the authority and store its answer; returns the order to go on with, or the response."""
        self.failpoints.hit(OrderFailpoint.BEFORE_GUARD)
        way.asked_at = time.monotonic()
        answer = self.authority.guard(work)
        self.failpoints.hit(OrderFailpoint.AFTER_GUARD)
        if isinstance(answer, (Unreachable, Rejected)):
            self._without_authority(work, answer)
        event = event_of(work, answer)
        if event is None:
            pause = seconds_until(answer.expires_at) if answer.status == "pending" else 30.0
            return self._put_off(work, answer.reason_code, pause)
        status, lane = status_after(work, event)
        row = row_of(work, answer, event)
        work = replace(
            work, status=status, lane=lane, decision=answer.decision, reason_code=row["reason_code"],
            operation_id=work.operation_id or uuid.UUID(answer.operation_id), decision_event_id=row["decision_event_id"],
            approval_id=row["approval_id"] or work.approval_id, start_id=row["start_id"] or work.start_id,
            due_at=row["due_at"] or work.due_at,
        )  # fmt: skip
        if status != ReviewStatus.STARTED:
            return self._end(work, event, row)
        way.is_first_try = True
        ships = self.ships_here and not self._is_late(way)
        return self._ship(work, event, row) if ships else self._intend(work, event, row)

    def _is_late(self, way: _OrderRun) -> bool:
        """Whether a person may have said by now that it was not executed."""
        return time.monotonic() > way.asked_at + self.act_seconds

    def _intend(self, work: ClaimedOrder, event: str, row: dict[str, Any]) -> ClaimedOrder:
        """The fulfilment is on record before the shop is asked."""
        _mine(self.store.decide(work, row))
        self.failpoints.hit(OrderFailpoint.AFTER_DECIDED)
        metrics.decided(work, event)
        return work

    def _ship(self, work: ClaimedOrder, event: str, row: dict[str, Any]) -> OrderResponse | ClaimedOrder:
        """Decided, fulfilled and settled in one commit; the order, where the simulated shop has something else to say."""
        assert work.operation_id is not None
        after = replace(work, status=ReviewStatus.FULFILLED)
        given, reference = order_response(after), str(work.operation_id)
        settlement = {
            "done": True, "reference": reference, "answered": given.as_json(),
            "told": told_to_shop(work.review, work.operation_id),
        }  # fmt: skip
        self.failpoints.hit(OrderFailpoint.BEFORE_SHOP)
        shipped = self.store.ship(work, row, settlement)
        _mine(shipped is not Shipped.NOT_MINE)
        self.failpoints.hit(OrderFailpoint.AFTER_DECIDED)
        metrics.decided(work, event)
        if shipped is Shipped.DECIDED:
            return work
        self.failpoints.hit(OrderFailpoint.AFTER_SHOP)
        self.failpoints.hit(OrderFailpoint.AFTER_SETTLED)
        metrics.settled(after)
        self.reports.soon(after, done=True, reference=reference, error=None)
        return given

    def _end(self, work: ClaimedOrder, event: str, row: dict[str, Any]) -> OrderResponse:
        """Queued or held: the response is stored with it."""
        given = order_response(work)
        if event != LaneEvent.NEEDS_ANALYST:
            row["alert"] = held_alert(work, row["reason_code"])
        _mine(self.store.decide(work, {**row, "answered": given.as_json()}))
        self.failpoints.hit(OrderFailpoint.AFTER_DECIDED)
        metrics.decided(work, event)
        if event == LaneEvent.NEEDS_ANALYST:
            return given
        self._hold_now(work)
        return given

    def _hold_now(self, work: ClaimedOrder) -> None:
        try:
            self.hold(work, Attempts())
        except SentinelError as error:
            log.warning("hold_not_recorded", review_id=str(work.review_id), error=error.detail)

    def _execute(self, work: ClaimedOrder, way: _OrderRun) -> OrderResponse | ClaimedOrder:
        """Have the shop fulfil what is started, once."""
        assert work.operation_id is not None
        tried = Attempts()
        if not way.is_first_try:
            # The process that left it may have asked the shop: then it is looked at first.
            tried = Attempts(max(1, work.tries or 0), work.seconds_since_try or 0.0)
            way.asked_at = time.monotonic()
            if (other := self._not_started(work)) is not None:
                return other
        self.failpoints.hit(OrderFailpoint.BEFORE_SHOP)
        if self._is_late(way):
            return self._put_off(work, "the time to act on its start is over", 1.0)
        answer = perform(
            self.shop, work.review, EffectKind.FULFIL, work.operation_id, tried, under_way_seconds=self.under_way_seconds
        )  # fmt: skip
        self.failpoints.hit(OrderFailpoint.AFTER_SHOP)
        if isinstance(answer, NoAnswer):
            pause = max(pause_seconds(work.attempts, random.random()), self.under_way_seconds)
            return self._put_off(
                work, answer.detail, pause, tried=True, alert=late_alert(work, "fulfil", tried.times, answer.detail)
            )
        return self._settle(work, answer)

    def _not_started(self, work: ClaimedOrder) -> OrderResponse | ClaimedOrder | None:
        """What to do with an order left STARTED that the authority does not have as started by it; None: it has."""
        answer = self.authority.guard(work)
        if isinstance(answer, (Unreachable, Rejected)):
            self._without_authority(work, answer)
        if is_started(answer):
            return None
        if is_settled_elsewhere(answer):
            return self._ended_elsewhere(work, "started" if answer.resolution is None else answer.resolution)
        # Surely nothing happened: it is asked again, as one that is not started.
        _mine(self.store.refuse_start(work, answer.reason_code))
        return replace(work, status=ReviewStatus.DECIDED if work.lane == Lane.LOW else ReviewStatus.QUEUED)

    def _ended_elsewhere(self, work: ClaimedOrder, how: str) -> OrderResponse:
        """An order left STARTED that may not be fulfilled any more: what the shop did before is reported, else a person looks."""
        assert work.operation_id is not None
        found = look(self.shop, work.review, EffectKind.FULFIL, work.operation_id)
        if isinstance(found, NoAnswer):
            return self._put_off(work, found.detail, pause_seconds(work.attempts, random.random()))
        why = "a person said that it was not executed" if how == "not_executed" else "started or settled elsewhere"
        return self._settle(work, found if isinstance(found, Settled) else Refused(why))

    def _settle(self, work: ClaimedOrder, answer: Settled | Refused) -> OrderResponse:
        done = isinstance(answer, Settled)
        after = replace(work, status=ReviewStatus.FULFILLED if done else ReviewStatus.SHOP_REFUSED)
        given = order_response(after)
        row: dict[str, Any] = {"done": done, "answered": given.as_json()}
        if isinstance(answer, Settled):
            row["reference"] = answer.reference[:200]
        else:
            row |= {"error": answer.reason[:500], "alert": refused_alert(work, "fulfil", answer.reason)}
        _mine(self.store.settle(work, row))
        self.failpoints.hit(OrderFailpoint.AFTER_SETTLED)
        metrics.settled(after)
        if isinstance(answer, Settled):
            # A refusal ends nothing: a person may have the shop asked again, and it is reported when nobody may.
            self.reports.soon(after, done=True, reference=row["reference"], error=None)
        return given

    def _put_off(
        self, work: ClaimedOrder, why: str, pause: float, *, alert: dict[str, Any] | None = None, tried: bool = False
    ) -> OrderResponse:
        given = order_response(work)
        row = {"error": why[:500], "pause_seconds": pause, "tried": tried, "answered": given.as_json(), "alert": alert}
        _mine(self.store.put_off(work, row))
        metrics.PUT_OFF.labels(work.status).inc()
        return given

    def _without_authority(self, work: ClaimedOrder, error: Unreachable | Rejected) -> NoReturn:
        """Nothing is answered on record: the sender comes again, or the background does. Raises `TryLater`."""
        row: dict[str, Any] = {
            "error": error.detail[:500],
            "pause_seconds": pause_seconds(work.attempts, random.random()),
        }
        if isinstance(error, KeyConflict):
            row["alert"] = held_alert(work, "the authority knows another order under this key") | {
                "occasion": "key_conflict"
            }
        if isinstance(error, Rejected):
            log.error("authority_refused_question", review_id=str(work.review_id), error=error.detail)
        _mine(self.store.put_off(work, row))
        metrics.NO_AUTHORITY.inc()
        raise TryLater("no decision can be given now; send it again")


@dataclass(slots=True)
class _OrderRun:
    """What one run knows besides the order's row."""

    order: Order | None
    known: KnownAccount
    deadline: float
    asked_at: float = 0.0
    """When the authority was last asked to start it (monotonic)."""
    is_first_try: bool = False
    """This run has recorded the fulfilment, so no other process can have asked the shop."""


def _mine(still: bool) -> None:
    if not still:
        raise ClaimLost
