"""OpenTelemetry's API as far as our spans need it, in an environment without its SDK: keeps what each span was told."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any


class RecordedSpan(dict[str, Any]):
    """The attributes of a span."""

    set_attribute = dict.__setitem__
    set_attributes = dict.update

    def set_status(self, status: Any) -> None:
        """Not kept."""


class RecordedSpans:
    """Stands for the module `opentelemetry.trace` in this process while it is entered."""

    SpanKind = {name: name for name in ("INTERNAL", "CLIENT", "SERVER")}
    StatusCode = SimpleNamespace(ERROR="ERROR")

    def __init__(self) -> None:
        self.spans: list[RecordedSpan] = []

    def get_tracer(self, name: str) -> RecordedSpans:
        """Of whatever name."""
        return self

    def get_current_span(self) -> Any:
        """None is the current one."""
        return SimpleNamespace(get_span_context=lambda: SimpleNamespace(is_valid=False))

    @contextmanager
    def start_as_current_span(self, name: str, *, attributes: Mapping[str, Any], **rest: Any) -> Iterator[RecordedSpan]:
        """A span."""
        self.spans.append(RecordedSpan({"name": name, **attributes}))
        yield self.spans[-1]

    @contextmanager
    def recording(self) -> Iterator[list[RecordedSpan]]:
        """Ours find this module; whoever imported the real one keeps it."""
        real = sys.modules.get("opentelemetry.trace")
        sys.modules["opentelemetry.trace"] = self  # type: ignore[assignment]
        try:
            yield self.spans
        finally:
            del sys.modules["opentelemetry.trace"]
            if real is not None:
                sys.modules["opentelemetry.trace"] = real
