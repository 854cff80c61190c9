"""A shop behind HTTP on loopback that counts what it really ships and holds; and reviews for it."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from urllib.parse import unquote

from tests.recording_server import RecordingServer, problem
from tests.scripted_server import Asked
from worker.order_review.model import Band, Lane, Review, ReviewStatus, Signal


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
