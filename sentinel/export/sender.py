"""The sender: threads that each take a receiver, hand it what its cursor has not passed, and move the cursor after each answer.

At least once, and in the feed's order for each receiver: an event is behind the cursor until its receiver took it or the time
allowed was over. What is sent twice has the same id. A failing receiver is tried again after growing pauses and holds up
nobody else.
"""

from __future__ import annotations

import math
import random
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence

import structlog
from prometheus_client import Counter, Gauge

from sentinel.core.errors import SentinelError
from sentinel.export.cloud_events import GLOBAL, FeedEvent, kinds_of, messages_of
from sentinel.export.deliveries import Claim, Deliveries, Resend
from sentinel.export.receivers import GONE, Receiver
from sentinel.platform.tracing import Tracing, mark_failed

POLL_SECONDS = 0.5
TURN_SECONDS = 20.0
"""How long one receiver is served before others that wait have their turn."""
SERVED_EVERY_SECONDS, UNSERVED_SECONDS = 20.0, 7 * 86400
"""How often a sender says which receivers it has by its settings, and after how long without one a receiver ends: a sender may be down."""
SETTLED_SECONDS = 600.0
"""A sender that has run for so long has let the others, whose settings differ, say theirs."""
PORTION = 200
"""Events read at once."""

EVENTS = Counter("sentinel_export_events", "Events handed to receivers, by kind of receiver and result.", ["receiver", "result"])  # fmt: skip
BEHIND = Gauge("sentinel_export_behind", "Events of tenants' feeds that receivers in use have not passed.")
DEAD_LETTERS = Gauge("sentinel_export_dead_letters", "Events that were given up and are not delivered since.")
log = structlog.get_logger("sentinel.export")


