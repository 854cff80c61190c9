"""Effects asked of an outside system: what comes back, as values, and the one table that says what an answer means.

Only a problem document (RFC 9457) about the effect itself refuses it for good. A refusal of the request (a key being
replaced, a route, a rate limit, the same key under way) and whatever this table does not know is `NoAnswer`: asked again
later. A refusal is believed only after the system was asked what it did.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from sentinel.platform.outbound.client import JsonClient, NoResponse, Response

JSON, PROBLEM = "application/json", "application/problem+json"

DONE = frozenset({200, 201})
FOR_GOOD = frozenset({400, 402, 406, 410, 411, 412, 413, 414, 415, 416, 417, 422, 426, 428, 431, 451})
"""The same request is refused again, however often it is sent."""


@dataclass(frozen=True, slots=True)
class Settled:
    """Done, once; `reference` is the system's own name for it."""

    reference: str


@dataclass(frozen=True, slots=True)
class EffectRefused:
    """Surely not done; from a look-up: surely not there.

    From `settle` it is final: asking again under the same reference is refused again, so the refund ends there. What
    a later try may lift (a limit, a key, a busy system), and what is only not there yet, is `NoAnswer`.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """No usable answer: the effect may have been done."""

    detail: str


EffectResult = Settled | EffectRefused | NoAnswer


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer that came whole and in time; `body` is empty unless it is a JSON object that says it is one."""

    status: int
    is_problem: bool
    body: Mapping[str, Any]

    @classmethod
    def of(cls, found: Response | NoResponse) -> Reply | NoAnswer:
        """What came of an exchange."""
        if isinstance(found, NoResponse):
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
    def is_done(self) -> bool:
        """Says that the effect is done; the adapter reads in the body which."""
        return self.status in DONE

    @property
    def is_absence(self) -> bool:
        """Says of what was looked for that it is not there."""
        return self.status in (404, 410) and self.is_problem

    @property
    def why(self) -> str:
        """Status and title, in one short line."""
        title = one_line(self.body.get("title") or "", 100) if self.is_problem else ""
        return f"{self.status} {title}".strip()

    def not_done(self) -> EffectRefused | NoAnswer:
        """The answer where it does not say done: a page, a redirect or a failure on the way is no answer of the system."""
        return EffectRefused(self.why) if self.is_problem and self.status in FOR_GOOD else NoAnswer(self.why)


def call_effect(
    client: JsonClient, method: str, path: str, key: uuid.UUID | None = None, body: object = None
) -> Reply | NoAnswer:
    """One request about an effect; `key` is the idempotency key, a `body` is sent as JSON. Never raises."""
    return Reply.of(client.ask(method, path, body, headers={} if key is None else {"Idempotency-Key": str(key)}))


def one_line(text: object, most: int = 200) -> str:
    """Untrusted text as one printable line of at most `most` characters."""
    kept = "".join(c if c.isprintable() else " " for c in str(text)[: 2 * most])
    return " ".join(kept.split())[:most]
