"""A shop behind HTTP on loopback that counts what it really ships and holds, with faults on request; and reviews for it.

A naive one knows no key again: it ships whenever it is asked.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

from tests.effects_server import problem
from tests.scripted_server import Asked, Script, ScriptedServer
from worker.order_review.model import Band, Lane, Review, ReviewStatus, Signal


def review(order_id: str = "o-1", *, lane: Lane = Lane.LOW, source: str = "demo") -> Review:
    """A decided review of 20.00 EUR."""
    return Review(
        uuid.uuid4(), source, order_id, 2000, "EUR", ReviewStatus.STARTED, 1, lane=lane, band=Band.LOW,
        signals=(Signal("country_mismatch", "GB to NG"),), operation_id=uuid.uuid4(),
    )  # fmt: skip


class ShopServer:
    """`faults`: (method, does it first, script), each used once in order; `forever` instead of one for every call of its method."""

    def __init__(self, *, naive: bool = False) -> None:
        self.naive = naive
        self.shipped: Counter[str] = Counter()
        self.held: Counter[str] = Counter()
        self.keys: dict[tuple[str, str], str] = {}
        self.bodies: list[dict[str, Any]] = []
        self.faults: deque[tuple[str, bool, Script]] = deque()
        self.forever: tuple[str, bool, Script] | None = None
        self.late: list[Asked] = []
        self.http = ScriptedServer()
        self.http.script = self._answer
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """Where it listens."""
        return self.http.url

    @contextmanager
    def running(self) -> Iterator[ShopServer]:
        """Listens inside."""
        with self.http.running():
            yield self

    def _answer(self, asked: Asked) -> None:
        fault = self._fault(asked.method)
        if fault is None:
            return self._act(asked)
        if fault[1]:
            self.do(asked)
        return fault[2](asked)

    def _fault(self, method: str) -> tuple[str, bool, Script] | None:
        with self._lock:
            if self.forever is not None and self.forever[0] == method:
                return self.forever
            if self.faults and self.faults[0][0] == method:
                return self.faults.popleft()
        return None

    def do(self, asked: Asked) -> None:
        """What it is asked for; a slow shop does it when its caller has given up."""
        if asked.method != "POST":
            return
        order, verb = asked.path.split("/")[-2:]
        with self._lock:
            self.bodies.append(asked.json)
            counter = self.shipped if verb == "fulfill" else self.held
            if self.naive or (unquote(order), verb) not in self.keys:
                counter[unquote(order)] += 1
            self.keys.setdefault((unquote(order), verb), asked.headers["idempotency-key"])

    def _act(self, asked: Asked) -> None:
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
