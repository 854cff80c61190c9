"""The one table that turns our errors into problem documents (RFC 9457), and the handlers that use it.

Everything unexpected becomes a plain 500 problem whose text is withheld; the log has the rest under the request id.
"""

from __future__ import annotations

import re
import uuid
from typing import Any

import orjson
import structlog
from flask import Flask, Response, g, request
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from sentinel.core import errors as e

TYPE_PREFIX = "urn:sentinel:problem:"

STATUSES: dict[type[e.SentinelError], tuple[int, str]] = {
    e.InvalidInput: (400, "The request breaks a rule"),
    e.Unauthenticated: (401, "Not signed in"),
    e.Forbidden: (403, "Not allowed"),
    e.PermitRefused: (403, "The permit cannot be redeemed"),
    e.NotFound: (404, "Not found"),
    e.StillDeciding: (409, "Still being decided"),
    e.AlreadyStarted: (409, "Already started"),
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
}
"""Error class → (status, title). A subclass without a line takes its parent's."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/@-]{1,128}")
_RETRY_SECONDS = {409: 1, 503: 1}

log = structlog.get_logger("sentinel.http")


def status_of(error: e.SentinelError) -> tuple[int, str]:
    """(HTTP status, title) of one of our errors; (500, …) for a class nobody listed."""
    for parent in type(error).__mro__:
        if parent in STATUSES:
            return STATUSES[parent]
    return 500, "Internal error"


def problem_response(error: e.SentinelError) -> Response:
    """The problem document of an expected refusal."""
    status, title = status_of(error)
    extra: dict[str, Any] = {"errors": error.errors} if error.errors else {}
    detail = error.detail
    if isinstance(error, e.EngineUnavailable):
        # A careless client that reads only the decision stays closed. The cause is for the log, not for callers.
        log.error("engine_unavailable", cause=detail)
        detail = "The decision could not be recorded; nothing is allowed. Ask again with the same key."
        extra |= {"decision": "DENY", "reason_code": "engine_unavailable", "retryable": True}
    response = _problem(status, error.code, title, detail, extra)
    if isinstance(error, e.RateLimited):
        response.headers["Retry-After"] = str(error.retry_after_seconds)
    elif status == 503 or isinstance(error, e.StillDeciding):
        response.headers["Retry-After"] = str(_RETRY_SECONDS[status])
    return response


def _problem(status: int, code: str, title: str, detail: str, extra: dict[str, Any]) -> Response:
    body = {
        "type": TYPE_PREFIX + code, "title": title, "status": status, "detail": detail, "instance": request_id(), **extra,
    }  # fmt: skip
    response = Response(orjson.dumps(body), status=status, content_type="application/problem+json")
    response.headers["Cache-Control"] = "no-store"
    if status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def request_id() -> str:
    """This request's id: the caller's `X-Request-ID` if it is a plain identifier, else one made here."""
    if "request_id" not in g:
        given = request.headers.get("X-Request-ID", "")
        g.request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
    found: str = g.request_id
    return found


def register(app: Flask) -> None:
    """Install the handlers on an app: ours, the framework's and the last resort."""

    @app.errorhandler(e.SentinelError)
    def expected(error: e.SentinelError) -> Response:
        return problem_response(error)

    @app.errorhandler(HTTPException)
    def framework(error: HTTPException) -> Response:
        status = error.code or 500
        if 300 <= status < 400:
            return Response(status=404)
        code = (error.name or "error").lower().replace(" ", "-")
        response = _problem(status, code, error.name or "Error", error.description or "", {})
        if isinstance(error, MethodNotAllowed) and error.valid_methods:
            response.headers["Allow"] = ", ".join(sorted(error.valid_methods))
        return response

    @app.errorhandler(Exception)
    def unexpected(error: Exception) -> Response:
        log.exception("unexpected_error", path=request.path)
        return _problem(500, "internal", "Internal error", "An unexpected error was logged under this request id.", {})

    @app.after_request
    def echo_request_id(response: Response) -> Response:
        response.headers["X-Request-ID"] = request_id()
        return response
