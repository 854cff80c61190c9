"""The trace that the calling program is in (W3C Trace Context), where it uses OpenTelemetry. Nothing of it is imported here."""

from __future__ import annotations

import sys


def current_traceparent() -> str | None:
    """The `traceparent` of the current span, or None: no OpenTelemetry in this process, or no span."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    found = api.get_current_span().get_span_context()
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}" if found.is_valid else None
