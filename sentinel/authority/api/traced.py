"""Spans of guard, start and report. They wrap the handlers, so that a server without tracing has no overhead."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

import orjson
import structlog

from sentinel.core.errors import SentinelError
from sentinel.platform.http.problems import status_of
from sentinel.platform.http.wire import EdgeResponse, Handler, QuickHandler, Request, request_id_of
from sentinel.platform.tracing import Tracing

log = structlog.get_logger("sentinel.guard")
_FROM_ANSWER = {
    "sentinel.decision": "decision", "sentinel.reason_code": "reason_code", "sentinel.policy.id": "policy_id",
    "sentinel.policy.version": "policy_version", "sentinel.operation_id": "operation_id", "sentinel.approval_id": "approval_id",
}  # fmt: skip


_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)


def is_traceparent(text: str) -> bool:
    """Return whether the text has the form of W3C Trace Context; anything else must not be logged."""
    return _TRACEPARENT.fullmatch(text) is not None


def trace_of(environ: Mapping[str, Any]) -> bytes | None:
    """Return the trace and span id of the caller's `traceparent`, 16 and 8 bytes together.

    Returns None if the caller sent none, or one that is invalid by W3C Trace Context.
    """
    text: str | None = environ.get("HTTP_TRACEPARENT")
    if text is None or not is_traceparent(text) or text.startswith("ff"):
        return None
    trace, span = bytes.fromhex(text[3:35]), bytes.fromhex(text[36:52])
    return trace + span if any(trace) and any(span) else None


class TracedHandler(QuickHandler):
    """A route for one request whose span is `sentinel.<name>`, within the caller's trace."""

    def __init__(self, handler: QuickHandler, name: str, tracing: Tracing) -> None:
        self._handler, self._name, self._tracing = handler, name, tracing

    def begin(self, request: Request, reply: Callable[[EdgeResponse], None]) -> None:
        """Call the wrapped handler, and record the span after the answer was sent; of a refusal that is known at once, before."""
        began_ns = time.time_ns()
        traceparent = request.environ.get("HTTP_TRACEPARENT", "")

        def replied(answer: EdgeResponse) -> None:
            reply(answer)
            # After the answer nothing may raise: the error would be answered a second time.
            with contextlib.suppress(Exception):
                self._record(request, answer, traceparent, began_ns)

        try:
            self._handler.begin(request, replied)
        except SentinelError as refusal:  # whoever called makes the answer of it
            with contextlib.suppress(Exception):
                self._record(request, EdgeResponse(b"", status_of(refusal)[0]), traceparent, began_ns)
            raise

    def _record(self, request: Request, answer: EdgeResponse, traceparent: str, began_ns: int) -> None:
        attributes = span_attributes(answer)
        self._tracing.record(
            f"sentinel.{self._name}", traceparent=traceparent, began_ns=began_ns, attributes=attributes,
            failed=answer.status >= 500,
        )  # fmt: skip
        operation_id = attributes.get("sentinel.operation_id")
        if operation_id and is_traceparent(traceparent):
            told = {"operation_id": operation_id, "request_id": request_id_of(request.environ)}
            log.info("trace", traceparent=traceparent, **told)


def traced_batch(handler: Handler, name: str, tracing: Tracing) -> Handler:
    """A route for many requests whose span is `sentinel.<name>.batch`, within the caller's trace."""

    async def traced(request: Request) -> EdgeResponse:
        began_ns, found = time.time_ns(), dict[str, Any]()
        try:
            answer = await handler(request)
            found["http.response.status_code"] = answer.status
            return answer
        except Exception as error:
            found["error.type"] = type(error).__name__
            raise
        finally:
            with contextlib.suppress(Exception):
                tracing.record(
                    f"sentinel.{name}.batch", traceparent=request.environ.get("HTTP_TRACEPARENT", ""), began_ns=began_ns,
                    attributes=found, failed="error.type" in found,
                )  # fmt: skip

    return traced


def span_attributes(answer: EdgeResponse) -> dict[str, Any]:
    """Return a span's attributes for an answer: codes and ids, but no arguments and no amounts."""
    found: dict[str, Any] = {"http.response.status_code": answer.status}
    if answer.status != 200:
        return found
    body = orjson.loads(answer.body)
    pack = body.get("proof_pack", {})
    found |= {name: body[field] for name, field in _FROM_ANSWER.items() if field in body}
    if pack:
        found |= {
            "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": pack["action"], "gen_ai.agent.id": pack["agent_id"],
        }  # fmt: skip
    return found
