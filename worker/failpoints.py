"""Failpoints: named places where a test can make the worker crash, stop or sleep. Two environment variables arm one.

Set `SENTINEL_FAILPOINT=name:action[:nth]` and `SENTINEL_ALLOW_FAILPOINTS=1`; the nth pass (default the first) of the
place kills, raises, stops or sleeps. Besides the places below, the workflow's runner passes `step_<name of a step>`
just before and just after that step of a batch. With the first variable alone the program refuses to start, so that a
leftover of a test is noticed in production.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Collection
from enum import StrEnum

from worker.refunds.workflow.graph import StepName


class Failpoint(StrEnum):
    """Every place of the refund worker, in the order in which a row passes them."""

    AFTER_CLAIM = "after_claim"
    AFTER_FACTS = "after_facts"
    BEFORE_GUARD = "before_guard"
    AFTER_GUARD = "after_guard"
    AFTER_ALLOWED_RECORDED = "after_allowed_recorded"
    BEFORE_START = "before_start"
    AFTER_START = "after_start"
    BEFORE_EXECUTION = "before_execution"
    AFTER_EXECUTION_COMMIT = "after_execution_commit"
    BEFORE_REPORT = "before_report"
    AFTER_REPORT = "after_report"
    AFTER_ACK = "after_ack"


class OrderFailpoint(StrEnum):
    """Every place of the order intake, in the order in which an order passes them."""

    AFTER_TAKE = "after_take"
    AFTER_SCORE = "after_score"
    BEFORE_GUARD = "before_guard"
    AFTER_GUARD = "after_guard"
    AFTER_DECIDED = "after_decided"
    BEFORE_SHOP = "before_shop"
    AFTER_SHOP = "after_shop"
    AFTER_SETTLED = "after_settled"
    BEFORE_REPORT = "before_report"
    AFTER_REPORT = "after_report"
    AFTER_ACK = "after_ack"


def step_place(name: StepName) -> str:
    """The place of one step of the workflow, passed before it and after it."""
    return f"step_{name}"


STEP_PLACES = tuple(map(step_place, StepName))


class FailpointHit(Exception):
    """Raised by the action `raise`."""


class BadFailpoint(Exception):
    """The variable's value is malformed, or failpoints are not allowed."""


_ACTIONS = ("kill", "raise", "stop", "sleep")
_SLEEP_SECONDS, _SETTLE_SECONDS = 1.0, 0.2


class Failpoints:
    """The armed failpoint, if any (`place`). Thread-safe: concurrent passes are counted one by one."""

    def __init__(self, place: str | None = None, action: str = "kill", nth: int = 1) -> None:
        self.place, self._action, self._nth = place, action, nth
        self._passed = 0
        self._lock = threading.Lock()

    @classmethod
    def parse(
        cls, text: str | None, *, allowed: bool, places: Collection[str] = (*Failpoint, *STEP_PLACES)
    ) -> Failpoints:
        """Parse the value of `SENTINEL_FAILPOINT`; `places` are those that the program passes. Raises `BadFailpoint`."""
        if not text:
            return cls()
        if not allowed:
            raise BadFailpoint("SENTINEL_FAILPOINT is set without SENTINEL_ALLOW_FAILPOINTS=1: refusing to start")
        name, _, rest = text.partition(":")
        action, _, nth = rest.partition(":")
        if name not in places or action not in _ACTIONS or not (nth or "1").isdecimal() or nth == "0":
            raise BadFailpoint(f"SENTINEL_FAILPOINT must be name:action[:nth] with action one of {', '.join(_ACTIONS)}")
        return cls(name, action, int(nth or 1))

    def hit(self, place: str) -> None:
        """Pass a place, and run the armed action if its turn has come."""
        if place != self.place:
            return
        with self._lock:
            self._passed += 1
            if self._passed != self._nth:
                return
        self._break()

    def _break(self) -> None:
        if self._action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self._action == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
            # SIGSTOP may reach the other threads first: keep this one from going on until it stops too.
            time.sleep(_SETTLE_SECONDS)
        elif self._action == "sleep":
            time.sleep(_SLEEP_SECONDS)
        else:
            raise FailpointHit(self.place or "")
