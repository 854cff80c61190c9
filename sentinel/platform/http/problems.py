"""The one table that turns our errors into problem documents (RFC 9457), and the handlers that use it.

Everything unexpected becomes a plain 500 problem whose text is withheld; the log has the rest under the request id.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import orjson
import structlog
from flask import Flask, Response, current_app, request
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from sentinel.core import errors as e
from sentinel.platform.http.wire import request_id_of, require_host

TYPE_PREFIX = "urn:sentinel:problem:"

STATUSES: dict[type[e.SentinelError], tuple[int, str]] = {
    e.InvalidInput: (400, "The request breaks a rule"),
    e.Unauthenticated: (401, "Not signed in"),
    e.Forbidden: (403, "Not allowed"),
    e.StepUpRequired: (403, "Prove who you are"),
    e.SecondFactorRequired: (403, "A second factor is needed"),
    e.PermitRefused: (403, "The permit cannot be redeemed"),
    e.NotFound: (404, "Not found"),
    e.StillDeciding: (409, "Still being decided"),
    e.PermitRedeemed: (409, "Already started"),
    e.ResolvedNotExecuted: (409, "Resolved as not executed"),
    e.StillActing: (409, "Somebody may still act"),
    e.ReportContradicts: (409, "Contradicts an earlier report"),
    e.Conflict: (409, "Not possible in this state"),
    e.PermitExpired: (410, "The permit has expired"),
    e.LengthRequired: (411, "Length required"),
    e.BodyTooLarge: (413, "Body too large"),
    e.UnsupportedMediaType: (415, "Unsupported media type"),
    e.KeyReused: (422, "Idempotency key reused"),
    e.RateLimited: (429, "Too many requests"),
    e.EngineUnavailable: (503, "No decision can be given now"),
    e.WorkerNotRunning: (503, "No worker is running"),
    e.TooManyStreams: (503, "Too many streams"),
    e.TryLater: (503, "Not now"),
}
"""Error class → (status, title). A subclass without a line takes its parent's."""


@dataclass(frozen=True, slots=True)
class OutageText:
    """What a problem document says when the database gave no usable answer: its detail, and further members."""

    detail: str
    members: dict[str, Any] = field(default_factory=dict)


NOTHING_ALLOWED = OutageText(
    "The decision could not be recorded; nothing is allowed. Ask again with the same key.",
    # A careless client that reads only the decision stays closed.
    {"decision": "DENY", "reason_code": "engine_unavailable", "retryable": True},
)
_TRY_AGAIN = OutageText("The database gave no usable answer. Try again in a moment.", {"retryable": True})
_MAY_BE_DONE = OutageText(
    "The database gave no usable answer. It is not known whether your request was executed: check before you send it again."
)
OutageTextOf = Callable[[str], OutageText]
"""HTTP method → what a program says of a request of that method when the database gave no usable answer."""


def outage_text_for_agents(_method: str) -> OutageText:
    """The text for agents: nothing is allowed, and the request may be retried, because it has an idempotency key."""
    return NOTHING_ALLOWED


def outage_text_for_people(method: str) -> OutageText:
    """The text for people and their programs: a change may be recorded although it failed, if only the commit's reply was lost."""
    return _TRY_AGAIN if method in ("GET", "HEAD") else _MAY_BE_DONE


_OUTAGE_TEXT = "sentinel.outage_text"

log = structlog.get_logger("sentinel.http")


def status_of(error: e.SentinelError) -> tuple[int, str]:
    """(HTTP status, title) of one of our errors; (500, …) for a class that is not in `STATUSES`."""
    for parent in type(error).__mro__:
        if parent in STATUSES:
            return STATUSES[parent]
    return 500, "Internal error"


Problem = tuple[bytes, int, str, dict[str, str]]
"""(body, status, content type, headers)"""


def problem_of(error: e.SentinelError, request_id: str, outage: OutageText = NOTHING_ALLOWED) -> Problem:
    """The problem document of an expected refusal; `outage` is its text for `EngineUnavailable`."""
    status, title = status_of(error)
    extra: dict[str, Any] = {"errors": error.errors} if error.errors else {}
    detail = error.detail
    headers = {}
    if isinstance(error, e.KeyReused):
        extra |= error.first_asked
    if isinstance(error, e.StillActing):
        extra["act_until"] = error.act_until.isoformat()
    if isinstance(error, e.EngineUnavailable):
        log_unavailable(error, request_id)
        detail = outage.detail
        extra |= outage.members
    wait = retry_after_seconds(error)
    if wait is not None:
        headers["Retry-After"] = str(wait)
    return _problem(status, error.code, title, detail, request_id, extra, headers)


