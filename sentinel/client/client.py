"""The client: one method per route of `docs/CONTRACT.md` §2 and §3, retried only where the idempotency key makes that safe.

One call lasts at most `timeout_seconds`, retries and pauses included. Every question carries its own idempotency key or
start id, so a repeat gets the recorded answer.
"""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn, TypeVar, Unpack
from urllib.parse import quote, urlencode

from sentinel.client import answers
from sentinel.client.errors import KeyConflict, NoAnswerKind, Rejected, Unreachable
from sentinel.client.fields import malformed
from sentinel.client.questions import CheckQuestion, GuardQuestion, Outcome, guard_body, question_body
from sentinel.client.switches import Switches, switched_off, switches_answer
from sentinel.client.transport import RawResponse, Transport

try:  # orjson is several times faster; the standard library does the same
    from orjson import dumps as _encode
    from orjson import loads as _decode
except ImportError:  # pragma: no cover - depends on what is installed

    def _encode(value: Any) -> bytes:  # type: ignore[misc]
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()

    _decode = json.loads  # type: ignore[assignment]

PREFIX = "/api/sentinel"
_FIRST_BACKOFF_SECONDS = 0.05
_LEAST_ATTEMPT_SECONDS = 0.01

Parsed = TypeVar("Parsed")


class Client:
    """Asks one authority with one key. Thread-safe; connections are kept and shared.

    `base_url` is e.g. "http://127.0.0.1:7860". `agent_id` is the default for every call. A call raises `Unreachable`
    (no answer: may be repeated), `KeyConflict` or `Rejected` (answered: the request itself is refused).
    """

    def __init__(
        self,
        base_url: str,
        api_key: str,
        *,
        agent_id: str | None = None,
        tenant_id: str | uuid.UUID | None = None,
        timeout_seconds: float = 5.0,
        retries: int = 2,
        pool_size: int = 16,
    ) -> None:
        headers = {"X-API-Key": api_key, "User-Agent": "sentinel-client"}
        if tenant_id is not None:
            headers["X-Tenant-Id"] = str(tenant_id)
        self._transport = Transport(base_url, headers=headers, pool_size=pool_size)
        self.agent_id = agent_id
        self._timeout_seconds = timeout_seconds
        self._retries = retries

    def guard(self, **question: Unpack[GuardQuestion]) -> answers.GuardAnswer:
        """Ask whether exactly this may happen. Only `answer.may_start` is a permission, and it still needs `start`.

        With a `start_id` the question starts what it permits: then `answer.start` is the go-ahead, and a `duplicate` one
        may have been acted on before.
        """
        body = guard_body(question, self._agent(question.get("agent_id")))
        return self._call(
            "POST", "/action/guard", body, lambda raw, found: _guard_answer(body, found, replayed=raw.replayed)
        )

    def guard_many(self, questions: Sequence[GuardQuestion]) -> list[answers.GuardAnswer | Unreachable | Rejected]:
        """`guard` for up to 64 questions (its keyword arguments each) in one call: per question the answer or its error."""
        bodies = [guard_body(question, self._agent(question.get("agent_id"))) for question in questions]
        return self._call_many("/action/guard", bodies, _guard_answer)

    def start(
        self, answer: answers.GuardAnswer, start_id: str | uuid.UUID, *, act_within_seconds: int | None = None
    ) -> answers.StartReceipt:
        """Redeem the answer's permit just before the side effect. The same `start_id` gets the same receipt.

        Act within `act_within_seconds` of calling this (None: the authority's own time) or start again: after it a person may
        say that nothing was executed. `Rejected.code`: "permit-expired", "permit-refused" (halted, or a bound field differs),
        "already-started", "resolved-not-executed".
        """
        body = _start_body(answer, start_id, act_within_seconds)
        return self._call("POST", "/action/guard/start", body, lambda _, found: answers.start_receipt(found))

    def start_many(
        self, permits: Sequence[tuple[answers.GuardAnswer, str | uuid.UUID]], *, act_within_seconds: int | None = None
    ) -> list[answers.StartReceipt | Unreachable | Rejected]:
        """`start` for up to 64 permits in one call: per permit the receipt or its error."""
        return self._call_many(
            "/action/guard/start",
            [_start_body(answer, start_id, act_within_seconds) for answer, start_id in permits],
            lambda _body, found, **_: answers.start_receipt(found),
        )

    def report(self, **outcome: Unpack[Outcome]) -> answers.ReportReceipt:
        """Tell what came of it."""
        body = question_body(outcome, self._agent(outcome.get("agent_id")))
        return self._call("POST", "/action/guard/report", body, lambda _, found: answers.report_receipt(found))

    def report_many(self, outcomes: Sequence[Outcome]) -> list[answers.ReportReceipt | Unreachable | Rejected]:
        """`report` for up to 64 outcomes (its keyword arguments each) in one call: per outcome the receipt or its error."""
        bodies = [question_body(outcome, self._agent(outcome.get("agent_id"))) for outcome in outcomes]
        return self._call_many("/action/guard/report", bodies, lambda _body, found, **_: answers.report_receipt(found))

    def check(self, **question: Unpack[CheckQuestion]) -> answers.CheckAnswer:
        """What would be decided now; reserves nothing and permits nothing."""
        body = question_body(question, self._agent(question.get("agent_id")))
        return self._call("POST", "/action/check", body, lambda _, found: answers.check_answer(found))

    def check_many(self, questions: Sequence[CheckQuestion]) -> list[answers.CheckAnswer | Unreachable | Rejected]:
        """`check` for up to 64 questions (its keyword arguments each) in one call: per question the answer or its error."""
        bodies = [question_body(question, self._agent(question.get("agent_id"))) for question in questions]
        return self._call_many("/action/check", bodies, lambda _body, found, **_: answers.check_answer(found))

    def approval(self, approval_id: str | uuid.UUID) -> answers.ApprovalView:
        """One approval of this agent."""
        path = f"/approval/{quote(str(approval_id), safe='')}"
        return self._call("GET", path, None, lambda _, found: answers.approval_view(found))

    def approvals_since(self, since: datetime, limit: int = 500) -> list[answers.ApprovalDecision]:
        """Approvals decided after `since` (timezone-aware), oldest first, at most `limit` (1 to 500)."""
        path = "/approvals/since?" + urlencode({"since": since.isoformat(), "limit": limit})
        return self._call("GET", path, None, lambda _, found: answers.approval_decisions(found))

    def heartbeat(self, agent_id: str | None = None) -> str:
        """OK, PAUSE or KILL."""
        path = "/heartbeat?" + urlencode({"agent_id": self._agent(agent_id)})
        return self._call("GET", path, None, lambda _, found: answers.heartbeat_status(found))

    def key(self) -> answers.KeyHolder:
        """Whose key this client has."""
        return self._call("GET", "/key", None, lambda _, found: answers.key_holder(found))

    def switches(self) -> Switches:
        """What is switched on and halted for this tenant, and which policies decide. Grants nothing."""
        return self._call("GET", "/switches", None, lambda _, found: switches_answer(found))

    def switch_off(self, name: str, reason: str) -> bool:
        """Turn a switch off for everybody (an agent cannot turn one on); whether it was turned off only now."""
        body = {"switch": name, "reason": reason}
        return self._call("POST", "/switches/off", body, lambda _, found: switched_off(found, name))

    def abort(self) -> None:
        """Break the calls under way in every thread: they raise `Unreachable`. For a quick, clean end."""
        self._transport.abort()

    def close(self) -> None:
        """Close the kept connections."""
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _agent(self, given: str | None) -> str:
        agent = given or self.agent_id
        if not agent:
            raise ValueError("an agent_id is needed: give it to the client or to the call")
        return agent

    def _call_many(
        self, path: str, bodies: Sequence[dict[str, Any]], parse: Callable[..., Parsed]
    ) -> list[Parsed | Unreachable | Rejected]:
        """The batch form of a route. Where only the batch itself is refused (no such route, too large), one by one."""
        if len(bodies) == 1:
            return [self._call_in_batch_form(path, bodies[0], parse)]
        try:
            found = self._call(
                "POST", f"{path}/batch", {"requests": bodies}, lambda _, got: answers.batch(got, len(bodies))
            )
        except Rejected as error:
            if error.status in (401, 403):
                return [error] * len(bodies)
            return [self._call_in_batch_form(path, body, parse) for body in bodies]
        except Unreachable as error:
            return [error] * len(bodies)
        results: list[Parsed | Unreachable | Rejected] = []
        for body, one in zip(bodies, found, strict=True):
            try:
                if one.status != 200:
                    _raise_for_status(one.status, one.body, wait=None)
                results.append(parse(body, one.body, replayed=one.replayed))
            except (Unreachable, Rejected) as error:
                results.append(error)
        return results

    def _call_in_batch_form(
        self, path: str, body: dict[str, Any], parse: Callable[..., Parsed]
    ) -> Parsed | Unreachable | Rejected:
        try:
            return self._call("POST", path, body, lambda raw, found: parse(body, found, replayed=raw.replayed))
        except (Unreachable, Rejected) as error:
            return error

    def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        parse: Callable[[RawResponse, Mapping[str, Any]], Parsed],
    ) -> Parsed:
        sent = None if body is None else _encode(body)
        deadline = time.monotonic() + self._timeout_seconds
        for attempt in range(self._retries + 1):
            try:
                raw = self._transport.exchange(method, PREFIX + path, sent, deadline)
                return parse(raw, _content(raw))
            except Unreachable as error:
                if attempt == self._retries or not _is_retryable(error):
                    raise
                pause = _backoff_seconds(attempt, error)
                if time.monotonic() + pause + _LEAST_ATTEMPT_SECONDS > deadline:
                    raise
                time.sleep(pause)
        raise AssertionError("the loop returns or raises")


