"""What an outside system's answer means: one table for every adapter, from status to done, refused, not now or unknown.

Only a problem document (RFC 9457) about the effect itself refuses it for good. A refusal of the question (a key being
replaced, a route, a limit, the same key under way) is not now, and so is whatever this table does not know: it is asked
again. A refusal is believed only after the system was asked what it did.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson

from worker import outside
from worker.settlement.gateway import NoAnswer, Refused, one_line

JSON, PROBLEM = "application/json", "application/problem+json"

DONE = frozenset({200, 201})
"""It says so in its body; the adapter reads that."""
FOR_GOOD = frozenset({400, 402, 406, 410, 411, 412, 413, 414, 415, 416, 417, 422, 426, 428, 431, 451})
"""The same request is refused again, however often it is sent."""


class Verdict(StrEnum):
    """What an answer says about the effect that was asked for."""

    DONE = "done"
    REFUSED = "refused"
    """Not done, and not by asking again either."""
    NOT_NOW = "not_now"
    """Refused for what a later try may not meet."""
    UNKNOWN = "unknown"
    """No answer of ours: a page, a redirect, a failure on the way."""


def verdict_of(status: int, *, is_problem: bool) -> Verdict:
    """The table."""
    if status in DONE:
        return Verdict.DONE
    if not is_problem or not 400 <= status < 600:
        return Verdict.UNKNOWN
    return Verdict.REFUSED if status in FOR_GOOD else Verdict.NOT_NOW


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer that came whole and in time; `body` is empty unless it is a JSON object that says it is one."""

    status: int
    is_problem: bool
    body: Mapping[str, Any]

    @classmethod
    def of(cls, found: outside.Answered | outside.NoAnswer) -> Reply | NoAnswer:
        """What came of an exchange."""
        if isinstance(found, outside.NoAnswer):
            return NoAnswer(str(found.kind))
        body: Any = None
        if found.content_type in (JSON, PROBLEM):
            try:
                body = orjson.loads(found.body)
            except orjson.JSONDecodeError:
                body = None
        is_object = isinstance(body, dict)
        return cls(found.status, is_object and found.content_type == PROBLEM, body if is_object else {})

    @property
    def verdict(self) -> Verdict:
        """By the table."""
        return verdict_of(self.status, is_problem=self.is_problem)

    @property
    def is_absence(self) -> bool:
        """Says of what was looked for that it is not there."""
        return self.status in (404, 410) and self.is_problem

    @property
    def why(self) -> str:
        """Status and title, in one short line."""
        title = one_line(self.body.get("title") or "", 100) if self.is_problem else ""
        return f"{self.status} {title}".strip()

    def not_done(self) -> Refused | NoAnswer:
        """The answer where it does not say done."""
        return Refused(self.why) if self.verdict is Verdict.REFUSED else NoAnswer(self.why)
