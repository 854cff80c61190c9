"""The sender: threads that each claim a receiver, send it the events after its cursor, and move the cursor.

Delivery is at least once, and for each receiver in the feed's order: the cursor passes an event only after its receiver
accepted it or the time allowed is over. An event that is sent twice has the same id. A failing receiver is retried with
backoff and does not delay the others.
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
from sentinel.platform.ongoing_failures import OngoingFailures
from sentinel.platform.outbound.failures import UNREADABLE_EVENT
from sentinel.platform.tracing import Tracing, mark_failed

POLL_SECONDS = 0.5
TURN_SECONDS = 20.0
"""How long one receiver is served before others that are due get their turn."""
SERVED_EVERY_SECONDS, UNSERVED_SECONDS = 20.0, 7 * 86400
"""How often a sender records which receivers its settings define, and how long after the last record a receiver ends:
long, because a sender may be down."""
SETTLED_SECONDS = 600.0
"""How long a sender runs before it ends receivers: other senders, with other settings, must have recorded theirs by then."""
PORTION = 200
"""Events read at once."""

EVENTS = Counter("sentinel_export_events", "Events handed to receivers, by kind of receiver and result.", ["receiver", "result"])  # fmt: skip
BEHIND = Gauge("sentinel_export_behind", "Events of tenants' feeds that receivers in use have not passed.")
DEAD_LETTERS = Gauge("sentinel_export_dead_letters", "Events that were given up and are not delivered since.")
log = structlog.get_logger("sentinel.export")


def _is_wanted(event: FeedEvent, types: Sequence[str]) -> bool:
    """Whether a receiver of these types gets the event; also one that cannot be read, which then fails as it is sent."""
    try:
        return bool(messages_of(event, types))
    except Exception:
        return True


class EventSender:
    """Serves the receivers of one database. Several senders, on one or more machines, may share them."""

    def __init__(
        self, deliveries: Deliveries, receivers: Mapping[str, Receiver], *, spread: Callable[[], float] = random.random,
        tracing: Tracing | None = None,
    ) -> None:  # fmt: skip
        self._deliveries, self._receivers, self._spread, self._tracing = deliveries, receivers, spread, tracing
        self._failures = OngoingFailures()
        self._began = time.monotonic()
        self._served_at = -math.inf
        self._resending, self._resent_to = threading.Lock(), uuid.UUID(int=0)

    def run(self, stop: threading.Event, threads: int) -> None:
        """Serve until `stop` is set; returns once the calls to receivers in progress have ended."""
        workers = [
            threading.Thread(target=self._work, args=(number, stop), name=f"sender-{number}", daemon=True)
            for number in range(threads)
        ]
        for worker in workers:
            worker.start()
        while not stop.wait(POLL_SECONDS):
            self._count()
            self._keep_served()
        for worker in workers:
            worker.join()

    def _work(self, number: int, stop: threading.Event) -> None:
        while not stop.is_set():
            busy = False
            # An error must not end the thread: the lease expires, and the cursor has not moved.
            with self._failures.logged(log, "sending", number):
                busy = self.round(stop)
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
        """Record periodically which receivers the settings define, and end those that no sender serves any more."""
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
            log.warning("receivers_ended", receivers=ended, cause="no running sender has a setting for them")

    def round(self, stop: threading.Event | None = None) -> bool:
        """Resend one requested dead letter, and serve one receiver; return whether there was either. Raises `EngineUnavailable`."""
        again = self._resend()
        claim = self._deliveries.claim()
        if claim is not None:
            self._serve(claim, stop or threading.Event())
        return again or claim is not None

    def _serve(self, claim: Claim, stop: threading.Event) -> None:
        """Send all events after the cursor, those of the global feed first, for at most TURN_SECONDS."""
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
        """Send these events until the turn is over, at most `at_once` per call. Returns None once the claim is released or lost."""
        receiver, held = self._receivers[claim.kind], claim
        wanted = [event for event in events if _is_wanted(event, claim.event_types)]
        first, most = 0, receiver.at_once
        while first < len(wanted):
            if is_over():
                return held
            portion = wanted[first : first + most]
            if receiver.needs_present_state:
                portion = [self._deliveries.event_at(feed, one.position, [one.kind]) or one for one in portion]
            error = self._send(held, portion)
            if error == UNREADABLE_EVENT and len(portion) > 1:
                most = 1  # only the event that cannot be read fails
                continue
            first += len(portion)
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
        """Send events, within a span where tracing is on. Returns None when they were accepted, else what went wrong."""
        if self._tracing is None:
            return self._sent(endpoint, events)
        about = {
            "sentinel.receiver": endpoint.kind, "sentinel.endpoint_id": str(endpoint.endpoint_id),
            "sentinel.position": events[0].position, "sentinel.events": len(events),
        }  # fmt: skip
        with self._tracing.calling("sentinel.export", about) as span:
            error = self._sent(endpoint, events)
            if error is not None:
                mark_failed(span, error)
        return error

    def _sent(self, endpoint: Claim | Resend, events: Sequence[FeedEvent]) -> str | None:
        try:
            return self._receivers[endpoint.kind].send(endpoint, events)
        except Exception:
            # A failed attempt like any other: with the event's backoff, and a dead letter in the end. Without them the
            # receiver would get nothing behind this event, ever.
            log.exception("event_unreadable", endpoint_id=str(endpoint.endpoint_id), position=events[0].position)
            return UNREADABLE_EVENT

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
        """Make one attempt to send a dead letter that is to be sent again; return whether there was one.

        Only one thread at a time does so: where their receiver hangs, thousands of them must not hold up the others.
        """
        if not self._resending.acquire(blocking=False):
            return False
        try:
            letter = self._deliveries.take_resend(self._resent_to)
            if letter is None:
                return False
            self._resent_to = letter.endpoint_id
            self._send_again(letter)
            return True
        finally:
            self._resending.release()

    def _send_again(self, letter: Resend) -> None:
        event = self._deliveries.event_at(letter.feed_tenant_id, letter.position, kinds_of(letter.event_types))
        error = self._send(letter, [event]) if event else "the event was not found"
        EVENTS.labels(letter.kind, "failed" if error else "sent").inc()
        if error == GONE and letter.kind == "webhook":
            self._deliveries.disable_gone(letter)
        self._deliveries.mark(letter, error)
        log.info("dead_letter_sent_again", endpoint_id=str(letter.endpoint_id), position=letter.position, error=error)