def _is_retryable(error: Unreachable) -> bool:
    """Whether a failed call may be repeated: not after a timeout, not after a malformed response."""
    return error.kind in (NoAnswerKind.REFUSED, NoAnswerKind.BROKEN, NoAnswerKind.SERVER, NoAnswerKind.BUSY)


def _backoff_seconds(attempt: int, error: Unreachable) -> float:
    jittered: float = _FIRST_BACKOFF_SECONDS * 2**attempt * (0.5 + random.random())
    return max(jittered, error.retry_after_seconds or 0.0)


def _content(raw: RawResponse) -> Mapping[str, Any]:
    """The JSON object of a 200; anything else raises `Unreachable`, `KeyConflict` or `Rejected`."""
    found = _object(raw)
    if raw.status == 200:
        if found is None:
            malformed("200 without a JSON object")
        return found
    return _raise_for_status(raw.status, found, wait=_retry_after(raw.retry_after))


def _raise_for_status(status: int, problem: Mapping[str, Any] | None, *, wait: float | None) -> NoReturn:
    """Raise what an answer other than 200 means."""
    if status >= 500:
        raise Unreachable(NoAnswerKind.SERVER, f"status {status}", retry_after_seconds=wait)
    still_deciding = status == 409 and (
        wait is not None or str((problem or {}).get("type", "")).endswith("still-deciding")
    )
    if status in (408, 425, 429) or still_deciding:
        raise Unreachable(NoAnswerKind.BUSY, f"status {status}", retry_after_seconds=wait)
    if status < 400 or problem is None:
        malformed(f"status {status} without a problem document")
    raise _rejection(status, problem)


