"""The calls of a client: their arguments, what each sends and how its answer is read, without any I/O.

Shared by `Client` and `AsyncClient`, and by single and batch calls. Every question carries its own idempotency key or start id,
so a retry gets the recorded answer.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, NoReturn, TypedDict, TypeVar

from sentinel.client.errors import ActionDenied, KeyConflict, NoAnswerKind, Rejected, Unreachable, code_of
from sentinel.client.transport import RawResponse

if TYPE_CHECKING:
    from datetime import datetime

    from typing_extensions import NotRequired  # noqa: UP035 - typing of Python 3.10 has none

    from sentinel.client import answers
    from sentinel.client.answers import GuardAnswer, StartReceipt

try:  # orjson is several times faster; the standard library does the same
    from orjson import dumps as _dumps
    from orjson import loads as _decode
except ImportError:  # pragma: no cover - depends on what is installed
    import json

    def _dumps(value: Any, /, default: Callable[[Any], Any] | None = None) -> bytes:  # type: ignore[misc]
        return json.dumps(value, separators=(",", ":"), allow_nan=False, default=default).encode()

    _decode = json.loads  # type: ignore[assignment]


def _encode(value: Any) -> bytes:
    """Encode as JSON. A `Decimal` is sent as the text of its digits, which is how an amount is written.

    Raises `TypeError` for a value without a JSON form, `ValueError` for a float that is NaN or infinite.
    """
    sent = _dumps(value, default=_written)
    if b"null" in sent:  # orjson writes NaN and infinities as null, which the authority would take for absent
        _refuse_not_finite(value)
    return sent


def _encode_report(value: Any) -> bytes:
    """Encode a report as `_encode` does, but send any number, name, text or object without a JSON form as text instead
    of raising: the side effect has happened and must be reported."""
    try:
        return _encode(value)
    except (TypeError, ValueError):
        import json

        return json.dumps(_reportable(value), separators=(",", ":"), default=str).encode()


def _reportable(value: Any) -> Any:
    if isinstance(value, float) and value - value != 0:
        return str(value)
    if isinstance(value, dict):
        return {name if isinstance(name, str) else str(name): _reportable(member) for name, member in value.items()}
    return [_reportable(member) for member in value] if isinstance(value, (list, tuple)) else value


def _refuse_not_finite(value: Any) -> None:
    value = getattr(value, "_value_", value)  # of an enum, which orjson writes as its value
    if isinstance(value, float) and value - value != 0:
        raise ValueError(f"{value!r} cannot be sent as JSON")
    fields = getattr(value, "__dataclass_fields__", None)
    members = value.values() if isinstance(value, dict) else [getattr(value, name, None) for name in fields or ()]
    for member in value if isinstance(value, (list, tuple)) else members:
        _refuse_not_finite(member)


def _written(value: Any) -> str:
    from decimal import Decimal  # imported here because callers that send only texts and integers never need it

    if isinstance(value, Decimal) and value.is_finite() and abs(value.adjusted()) <= _MOST_PLACES:
        return format(value, "f")
    raise TypeError(f"a {type(value).__name__} cannot be sent as JSON: {value!r}")


PREFIX = "/api/sentinel"
REPORT = "/action/guard/report"
"""The path of a report; the path of its batch form begins with it."""
_MOST_PLACES = 400
"""The largest exponent of a `Decimal`: a few characters with an exponent could otherwise become gigabytes of digits."""
MOST_DECISIONS = 64
"""Decided approvals per answer. Each is up to 10 KB, because its reason may have 2,000 characters, and an answer of more
than 1 MiB is refused."""
_MOST_RESULT_BYTES, _MOST_RESULT_DEPTH, _MOST_ERROR = 32_768, 12, 4_000
"""Of a report, within the authority's limits: 64 KiB and 16 levels for a body, in its batch form too, and 4,000 characters of an error."""
_FIRST_BACKOFF_SECONDS = 0.05
_LEAST_ATTEMPT_SECONDS = 0.01
_FIRST_POLL_SECONDS = 0.2

Parsed = TypeVar("Parsed")


class GuardQuestion(TypedDict):
    """One exact action under its key. The key is bound to `params`, not to `evidence_context`, which can only tighten."""

    action: str
    params: Mapping[str, Any]
    idempotency_key: str
    resource: NotRequired[str | None]
    risk_class: NotRequired[str | None]
    evidence_context: NotRequired[Mapping[str, Any] | None]
    agent_id: NotRequired[str | None]
    start_id: NotRequired[str | uuid.UUID | None]
    """For a caller that acts at once: a permission is started under this id in the same call. Use the same id in retries."""
    act_within_seconds: NotRequired[int | None]
    """Seconds to act, counted from before the call; "not executed" cannot be recorded before they are over."""


