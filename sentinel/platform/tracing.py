"""OpenTelemetry spans, when an OTLP endpoint is set and the extra `otel` is installed; else nothing of it is imported.

Endpoint, headers and sampling are set by the SDK's own environment variables (`OTEL_…`). No span has arguments of a
tool, params or free text.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sentinel.platform.last_spans import end_at_exit
from sentinel.platform.settings import UnsafeConfiguration

VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def is_wanted() -> bool:
    """Whether the environment names an endpoint for spans."""
    return any(os.environ.get(name) for name in VARIABLES)


def tracing_of(service: str, *, with_client: bool = False) -> Tracing | None:
    """The tracing of a program, or None without an endpoint. Raises as `require_tracing`.

    `with_client`: also record the spans that `sentinel.client` makes in this process.
    """
    require_tracing(service)
    return Tracing(service, with_client=with_client) if is_wanted() else None


def require_tracing(service: str) -> None:
    """Raise `UnsafeConfiguration` where spans are wanted and cannot be recorded: without the extra, or with settings that the SDK refuses.

    Otherwise the program's first span would raise, and each one after it, in place of the work that it is around.
    """
    if not is_wanted():
        return
    try:
        import opentelemetry.sdk.trace  # noqa: F401
    except ImportError:
        raise UnsafeConfiguration(f"{VARIABLES[0]}: needs the extra `otel`, which is not installed") from None
    try:
        _provider(service).shutdown()
    except Exception as error:  # of any kind: each setting has its own
        raise UnsafeConfiguration(f"traces cannot be set up by the OTEL_… variables: {error}") from error


class Tracing:
    """Records spans. The exporter is made at the first span, in the process of that span, because servers fork."""

    def __init__(self, service: str, provider: Any = None, *, with_client: bool = False) -> None:
        self._service, self._provider, self._lock = service, provider, threading.Lock()
        self._with_client = with_client

    def record(
        self, name: str, *, traceparent: str, began_ns: int, attributes: Mapping[str, Any], failed: bool = False
    ) -> None:
        """Record a server's span that ends now, within the caller's trace if `traceparent` names one; `began_ns` is Unix time."""
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        parent = TraceContextTextMapPropagator().extract({"traceparent": traceparent})
        span = self._tracer().start_span(
            name, context=parent, kind=SpanKind.SERVER, start_time=began_ns, attributes=dict(attributes)
        )
        _mark(span, failed)
        span.end()

    @contextmanager
    def working(self, name: str, attributes: Mapping[str, Any]) -> Iterator[Any]:
        """A span around a piece of the program's own work; spans of calls in the block are its children."""
        with self._tracer().start_as_current_span(
            name, attributes=dict(attributes), record_exception=False, set_status_on_exception=False
        ) as span:
            yield span

    @contextmanager
    def calling(self, name: str, attributes: Mapping[str, Any]) -> Iterator[Any]:
        """A client's span around a call to another service; it is yielded for `set_attribute` and `mark_failed`.

        Of an exception in the block the span has only the class, because the text may contain anything.
        """
        from opentelemetry.trace import SpanKind

        with self._tracer().start_as_current_span(
            name,
            kind=SpanKind.CLIENT,
            attributes=dict(attributes),
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except Exception as error:
                mark_failed(span, type(error).__name__)
                raise

    def _tracer(self) -> Any:
        with self._lock:
            if self._provider is None:
                self._provider = _provider(self._service)
                end_at_exit(self._provider)
                if self._with_client:
                    from opentelemetry.trace import set_tracer_provider

                    set_tracer_provider(self._provider)
        return self._provider.get_tracer("sentinel")


def _mark(span: Any, failed: bool) -> None:
    from opentelemetry.trace import StatusCode

    if failed:
        span.set_status(StatusCode.ERROR)


def mark_failed(span: Any, error: str) -> None:
    """Mark the call of a span as failed; `error` is a code, recorded as `error.type`."""
    span.set_attribute("error.type", error)
    _mark(span, True)


def _provider(service: str) -> Any:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({"service.name": service}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
