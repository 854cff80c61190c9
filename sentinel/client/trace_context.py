"""The trace that the calling program is in (W3C Trace Context), where it uses OpenTelemetry. Nothing of it is imported here."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any


def current_traceparent() -> str | None:
    """The `traceparent` of the current span, or None: no OpenTelemetry in this process, or no span."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    found = api.get_current_span().get_span_context()
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}" if found.is_valid else None


def call_span(method: str, path: str) -> AbstractContextManager[Any]:
    """A span around one call to the authority, named by its route, e.g. `sentinel.action.guard`. None for reads, which are polled."""
    if method != "POST" or "opentelemetry.trace" not in sys.modules:
        return nullcontext()
    return open_span("sentinel" + path.replace("/", "."), "CLIENT", {})


@contextmanager
def open_span(name: str, kind: str, attributes: Mapping[str, Any]) -> Iterator[Any]:
    """A span of the program's own tracer as the current one, or None without OpenTelemetry.

    Of an exception it has the type alone: a text may carry what must not leave this process.
    """
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        yield None
        return
    with api.get_tracer("sentinel").start_as_current_span(
        name, kind=api.SpanKind[kind], attributes=attributes, record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield span
        except BaseException as error:
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(api.StatusCode.ERROR)
            raise