class FirstAsked(NamedTuple):
    """A question with the params that its key was first used with. `worse`: why those of now do not permit what was
    decided then."""

    question: GuardQuestion
    worse: ActionDenied | None

    def checked(self, answer: GuardAnswer) -> GuardAnswer:
        """Return the answer to `question`. Raises `worse` for one that is, or may become, a permission."""
        if self.worse is not None and answer.status in ("allowed", "approved", "pending"):
            raise self.worse
        return answer


class CheckQuestion(TypedDict):
    """As `GuardQuestion`, without a key: nothing is recorded."""

    action: str
    params: Mapping[str, Any]
    evidence_context: NotRequired[Mapping[str, Any] | None]
    agent_id: NotRequired[str | None]


class Outcome(TypedDict):
    """The outcome of a started action; "error" means unknown, not "not executed"."""

    idempotency_key: str
    action: str
    outcome: Literal["success", "error"]
    error: NotRequired[str | None]
    result: NotRequired[Mapping[str, Any] | None]
    resource: NotRequired[str | None]
    risk_class: NotRequired[str | None]
    permit_token: NotRequired[str | None]
    report_id: NotRequired[str | uuid.UUID | None]
    agent_id: NotRequired[str | None]


@cache
def readers() -> Any:
    """Return the module `answers`, imported with the first answer: it would be more than half of this package's import time."""
    from sentinel.client import answers

    return answers


def guard_body(question: GuardQuestion, agent_id: str) -> dict[str, Any]:
    """Return the body of a guard request.

    `resource`, `risk_class` and `evidence_context` tell the authority that this caller makes a separate start call;
    without them, handing out the permit would already count as the start.
    """
    start_id = question.get("start_id")
    return {
        "agent_id": agent_id,
        "action": question["action"],
        "idempotency_key": question["idempotency_key"],
        "params": question["params"],
        "resource": question.get("resource") or question["action"],
        "risk_class": question.get("risk_class") or "standard",
        "evidence_context": question.get("evidence_context") or {},
        **({"start_id": str(start_id)} if start_id else {}),
        **({"act_within_seconds": seconds} if (seconds := question.get("act_within_seconds")) else {}),
    }


def question_body(fields: Mapping[str, Any], agent_id: str) -> dict[str, Any]:
    """Return the body of a check, and what a report has besides: the given fields and the agent id, without those that are None."""
    body = {**fields, "agent_id": agent_id}
    return {
        name: str(value) if isinstance(value, uuid.UUID) else value for name, value in body.items() if value is not None
    }


def outcome_body(outcome: Mapping[str, Any], agent_id: str) -> dict[str, Any]:
    """Return the body of a report: `error` is cut, and a `result` that the authority would refuse is replaced by its size
    and SHA-256. The side effect has happened and must be reported."""
    body = question_body(outcome, agent_id)
    if isinstance(error := body.get("error"), str):
        body["error"] = error[:_MOST_ERROR]
    if "result" in body:
        body["result"] = _sendable(body["result"])
    return body


def _sendable(result: Any) -> Any:
    """Return a result, or what is sent in place of one that is too large or nested too deeply."""
    try:
        written = _encode_report(result)
    except RecursionError:
        return {"omitted": "nested too deeply"}
    except Exception:  # e.g. of the `__str__` of an object of the effect's database session, which is over
        return {"omitted": "no form as text"}
    if len(written) <= _MOST_RESULT_BYTES and _is_flat(written):
        return result
    from hashlib import sha256

    omitted = "too large" if len(written) > _MOST_RESULT_BYTES else "nested too deeply"
    return {"omitted": omitted, "bytes": len(written), "sha256": sha256(written).hexdigest()}


def _is_flat(written: bytes) -> bool:
    """Whether a JSON text is nested no deeper than `_MOST_RESULT_DEPTH`."""
    if written.count(b"{") + written.count(b"[") <= _MOST_RESULT_DEPTH:
        return True
    import re

    depth = 0
    for bracket in re.findall(rb"[][{}]", re.sub(rb'"(?:[^"\\]|\\.)*"', b"", written)):
        depth += 1 if bracket in b"[{" else -1
        if depth > _MOST_RESULT_DEPTH:
            return False
    return True