class EventSender:
    """Serves the receivers of one database. Several senders, here or elsewhere, share them."""

    def __init__(
        self, deliveries: Deliveries, receivers: Mapping[str, Receiver], *, spread: Callable[[], float] = random.random,
        tracing: Tracing | None = None,
    ) -> None:  # fmt: skip
        self._deliveries, self._receivers, self._spread, self._tracing = deliveries, receivers, spread, tracing
        self._began = time.monotonic()
        self._served_at = -math.inf

    def run(self, stop: threading.Event, threads: int) -> None:
        """Serve until `stop` is set; ends within a call to a receiver."""
        workers = [
            threading.Thread(target=self._work, args=(stop,), name=f"sender-{number}", daemon=True)
            for number in range(threads)
        ]
        for worker in workers:
            worker.start()
        while not stop.wait(POLL_SECONDS):
            self._count()
            self._keep_served()
        for worker in workers:
            worker.join()

    def _work(self, stop: threading.Event) -> None:
        away = False
        while not stop.is_set():
            try:
                busy = self.round(stop)
                away = False
            except SentinelError as error:
                if not away:
                    log.warning("sending_postponed", cause=error.detail)
                busy, away = False, True
            except Exception:
                # A round that fails must not end the thread: the claim runs out, and the cursor has not moved.
                log.exception("sending_failed")
                busy = False
            if not busy:
                stop.wait(POLL_SECONDS)

    def _count(self) -> None:
        try:
            counts = self._deliveries.counts()
        except SentinelError:
            return
        BEHIND.set(counts.behind)
        DEAD_LETTERS.set(counts.dead_letters)

    def _keep_served(self) -> None:
        """Say from time to time what is served by setting, and end what no sender serves any more."""
        now = time.monotonic()
        if now - self._served_at < SERVED_EVERY_SECONDS:
            return
        self._served_at = now
        unserved = UNSERVED_SECONDS if now - self._began >= SETTLED_SECONDS else None
        try:
            ended = self._deliveries.keep_served(unserved)
        except SentinelError:
            return
        if ended:
            log.warning("receivers_ended", receivers=ended, cause="no sender has their setting")

    def round(self, stop: threading.Event | None = None) -> bool:
        """Try a dead letter that somebody asked for, and serve one receiver; whether there was any. Raises `EngineUnavailable`."""
        again = self._resend()
        claim = self._deliveries.claim()
        if claim is not None:
            self._serve(claim, stop or threading.Event())
        return again or claim is not None

    def _serve(self, claim: Claim, stop: threading.Event) -> None:
        """Everything behind the cursor, what concerns every tenant first, for at most a turn."""
        until = time.monotonic() + TURN_SECONDS

        def is_over() -> bool:
            return stop.is_set() or time.monotonic() > until

        kinds = kinds_of(claim.event_types)
        held: Claim | None = claim
        for feed in (GLOBAL, claim.tenant_id):
            more = True
            while held is not None and more and not is_over():
                after = held.global_position if feed == GLOBAL else held.position
                events = self._deliveries.events_after(feed, after, kinds, PORTION)
                held = self._deliver(held, feed, events, is_over) if events else held
                more = len(events) == PORTION
        if held is not None:
            self._deliveries.release(held)

    def _deliver(
        self, claim: Claim, feed: uuid.UUID, events: Sequence[FeedEvent], is_over: Callable[[], bool]
    ) -> Claim | None:
        """Hand these over until the turn is over, as many at once as the receiver takes; None once the claim is given back or another's."""
        receiver, held = self._receivers[claim.kind], claim
        wanted = [event for event in events if messages_of(event, claim.event_types)]
        for first in range(0, len(wanted), receiver.at_once):
            if is_over():
                return held
            portion = wanted[first : first + receiver.at_once]
            error = self._send(held, portion)
            EVENTS.labels(claim.kind, "failed" if error else "sent").inc(len(portion))
            if error is not None:
                self._failed(held, feed, portion, error)
                return None
            moved = self._deliveries.advance(held, feed, portion[-1].position, delivered=True)
            if moved is None:
                return None
            held = moved
        last = events[-1].position
        if not wanted or wanted[-1].position < last:
            return self._deliveries.advance(held, feed, last, delivered=False)
        return held

    def _send(self, endpoint: Claim | Resend, events: Sequence[FeedEvent]) -> str | None:
        """Hand events over, in a span where spans are wanted."""
        receiver = self._receivers[endpoint.kind]
        if self._tracing is None:
            return receiver.send(endpoint, events)
        about = {
            "sentinel.receiver": endpoint.kind, "sentinel.endpoint_id": str(endpoint.endpoint_id),
            "sentinel.position": events[0].position, "sentinel.events": len(events),
        }  # fmt: skip
        with self._tracing.calling("sentinel.export", about) as span:
            error = receiver.send(endpoint, events)
            if error is not None:
                mark_failed(span, error)
        return error

    def _failed(self, claim: Claim, feed: uuid.UUID, events: Sequence[FeedEvent], error: str) -> None:
        about = {
            "endpoint_id": str(claim.endpoint_id),
            "receiver": claim.kind,
            "position": events[0].position,
            "error": error,
        }
        if error == GONE and claim.kind == "webhook":
            self._deliveries.disable_gone(claim)
            log.warning("webhook_gone", **about)
            return
        is_dead = self._deliveries.fail(claim, feed, events, error, self._spread())
        log.warning("events_given_up" if is_dead else "events_not_sent", attempt=claim.attempts + 1, **about)

    def _resend(self) -> bool:
        """One try with a dead letter that somebody wants sent again."""
        letter = self._deliveries.take_resend()
        if letter is None:
            return False
        event = self._deliveries.event_at(letter.feed_tenant_id, letter.position, kinds_of(letter.event_types))
        error = self._send(letter, [event]) if event else "the event is not there"
        EVENTS.labels(letter.kind, "failed" if error else "sent").inc()
        if error == GONE and letter.kind == "webhook":
            self._deliveries.disable_gone(letter)
        self._deliveries.mark(letter, error)
        log.info("dead_letter_sent_again", endpoint_id=str(letter.endpoint_id), position=letter.position, error=error)
        return True
