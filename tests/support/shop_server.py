"""Shops that count what they really ship and hold, one behind HTTP on loopback and one in this process; reviews for them."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from urllib.parse import unquote

from tests.support.recording_server import RecordingServer, problem
from tests.support.scripted_server import Asked
from worker.orders.order import Band, Lane, Review, ReviewStatus, Signal
from worker.orders.shop import ShopStatus
from worker.outbound.effects import EffectRefused, EffectResult, NoAnswer, Settled


def review(order_id: str = "o-1", *, lane: Lane = Lane.LOW, source: str = "demo") -> Review:
    """A decided review of 20.00 EUR."""
    return Review(
        uuid.uuid4(), source, order_id, 2000, "EUR", ReviewStatus.STARTED, 1, lane=lane, band=Band.LOW,
        signals=(Signal("country_mismatch", "GB to NG"),), operation_id=uuid.uuid4(),
    )  # fmt: skip


class ShopServer(RecordingServer):
    """Ships and holds by order; which order went which way, and under which key, it keeps."""

    def __init__(self, *, naive: bool = False) -> None:
        super().__init__(naive=naive)
        self.shipped: Counter[str] = Counter()
        self.held: Counter[str] = Counter()
        self.keys: dict[tuple[str, str], str] = {}

    def do(self, asked: Asked) -> None:
        if asked.method != "POST":
            return
        order, verb = asked.path.split("/")[-2:]
        with self.lock:
            self.bodies.append(asked.json)
            counter = self.shipped if verb == "fulfill" else self.held
            if self.naive or (unquote(order), verb) not in self.keys:
                counter[unquote(order)] += 1
            self.keys.setdefault((unquote(order), verb), asked.headers["idempotency-key"])

    def act(self, asked: Asked) -> None:
        if asked.method == "GET":
            return self._tell(asked, unquote(asked.path.rpartition("/")[2]))
        order, verb = (unquote(part) for part in asked.path.split("/")[-2:])
        other = "hold" if verb == "fulfill" else "fulfill"
        key = self.keys.get((order, verb))
        if (order, other) in self.keys or (key not in (None, asked.headers["idempotency-key"]) and not self.naive):
            return problem(422, "it went another way")(asked)
        self.do(asked)
        return asked.answer(201, self.yes(verb))

    def _tell(self, asked: Asked, order: str) -> None:
        for verb, status in (("fulfill", "fulfilled"), ("hold", "held")):
            if key := self.keys.get((order, verb)):
                return asked.say({"status": status, "operation_id": key, "reference": f"S-{order}"})
        return problem(404)(asked)

    @staticmethod
    def yes(verb: str = "fulfill") -> bytes:
        """The answer that says done."""
        return json.dumps({"status": "fulfilled" if verb == "fulfill" else "held", "reference": "S-1"}).encode()


class FlakyShop:
    """Says what it is told to say, and counts what it really does."""

    name = "flaky"

    def __init__(self, *script: str) -> None:
        self.script, self.done = list(script), list[tuple[str, str]]()

    def fulfil(self, review: Review, operation_id: uuid.UUID) -> EffectResult:
        """As scripted: down, late (done, but not said), refuse, else done."""
        return self._do("fulfilled", review, operation_id)

    def hold(self, review: Review, operation_id: uuid.UUID) -> EffectResult:
        """The same."""
        return self._do("held", review, operation_id)

    def look(self, review: Review) -> ShopStatus | NoAnswer:
        """What it really did."""
        if self.script and self.script[0] == "blind":
            self.script.pop(0)
            return NoAnswer("blind")
        status = {order: status for status, order in self.done}.get(review.order_id, "open")
        return ShopStatus(status)

    def _do(self, status: str, review: Review, operation_id: uuid.UUID) -> EffectResult:
        how = self.script.pop(0) if self.script else "ok"
        if how == "refuse":
            return EffectRefused("cancelled by the customer")
        if how in ("ok", "late"):
            self.done.append((status, review.order_id))
        return Settled(str(operation_id)) if how == "ok" else NoAnswer(how)