class ClientCall(Generic[Parsed]):
    """One request and the reader of its answer."""

    __slots__ = ("body", "method", "parse", "path")

    def __init__(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        parse: Callable[[RawResponse, Mapping[str, Any]], Parsed],
    ) -> None:
        self.method, self.path, self.body, self.parse = method, path, body, parse

    @property
    def sent(self) -> bytes | None:
        """The request's body as JSON, or None for a GET."""
        encode = _encode_report if self.path.startswith(REPORT) else _encode
        return None if self.body is None else encode(self.body)

    def read(self, raw: RawResponse) -> Parsed:
        """Return the parsed answer. Raises `Unreachable`, `KeyConflict` or `Rejected`."""
        return self.parse(raw, _content(raw))


def guard_call(question: GuardQuestion, agent_id: str) -> ClientCall[GuardAnswer]:
    """Return the call of `action/guard`."""
    body = guard_body(question, agent_id)
    return ClientCall(
        "POST", "/action/guard", body, lambda raw, found: read_guard_answer(body, found, replayed=raw.replayed)
    )


def start_call(
    answer: GuardAnswer, start_id: str | uuid.UUID, act_within_seconds: int | None
) -> ClientCall[StartReceipt]:
    """Return the call of `action/guard/start`."""
    body = start_body(answer, start_id, act_within_seconds)
    return ClientCall("POST", "/action/guard/start", body, lambda _, found: readers().start_receipt(found))


def report_call(outcome: Outcome, agent_id: str) -> ClientCall[answers.ReportReceipt]:
    """Return the call of `action/guard/report`."""
    body = outcome_body(outcome, agent_id)
    return ClientCall("POST", REPORT, body, lambda _, found: readers().report_receipt(found))


def check_call(question: CheckQuestion, agent_id: str) -> ClientCall[answers.CheckAnswer]:
    """Return the call of `action/check`."""
    body = question_body(question, agent_id)
    return ClientCall("POST", "/action/check", body, lambda _, found: readers().check_answer(found))


def headroom_call(question: CheckQuestion, agent_id: str) -> ClientCall[list[answers.Headroom]]:
    """Return the call of `action/headroom`."""
    return ClientCall(
        "POST", "/action/headroom", question_body(question, agent_id), lambda _, found: readers().headrooms(found)
    )


def approval_call(approval_id: str | uuid.UUID) -> ClientCall[answers.ApprovalView]:
    """Return the call of `approval/{id}`."""
    from urllib.parse import quote

    path = f"/approval/{quote(str(approval_id), safe='')}"
    return ClientCall("GET", path, None, lambda _, found: readers().approval_view(found))


def decisions_call(since: datetime, limit: int) -> ClientCall[list[answers.ApprovalDecision]]:
    """Return the call of `approvals/since`, for at most `MOST_DECISIONS`."""
    from urllib.parse import urlencode

    path = "/approvals/since?" + urlencode({"since": since.isoformat(), "limit": limit})
    return ClientCall("GET", path, None, lambda _, found: readers().approval_decisions(found))


def heartbeat_call(agent_id: str) -> ClientCall[str]:
    """Return the call of `heartbeat`."""
    from urllib.parse import urlencode

    path = "/heartbeat?" + urlencode({"agent_id": agent_id})
    return ClientCall("GET", path, None, lambda _, found: readers().heartbeat_status(found))


def key_call() -> ClientCall[answers.KeyHolder]:
    """Return the call of `key`."""
    return ClientCall("GET", "/key", None, lambda _, found: readers().key_holder(found))


def chosen_agent(given: str | None, default: str | None) -> str:
    """Return the call's agent id, else the client's. Raises `ValueError` where neither is given."""
    agent = given or default
    if not agent:
        raise ValueError("an agent_id is needed: give it to the client or to the call")
    return agent


def client_headers(api_key: str, tenant_id: str | uuid.UUID | None) -> dict[str, str]:
    """Return the headers that every request carries."""
    headers = {"X-API-Key": api_key, "User-Agent": "sentinel-client"}
    if tenant_id is not None:
        headers["X-Tenant-Id"] = str(tenant_id)
    return headers