def _guard_answer(body: Mapping[str, Any], found: Mapping[str, Any], *, replayed: bool) -> answers.GuardAnswer:
    answer = answers.guard_answer(
        found,
        action=body["action"],
        agent_id=body["agent_id"],
        idempotency_key=body["idempotency_key"],
        replayed=replayed,
    )
    if (answer.resource, answer.risk_class) != (body["resource"], body["risk_class"]):
        malformed("the answer is about another resource or risk class")
    if answer.start is None and answer.may_start and "start_id" in body:
        malformed("a permission for a start id does not say that it is started")
    return answer


def _start_body(
    answer: answers.GuardAnswer, start_id: str | uuid.UUID, act_within_seconds: int | None
) -> dict[str, Any]:
    return {
        "idempotency_key": answer.idempotency_key,
        "action": answer.action,
        "agent_id": answer.agent_id,
        "resource": answer.resource,
        "risk_class": answer.risk_class,
        "permit_token": answer.permit_token or "",
        "start_id": str(start_id),
        **({"act_within_seconds": act_within_seconds} if act_within_seconds else {}),
    }


def _rejection(status: int, problem: Mapping[str, Any]) -> Rejected:
    said = {name: str(problem.get(name) or "")[:500] for name in ("type", "title", "detail")}
    rejected = Rejected(status=status, **said)
    if status == 422 and rejected.code == "idempotency-key-reused":
        return KeyConflict(status=status, **said)
    return rejected


def _object(raw: RawResponse) -> Mapping[str, Any] | None:
    if raw.content_type not in ("application/json", "application/problem+json"):
        return None
    try:
        found = _decode(raw.data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _retry_after(text: str | None) -> float | None:
    """Delta seconds only; a date there is no reason to wait for a clock we do not share."""
    return float(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 6 else None
