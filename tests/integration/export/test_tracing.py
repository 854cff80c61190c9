"""OpenTelemetry: the caller's trace is taken on and passed on, no span has an argument, and without it nothing is imported."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sentinel.authority.api import calls
from sentinel.authority.app import create_app
from sentinel.authority.settings import Settings
from sentinel.client.transport import Endpoint
from sentinel.export.sender import EventSender
from sentinel.platform import tracing
from sentinel.platform.http.rate_limit import SharedRateLimit
from sentinel.platform.settings import UnsafeConfiguration
from sentinel.platform.tracing import Tracing, tracing_of
from tests.support.asgi_client import InProcessApp
from tests.support.event_receiver import answers
from tests.support.export_fixtures import exporting
from tests.support.fixtures import SECRET, Fixtures, guard_body

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def traced(spans: InMemorySpanExporter) -> Iterator[Tracing]:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    yield Tracing("test", provider)
    provider.shutdown()


def header_of(context: Any) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def test_a_guard_is_a_span_of_the_callers_trace_without_arguments(
    fixtures: Fixtures, traced: Tracing, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "tracing_of", lambda service: traced)
    settings = Settings(database_url=fixtures.url, secret_keys=(SECRET,))
    app = InProcessApp(create_app(settings, fixtures.authority, SharedRateLimit(per_second=1000, burst=1000)))
    try:
        headers = {"X-API-Key": fixtures.key, "traceparent": PARENT}
        body = guard_body("key_of_the_traced", value="913.57")
        answer = app.test_client().post("/api/sentinel/action/guard", json=body, headers=headers).get_json()
        refused = app.test_client().post("/api/sentinel/action/guard", json={}, headers=headers)
    finally:
        app.close()
    assert refused.status_code == 400
    span, of_refused = spans.get_finished_spans()
    assert dict(of_refused.attributes or {}) == {"http.response.status_code": 400}, (
        "what is refused is a span, and says no more"
    )
    assert (span.name, f"{span.context.trace_id:032x}") == ("sentinel.guard", PARENT[3:35])
    assert span.parent is not None and f"{span.parent.span_id:016x}" == PARENT[36:52]
    told = dict(span.attributes or {})
    assert told["sentinel.decision"] == "APPROVAL_REQUIRED" and told["sentinel.approval_id"] == answer["approval_id"]
    assert (told["gen_ai.operation.name"], told["gen_ai.tool.name"]) == ("execute_tool", "refund.create")
    assert not [name for name in told if "argument" in name or "result" in name]
    assert "913.57" not in str(told) and 91357 not in told.values(), "no amount"
    assert "key_of_the_traced" not in str(told), "no key, no params"


def test_what_is_refused_at_once_is_a_span_too(
    fixtures: Fixtures, traced: Tracing, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "tracing_of", lambda service: traced)
    settings = Settings(database_url=fixtures.url, secret_keys=(SECRET,))
    limit = SharedRateLimit(per_second=1, burst=1, clock=lambda: 1000.0)
    app = InProcessApp(create_app(settings, fixtures.authority, limit))
    try:
        headers = {"X-API-Key": fixtures.key, "traceparent": PARENT}
        statuses = [
            app.test_client().post("/api/sentinel/action/guard", json=guard_body(), headers=headers).status_code
            for _ in range(2)
        ]
    finally:
        app.close()
    assert statuses == [200, 429]
    _, of_refused = spans.get_finished_spans()
    assert dict(of_refused.attributes or {}) == {"http.response.status_code": 429}
    assert f"{of_refused.context.trace_id:032x}" == PARENT[3:35]


def test_a_failing_span_harms_no_answer(fixtures: Fixtures, traced: Tracing, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: Any, **named: Any) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(calls, "tracing_of", lambda service: traced)
    monkeypatch.setattr(Tracing, "record", broken)
    settings = Settings(database_url=fixtures.url, secret_keys=(SECRET,))
    app = InProcessApp(create_app(settings, fixtures.authority, SharedRateLimit(per_second=1000, burst=1000)))
    try:
        answer = app.test_client().post(
            "/api/sentinel/action/guard", json=guard_body(), headers={"X-API-Key": fixtures.key}
        )
    finally:
        app.close()
    assert (answer.status_code, answer.get_json()["decision"]) == (200, "ALLOW")


def test_the_sender_passes_its_trace_on_and_says_what_failed(
    fixtures: Fixtures, traced: Tracing, spans: InMemorySpanExporter
) -> None:
    with exporting(fixtures) as export:
        export.sender = EventSender(export.sender._deliveries, export.sender._receivers, tracing=traced)
        export.receiver.faults[:] = [answers(503)]
        fixtures.guard()
        export.send()
        export.due_now()
        export.send()
        failed, sent = spans.get_finished_spans()
        passed_on = [asked.headers["traceparent"] for asked in export.receiver.http.asked]
    assert passed_on == [header_of(one.context) for one in (failed, sent)]
    assert (failed.attributes or {})["error.type"] == "http_503" and "error.type" not in (sent.attributes or {})
    assert (sent.attributes or {})["sentinel.receiver"] == "webhook"


def test_a_client_passes_the_agents_trace_on(traced: Tracing) -> None:
    endpoint = Endpoint("http://127.0.0.1:7860", {})
    assert b"traceparent" not in endpoint.request("POST", "/x", b"{}")
    with traced.calling("agent", {}) as span:
        sent = endpoint.request("POST", "/x", b"{}")
    found = span.get_span_context()
    assert f"\r\ntraceparent: {header_of(found)}\r\n".encode() in sent
    assert trace.get_current_span().get_span_context().is_valid is False


def test_without_an_endpoint_there_are_no_spans_and_nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in tracing.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert tracing_of("sentinel") is None
    program = "import sys, sentinel.authority.app, sentinel.export.build, sentinel.client; print([m for m in sys.modules if m.startswith('opentelemetry')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    assert tracing_of("sentinel") is not None
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(UnsafeConfiguration, match="otel"):
        tracing_of("sentinel")


@pytest.mark.parametrize(
    ("variable", "value"), [("OTEL_BSP_MAX_QUEUE_SIZE", "256"), ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4096"), ("OTEL_SPAN_EVENT_COUNT_LIMIT", "x")]
)  # fmt: skip
def test_traces_that_cannot_be_set_up_are_refused_at_the_start(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finding: the first span failed, and with it each batch of the worker's rows and each event of the sender's."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv(variable, value)
    with pytest.raises(UnsafeConfiguration, match="OTEL_"):
        tracing_of("sentinel-worker")


@pytest.mark.parametrize("around", ["calling", "working"])
def test_a_span_in_which_something_is_raised_has_nothing_of_its_text(
    traced: Tracing, spans: InMemorySpanExporter, around: str
) -> None:
    with pytest.raises(ValueError, match="of a customer"), getattr(traced, around)("sentinel.export", {"attempt": 1}):
        raise ValueError("a text of a customer")
    (span,) = spans.get_finished_spans()
    assert "customer" not in span.to_json()
    if around == "calling":
        assert (span.status.status_code, (span.attributes or {})["error.type"]) == (
            trace.StatusCode.ERROR,
            "ValueError",
        )
