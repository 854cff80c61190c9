"""Requests for effects in outside systems: results as values, and the one table that says what HTTP answers mean.

Only a problem document (RFC 9457) about the effect itself refuses it for good. A refusal of the request (a key in
rotation, a wrong route, a rate limit, the same key in flight) and whatever this table does not know is `NoAnswer`, and
retried later. Callers believe a refusal only after they looked up whether the effect is there.
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
"""Statuses of final refusals: the same request would be refused at every attempt."""


@dataclass(frozen=True, slots=True)
class Settled:
    """The effect is done; `reference` is the system's own name for it."""

    reference: str


@dataclass(frozen=True, slots=True)
class EffectRefused:
    """The effect is certainly not done; from a look-up: certainly not there.

    From `settle` it is final: the same reference would be refused again, so the refund ends there. A refusal that a
    later attempt may not meet (a limit, a key, a busy system), and an effect that is only not there yet, is `NoAnswer`.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """No usable answer: the effect may have been done."""

    detail: str


EffectResult = Settled | EffectRefused | NoAnswer


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete answer that arrived in time; `body` is empty unless it is a JSON object with a JSON content type."""

    status: int
    is_problem: bool
    body: Mapping[str, Any]

    @classmethod
    def of(cls, found: Response | NoResponse) -> Reply | NoAnswer:
        """Make the reply of an exchange; `NoAnswer` where there was no response."""
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
        """Whether the status says that the effect is done; the adapter still checks the body."""
        return self.status in DONE

    @property
    def is_absence(self) -> bool:
        """Whether the answer to a look-up says that the effect is not there."""
        return self.status in (404, 410) and self.is_problem

    @property
    def why(self) -> str:
        """The status, and the title of a problem document, as one short line."""
        title = one_line(self.body.get("title") or "", 100) if self.is_problem else ""
        return f"{self.status} {title}".strip()

    def not_done(self) -> EffectRefused | NoAnswer:
        """The result of an answer that does not say done; a web page, a redirect or a proxy's error is `NoAnswer`."""
        return EffectRefused(self.why) if self.is_problem and self.status in FOR_GOOD else NoAnswer(self.why)


def call_effect(
    client: JsonClient, method: str, path: str, key: uuid.UUID | None = None, body: object = None
) -> Reply | NoAnswer:
    """Make one request about an effect; `key` is the idempotency key, `body` is sent as JSON. Never raises."""
    return Reply.of(client.ask(method, path, body, headers={} if key is None else {"Idempotency-Key": str(key)}))


def one_line(text: object, most: int = 200) -> str:
    """Make untrusted text one printable line of at most `most` characters."""
    kept = "".join(c if c.isprintable() else " " for c in str(text)[: 2 * most])
    return " ".join(kept.split())[:most]