def retry_after_seconds(error: e.SentinelError) -> int | None:
    """Seconds until the request may be retried; None for errors whose answer has no Retry-After."""
    if isinstance(error, e.RateLimited):
        return error.retry_after_seconds
    return 1 if status_of(error)[0] == 503 or isinstance(error, e.StillDeciding) else None


def log_unavailable(error: e.EngineUnavailable, request_id: str) -> None:
    """Log why no answer could be given; callers are not told the cause."""
    log.error("engine_unavailable", cause=error.detail, request_id=request_id)


def internal_problem(request_id: str) -> Problem:
    """The problem document for an unexpected error; the log has its details."""
    return _problem(
        500, "internal", "Internal error", "An unexpected error was logged under this request id.", request_id
    )


_PHRASES = {414: "Request-URI Too Long"}
"""Phrases that a later Python words otherwise (since 3.13 "URI Too Long"): a problem's type must not change with it."""


def unread_problem(status: int, detail: str, request_id: str) -> Problem:
    """The problem document for input that the server could not read as a request, e.g. two Hosts or a header without an end."""
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        return internal_problem(request_id)
    title = _PHRASES.get(status) or HTTPStatus(status).phrase
    headers = {"Retry-After": "1"} if status == HTTPStatus.TOO_MANY_REQUESTS else None
    return _problem(status, title.lower().replace(" ", "-"), title, detail, request_id, headers=headers)


def _problem(
    status: int, code: str, title: str, detail: str, request_id: str, extra: dict[str, Any] | None = None,
    headers: dict[str, str] | None = None,
) -> Problem:  # fmt: skip
    body = {
        "type": TYPE_PREFIX + code, "title": title, "status": status, "detail": detail, "instance": request_id,
        **(extra or {}),
    }  # fmt: skip
    all_headers = {"Cache-Control": "no-store", **(headers or {})}
    if status == 401:
        all_headers["WWW-Authenticate"] = "Bearer"
    return orjson.dumps(body), status, "application/problem+json", all_headers


def problem_response(error: e.SentinelError) -> Response:
    """`problem_of` as a Flask response."""
    return _response(problem_of(error, request_id(), outage_text_of(current_app)(request.method)))


def _response(problem: Problem) -> Response:
    body, status, content_type, headers = problem
    return Response(body, status=status, content_type=content_type, headers=headers)


def request_id() -> str:
    """The id of the request that Flask is handling."""
    return request_id_of(request.environ)


def http_response(error: HTTPException) -> Response:
    """Turn an error of the framework into a problem document; a redirect becomes a plain 404."""
    status = error.code or 500
    if 300 <= status < 400:
        return Response(status=404)
    code = (error.name or "error").lower().replace(" ", "-")
    response = _response(_problem(status, code, error.name or "Error", error.description or "", request_id()))
    if isinstance(error, MethodNotAllowed) and error.valid_methods:
        response.headers["Allow"] = ", ".join(sorted(error.valid_methods))
    return response


def outage_text_of(app: Flask) -> OutageTextOf:
    """The outage text that `register` was given for an app; an app without one has the text for agents."""
    found: OutageTextOf = app.extensions.get(_OUTAGE_TEXT, outage_text_for_agents)
    return found


def register(app: Flask, *, outage_text: OutageTextOf = outage_text_for_agents) -> None:
    """Install the error handlers (ours, the framework's, the last resort) and a check of Host before each route.

    `outage_text` also applies to the app's streams, which the event loop answers.
    """
    app.extensions[_OUTAGE_TEXT] = outage_text

    def known_host() -> Response | None:
        try:
            require_host(request.environ)
        except e.InvalidInput as error:
            return problem_response(error)
        return None

    # Before the app's own hooks: a bad Host is refused whoever asks, and for every page.
    app.before_request_funcs.setdefault(None, []).insert(0, known_host)

    @app.errorhandler(e.SentinelError)
    def expected(error: e.SentinelError) -> Response:
        return problem_response(error)

    @app.errorhandler(HTTPException)
    def framework(error: HTTPException) -> Response:
        return http_response(error)

    @app.errorhandler(Exception)
    def unexpected(error: Exception) -> Response:
        log.exception("unexpected_error", path=request.path)
        return _response(internal_problem(request_id()))

    @app.after_request
    def echo_request_id(response: Response) -> Response:
        response.headers["X-Request-ID"] = request_id()
        return response
