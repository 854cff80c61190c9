"""Sends orders to an intake as a source would: signed, at a given rate, with retries.

No answer, 409, 429 and 503 are retried, after `Retry-After` (at most 5 s) if there is one; other answers are final.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from threading import Event, Lock, local
from typing import Any
from urllib.parse import quote

import requests

from worker.orders.sources import OrderSource

ASK_AGAIN = frozenset({409, 429, 503})
MOST_TRIES = 60
_LONGEST_PAUSE_SECONDS = 5.0
REPLAYED = "X-Sentinel-Idempotent-Replay"
HAS_LANE = (200, 202)
NO_LANE = "no lane"


@dataclass(frozen=True, slots=True)
class ReplayedDelivery:
    """One delivery to send: an order's id and payload. Equal ones are repeated deliveries of one order."""

    order_id: str
    body: bytes


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """The outcome of one delivery. `seconds` is its last attempt alone; `asked_again` counts the retried answers by
    status; `status` 0 means no answer at all."""

    order_id: str
    status: int
    lane: str
    is_replay: bool
    seconds: float
    asked_again: Counter[int]


@dataclass(slots=True)
class ReplaySummary:
    """The outcomes of all deliveries of a replay, and its duration."""

    answers: list[DeliveryResult] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def lanes(self) -> dict[str, str]:
        """Order id → its lane; "different lanes" where its deliveries got different ones, which must not happen."""
        found: dict[str, str] = {}
        for answer in self.answers:
            lane = found.setdefault(answer.order_id, answer.lane)
            if NO_LANE in (lane, answer.lane):
                found[answer.order_id] = lane if answer.lane == NO_LANE else answer.lane
            elif lane != answer.lane:
                found[answer.order_id] = "different lanes"
        return found

    @property
    def is_good(self) -> bool:
        """Whether anything was sent and every order got exactly one lane."""
        return bool(self.answers) and not {NO_LANE, "different lanes"} & set(self.lanes.values())

    def count(self, status: int) -> int:
        """How often a status was answered, including answers that were retried."""
        return sum(answer.asked_again[status] + (answer.status == status) for answer in self.answers)

    def as_json(self) -> dict[str, Any]:
        """The summary for scripts; latencies in milliseconds."""
        return {
            "orders": len(self.lanes), "deliveries": len(self.answers), "seconds": round(self.seconds, 3),
            "lanes": dict(sorted(Counter(self.lanes.values()).items())),
            "statuses": {str(k): n for k, n in sorted(Counter(answer.status for answer in self.answers).items())},
            "replays": sum(answer.is_replay for answer in self.answers), "in_flight": self.count(409),
            "other_body": self.count(422), "rate_limited": self.count(429), "unavailable": self.count(503),
            "latency_ms": percentiles([a.seconds for a in self.answers if a.status in HAS_LANE and not a.is_replay]),
            "replay_latency_ms": percentiles([a.seconds for a in self.answers if a.is_replay]),
        }  # fmt: skip


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """p50, p95, p99 and the maximum, in milliseconds."""
    ordered = sorted(seconds)
    if not ordered:
        return {}
    places = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
    return {
        name: round(ordered[min(len(ordered) - 1, int(part * len(ordered)))] * 1000, 1) for name, part in places.items()
    }


class Sender:
    """Sends to one source of the intake at `url`. Thread-safe."""

    def __init__(
        self,
        url: str,
        source: OrderSource,
        *,
        timeout_seconds: float = 35.0,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        self._url = f"{url.rstrip('/')}/webhooks/{quote(source.name, safe='')}/orders"
        self._source, self._timeout_seconds = source, timeout_seconds
        self._stopping = Event()
        self._pause = pause or self._stopping.wait
        self._own = local()

    def send(self, delivery: ReplayedDelivery) -> DeliveryResult:
        """Send one delivery until it gets a final answer, at most `MOST_TRIES` times, or until `stop`. Never raises."""
        again: Counter[int] = Counter()
        delivery_id = f"msg_{uuid.uuid4().hex}"
        for attempt in range(1, MOST_TRIES + 1):
            began = time.perf_counter()
            reply = self._post(delivery, delivery_id)
            seconds = time.perf_counter() - began
            status = 0 if reply is None else reply.status_code
            if (status != 0 and status not in ASK_AGAIN) or attempt == MOST_TRIES or self._stopping.is_set():
                break
            again[status] += 1
            self._pause(_retry_after(reply))
        is_replay = reply is not None and reply.headers.get(REPLAYED) == "true"
        return DeliveryResult(delivery.order_id, status, _lane(reply), is_replay, seconds, again)

    def stop(self) -> None:
        """End the pauses between attempts: each delivery in flight gets the answer of its present attempt."""
        self._stopping.set()

    def _post(self, delivery: ReplayedDelivery, delivery_id: str) -> requests.Response | None:
        # Sign each attempt again: a signature with a time in it expires.
        headers = self._source.signing.sign(delivery.body, datetime.now(UTC), delivery_id)
        headers["Content-Type"] = "application/json"
        try:
            return self._session().post(
                self._url, data=delivery.body, headers=headers, timeout=self._timeout_seconds, allow_redirects=False
            )
        except requests.RequestException:
            return None

    def _session(self) -> requests.Session:
        if not hasattr(self._own, "session"):
            self._own.session = requests.Session()
            self._own.session.trust_env = False
        session: requests.Session = self._own.session
        return session


def _retry_after(reply: requests.Response | None) -> float:
    text = "" if reply is None else reply.headers.get("Retry-After", "")
    seconds = float(text) if text.isascii() and text.isdigit() else 0.5
    return min(max(seconds, 0.05), _LONGEST_PAUSE_SECONDS)


def _lane(reply: requests.Response | None) -> str:
    if reply is None or reply.status_code not in HAS_LANE:
        return NO_LANE
    try:
        found = reply.json()
    except ValueError:
        return NO_LANE
    lane = found.get("lane") if isinstance(found, dict) else None
    return lane if isinstance(lane, str) else NO_LANE


def replay(
    deliveries: Iterable[ReplayedDelivery], send: Callable[[ReplayedDelivery], DeliveryResult], *, per_second: float, threads: int,
    on_answer: Callable[[DeliveryResult], None] = lambda answer: None, now: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep, stop: Callable[[], None] = lambda: None,
) -> ReplaySummary:  # fmt: skip
    """Send all deliveries, starting at most `per_second` each second, with at most `threads` in flight at once.

    Interrupted (Ctrl-C), it sends none of those that are not in flight, calls `stop` and waits for the others.
    """
    tally, lock, began = ReplaySummary(), Lock(), now()

    def one(delivery: ReplayedDelivery) -> None:
        answer = send(delivery)
        with lock:
            tally.answers.append(answer)
            on_answer(answer)

    worker_pool = ThreadPoolExecutor(threads)
    try:
        for number, delivery in enumerate(deliveries):
            if (left := began + number / per_second - now()) > 0:
                pause(left)
            worker_pool.submit(one, delivery)
        worker_pool.shutdown()
    except BaseException:
        stop()
        worker_pool.shutdown(cancel_futures=True)
        raise
    tally.seconds = now() - began
    return tally
