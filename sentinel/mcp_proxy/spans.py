"""Spans of agents' requests (OpenTelemetry's conventions for MCP and for tools), and propagation of their trace.

No span has arguments, results, or text that a model or a server wrote. The SDK's own spans have such text in names and
states, so they are turned off. An agent's trace (`traceparent` in a request's `_meta`, else the header) is passed on to
the authority and to the server whether spans are collected or not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mcp_types as types
from opentelemetry import context, trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from sentinel.client.transport import open_span
from sentinel.integrations import refusal_details
from sentinel.mcp_proxy.answers import CallRefused
from sentinel.mcp_proxy.calls import PermittedCall, Result
from sentinel.mcp_proxy.options import WrongOptions
from sentinel.platform.last_spans import end_at_exit
from sentinel.tools.model import ToolMapping

VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
SERVICE = "sentinel-mcp-proxy"
_FIELDS = ("traceparent", "tracestate")


class _OnlyOurs(trace.TracerProvider):
    """A tracer provider that records the spans of `sentinel`, and none of the libraries in this process."""

    def __init__(self, provider: Any) -> None:
        self._provider = provider

    def get_tracer(self, instrumenting_module_name: str, *args: Any, **rest: Any) -> Any:
        provider = self._provider if instrumenting_module_name == "sentinel" else trace.NoOpTracerProvider()
        return provider.get_tracer(instrumenting_module_name, *args, **rest)


def collect_spans() -> None:
    """Export this process's spans to the endpoint that the environment names, if any. Raises `WrongOptions` without the extra `otel`."""
    named = next((name for name in VARIABLES if os.environ.get(name)), None)
    if named is None:
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise WrongOptions(f"{named}: needs the extra `otel`, which is not installed") from error
    provider = TracerProvider(resource=Resource.create({"service.name": SERVICE}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    end_at_exit(provider)
    trace.set_tracer_provider(_OnlyOurs(provider))


class CallSpan:
    """Records one request on its span; does nothing where spans are not collected."""

    def __init__(self, span: Any) -> None:
        self._span = span

    def permitted(self, call: PermittedCall) -> None:
        """Record that the call may be made."""
        answer = call.answer
        if answer is not None:
            told = {"decision": answer.decision, "reason_code": answer.reason_code, "operation_id": answer.operation_id}
            self._tell(told)

    def refused(self, refused: CallRefused) -> None:
        """Record that the call was not made."""
        details = refusal_details(refused.error)
        told = {name: details.get(name) for name in ("decision", "reason_code", "approval_id")}
        self._tell({**told, "operation_id": refused.answer.operation_id if refused.answer is not None else None})

    def ended(self, result: Result) -> None:
        """Record the result of a call that was made."""
        if isinstance(result, types.CallToolResult) and result.is_error and self._span is not None:
            self._span.set_attribute("error.type", "tool_error")
            self._span.set_status(trace.StatusCode.ERROR)

    def _tell(self, told: dict[str, Any]) -> None:
        if self._span is not None:
            self._span.set_attributes({f"sentinel.{name}": value for name, value in told.items() if value})


@contextmanager
def request_span(ctx: Any, method: str, agent: str, mapping: ToolMapping | None = None) -> Iterator[CallSpan]:
    """Open a span around one request of an agent, within its trace. `mapping` is the called tool's; None for an unmapped tool."""
    told = {
        "mcp.method.name": method,
        "mcp.protocol.version": str(ctx.protocol_version or ""),
        "gen_ai.agent.id": agent,
    }
    headers = ctx.request.headers if ctx.request is not None else {}
    if headers.get("mcp-session-id"):
        told["mcp.session.id"] = headers["mcp-session-id"]
    if method == "tools/call":
        told["gen_ai.operation.name"] = "execute_tool"
    if mapping is not None:
        told["gen_ai.tool.name"] = mapping.tool
    token = context.attach(_trace_of(ctx.meta or {}, headers))
    try:
        with open_span(f"{method} {mapping.tool}" if mapping else method, "SERVER", told) as span:
            yield CallSpan(span)
    finally:
        context.detach(token)


def _trace_of(meta: Any, headers: Any) -> Any:
    """Return the context of the trace that a request names; an empty one where it names none."""
    carrier = meta if isinstance(meta.get("traceparent"), str) else headers
    named = {name: value for name in _FIELDS if isinstance(value := carrier.get(name), str)}
    return TraceContextTextMapPropagator().extract(named)