def pause_before_retry(error: Unreachable | Rejected, attempt: int, retries: int, left_seconds: float) -> float:
    """Return the seconds to wait before a retry. Raises the error where a retry is not allowed, or no time is left for one."""
    if isinstance(error, Rejected):
        raise error
    pause = _backoff_seconds(attempt, error)
    if attempt == retries or not _is_retryable(error) or pause + _LEAST_ATTEMPT_SECONDS > left_seconds:
        raise error
    return pause


def poll_pause(attempt: int, most_seconds: float, left_seconds: float) -> float:
    """Return the seconds until an approval is polled again: 0.2 at first, doubled up to `most_seconds`, with jitter."""
    import random

    growing: float = min(_FIRST_POLL_SECONDS * 2.0 ** min(attempt, 20), most_seconds)
    return min(growing * (0.75 + random.random() / 2), left_seconds)


def _is_retryable(error: Unreachable) -> bool:
    """Whether a failed call may be retried: not after a timeout, not after a malformed response."""
    return error.kind in (NoAnswerKind.REFUSED, NoAnswerKind.BROKEN, NoAnswerKind.SERVER, NoAnswerKind.BUSY)


def _backoff_seconds(attempt: int, error: Unreachable) -> float:
    import random

    jittered: float = _FIRST_BACKOFF_SECONDS * 2**attempt * (0.5 + random.random())
    return max(jittered, error.retry_after_seconds or 0.0)


def _content(raw: RawResponse) -> Mapping[str, Any]:
    """Return the JSON object of a 200; anything else raises `Unreachable`, `KeyConflict` or `Rejected`."""
    found = _object(raw)
    if raw.status == 200:
        if found is None:
            raise Unreachable(NoAnswerKind.MALFORMED, "200 without a JSON object")
        return found
    return raise_for_status(raw.status, found, wait=_retry_after(raw.retry_after))


def raise_for_status(status: int, problem: Mapping[str, Any] | None, *, wait: float | None) -> NoReturn:
    """Raise the error for a status other than 200: `Unreachable`, `KeyConflict` or `Rejected`. `wait`: its Retry-After in seconds."""
    if status >= 500:
        raise Unreachable(NoAnswerKind.SERVER, f"status {status}", retry_after_seconds=wait)
    code = code_of(str((problem or {}).get("type") or "")[:500])
    still_deciding = status == 409 and (wait is not None or code == "still-deciding")
    if status in (408, 425, 429) or still_deciding:
        raise Unreachable(NoAnswerKind.BUSY, f"status {status}", retry_after_seconds=wait, code=code or None)
    if status < 400 or problem is None:
        raise Unreachable(NoAnswerKind.MALFORMED, f"status {status} without a problem document")
    raise _rejection(status, problem)


def read_guard_answer(body: Mapping[str, Any], found: Mapping[str, Any], *, replayed: bool) -> GuardAnswer:
    """Read a 200 answer to the guard request `body`. Raises `Unreachable` for one that is malformed or does not fit the request."""
    answer: GuardAnswer = readers().guard_answer(
        found,
        action=body["action"],
        agent_id=body["agent_id"],
        idempotency_key=body["idempotency_key"],
        replayed=replayed,
    )
    if (answer.resource, answer.risk_class) != (body["resource"], body["risk_class"]):
        raise Unreachable(NoAnswerKind.MALFORMED, "the answer is about another resource or risk class")
    if answer.start is None and answer.may_start and "start_id" in body:
        raise Unreachable(NoAnswerKind.MALFORMED, "a permission for a start id does not say that it is started")
    return answer


def start_body(answer: GuardAnswer, start_id: str | uuid.UUID, act_within_seconds: int | None) -> dict[str, Any]:
    """Return the body of a start request."""
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
        return _with_first_asked(KeyConflict(status=status, **said), problem)
    return rejected


def _with_first_asked(conflict: KeyConflict, problem: Mapping[str, Any]) -> KeyConflict:
    recorded, tightened = problem.get("recorded_params"), problem.get("tightened")
    if isinstance(recorded, dict) and isinstance(tightened, dict | None):
        conflict.recorded_params = recorded
        if tightened is not None:
            names = ("decision", "reason_code", "reason")
            conflict.tightened = {name: str(tightened.get(name) or "")[:500] for name in names}
    return conflict


def _object(raw: RawResponse) -> Mapping[str, Any] | None:
    if raw.content_type not in ("application/json", "application/problem+json"):
        return None
    try:
        found = _decode(raw.data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _retry_after(text: str | None) -> float | None:
    """Parse a Retry-After of delta seconds; a date is ignored, because it is by the server's clock and not by ours."""
    return float(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 6 else None
