"""Which shops are silent, without connection or without an answer in time: one call at a time finds out whether
such a shop answers again, and all other orders wait without a call.

Each such call takes its whole time limit. Without this, the orders of one shop that is down would hold up those of every
other shop, in the threads of deliveries and in the background task. A shop that is only slow is not silent: it answers
the look that follows an effect.
"""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from sentinel.platform.outbound.failures import FailureKind
from worker.orders.order import Review
from worker.orders.shop import Shop, ShopStatus
from worker.outbound.effects import EffectResult, NoAnswer

SILENT_AFTER, SILENT_SECONDS = 3, 10.0
"""A shop is silent after this many calls in a row and this long without connection or answer; then one call is made each so often."""
_SILENCE = (FailureKind.NOT_SENT, FailureKind.TIMEOUT)
SILENT = NoAnswer("the shop did not answer other calls just now")

Answer = TypeVar("Answer")


@dataclass(slots=True)
class _Heard:
    """What is known of one shop; instants of the clock."""

    unanswered: int = 0
    answered_at: float = -math.inf
    next_call: float = -math.inf

    def is_silent(self, now: float) -> bool:
        return self.unanswered >= SILENT_AFTER and now >= self.answered_at + SILENT_SECONDS


class SilentShops:
    """Counted by source, because each source may have a shop of its own; with `one_shop` all of them have the same. Thread-safe."""

    def __init__(self, now: Callable[[], float] = time.monotonic, *, one_shop: bool = False) -> None:
        self._now, self._one_shop = now, one_shop
        self._lock = threading.Lock()
        self._heard: dict[str, _Heard] = {}

    def may_be_asked(self, source: str) -> bool:
        """Whether calls to this source's shop are made now; of a silent one True for one caller at a time."""
        with self._lock:
            now, heard = self._now(), self._of(source)
            if not heard.is_silent(now):
                return True
            if now < heard.next_call:
                return False
            heard.next_call = now + SILENT_SECONDS
            return True

    def is_silent(self, source: str) -> bool:
        """Whether this source's shop is silent, so that an attempt of an order costs it no call but one each `SILENT_SECONDS`."""
        with self._lock:
            return self._of(source).is_silent(self._now())

    def hear(self, source: str, answer: Answer) -> Answer:
        """Count the result of one call to this source's shop, and return it."""
        with self._lock:
            now, heard = self._now(), self._of(source)
            if isinstance(answer, NoAnswer) and answer.detail in _SILENCE:
                heard.unanswered, heard.next_call = heard.unanswered + 1, now + SILENT_SECONDS
            else:
                heard.unanswered, heard.answered_at = 0, now
        return answer

    def _of(self, source: str) -> _Heard:
        return self._heard.setdefault("" if self._one_shop else source, _Heard())


class HeardShop:
    """The shop of one source, each of whose answers is counted."""

    def __init__(self, shop: Shop, source: str, silent_shops: SilentShops) -> None:
        self.name = shop.name
        self._shop, self._source, self._silent_shops = shop, source, silent_shops

    def fulfil(self, review: Review, operation_id: uuid.UUID) -> EffectResult:
        """As the shop's."""
        return self._silent_shops.hear(self._source, self._shop.fulfil(review, operation_id))

    def hold(self, review: Review, operation_id: uuid.UUID) -> EffectResult:
        """As the shop's."""
        return self._silent_shops.hear(self._source, self._shop.hold(review, operation_id))

    def look(self, review: Review) -> ShopStatus | NoAnswer:
        """As the shop's."""
        return self._silent_shops.hear(self._source, self._shop.look(review))
