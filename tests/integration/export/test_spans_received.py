"""Spans as a collector receives them, by OTLP over HTTP: an agent's call of a tool and a worker's batch are each one trace."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from sentinel.authority.app import create_app
from sentinel.authority.settings import Settings
from sentinel.cli.scratch import listening
from sentinel.platform.http.rate_limit import SharedRateLimit
from tests.support.asgi_client import InProcessApp
from tests.support.fixtures import SECRET, Fixtures
from tests.support.ledger_fixtures import ROOT, LedgerFixtures, new_row, wait_until, worker_process
from tests.support.scripted_server import ScriptedServer

TOOLS = ROOT / "tests" / "adapters" / "tools.yaml"
AGENT = """
import sys
from pathlib import Path
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from sentinel.client import Client
from sentinel.integrations import ToolGuard
from sentinel.tools import read_tool_table

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)
url, key, table = sys.argv[1:]
known = {"account": "acct-private", "clean": True, "attempts": 1}
guard = ToolGuard(read_tool_table(Path(table)), Client(url, key, agent_id="agent"), facts=lambda tool, given: known)
with trace.get_tracer("agent").start_as_current_span("invoke_agent"):
    for tool, amount in (("create_refund", 5000), ("create_refund", 500_000), ("made up by a model", 1)):
        guard.attempt(tool, {"payment_intent": f"pi_private_{amount}", "amount": amount}, lambda given: "done")
"""
Span = dict[str, Any]


class Collector(ScriptedServer):
    """Takes spans as a collector does."""

    def __init__(self) -> None:
        super().__init__()
        self.script = lambda asked: asked.answer(200, b"", "application/x-protobuf")

    def spans(self) -> list[Span]:
        """What came so far, of each its name, service, ids and attributes."""
        found = []
        for asked in self.asked:
            assert (asked.method, asked.path) == ("POST", "/v1/traces")
            for resource in ExportTraceServiceRequest.FromString(asked.body).resource_spans:
                service = {one.key: one.value.string_value for one in resource.resource.attributes}["service.name"]
                for span in (one for scope in resource.scope_spans for one in scope.spans):
                    told = {one.key: one.value.string_value or one.value.int_value for one in span.attributes}
                    found.append({
                        "name": span.name, "service": service, "trace": span.trace_id, "id": span.span_id,
                        "parent": span.parent_span_id, "told": told, "events": len(span.events),
                    })  # fmt: skip
        return found

    def ways(self, name: str) -> list[tuple[str, ...]]:
        """Of each span of the name: the names from the root of its trace to it."""
        spans = self.spans()
        by_id = {(one["trace"], one["id"]): one for one in spans}

        def way(span: Span) -> tuple[str, ...]:
            parent = by_id.get((span["trace"], span["parent"]))
            assert parent is not None or not span["parent"], f"the parent of {span['name']} did not come"
            return (*(way(parent) if parent else ()), span["name"])

        return sorted(way(one) for one in spans if one["name"] == name)


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector that the programs are told of."""
    with Collector().running() as running:
        assert isinstance(running, Collector)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", running.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        yield running


@contextmanager
def traced_authority(fixtures: Fixtures) -> Iterator[str]:
    """The authority, as it is with that environment; its address."""
    settings = Settings(database_url=fixtures.url, secret_keys=(SECRET,))
    app = InProcessApp(create_app(settings, fixtures.authority, SharedRateLimit(per_second=1000, burst=1000)))
    try:
        with listening(app) as url:
            yield url
    finally:
        app.close()


def test_an_agents_call_of_a_tool_is_one_trace_to_the_authority_without_its_arguments(
    fixtures: Fixtures, collector: Collector
) -> None:
    key = fixtures.key  # a worker's, so that the facts count
    with traced_authority(fixtures) as url:
        command = [sys.executable, "-c", AGENT, url, key, str(TOOLS)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=Path(ROOT))
        assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
        wait_until(lambda: len(collector.spans()) >= 12)
    tool = ("invoke_agent", "execute_tool")
    assert collector.ways("sentinel.guard") == [(*tool, "sentinel.action.guard", "sentinel.guard")] * 2
    assert collector.ways("sentinel.start") == [(*tool, "sentinel.action.guard.start", "sentinel.start")]
    assert collector.ways("sentinel.report") == [(*tool, "sentinel.action.guard.report", "sentinel.report")]
    told = [one["told"] for one in collector.spans() if one["name"] == "execute_tool"]
    assert {one["gen_ai.agent.id"] for one in told} == {"agent"}
    assert {(one["sentinel.decision"], one["sentinel.reason_code"]) for one in told} == {
        ("ALLOW", "within_policy_limit"), ("DENY", "over_limit"), ("DENY", "unmapped_tool"),
    }  # fmt: skip
    sent = b"".join(asked.body for asked in collector.asked)
    assert not [one for one in (b"private", b"500000", b"made up", key.encode()) if one in sent], (
        "no arguments, no keys"
    )


def test_a_workers_batch_is_one_trace_to_the_authority(fixtures: Fixtures, collector: Collector) -> None:
    ledger = LedgerFixtures(fixtures.url, fixtures.tenant_id)
    with traced_authority(fixtures) as url:
        ledger.add(*[new_row(name) for name in ("row_private_1", "row_private_2")])
        worker = worker_process(
            ["--once"], database_url=fixtures.url, authority_url=url, SENTINEL_REFUND_AGENT_API_KEY=fixtures.key,
            SENTINEL_TENANT_ID=str(fixtures.tenant_id), WORKER_GUARD_TIMEOUT_SECONDS="10", WORKER_LEASE_SECONDS="40",
            OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, OTEL_BSP_SCHEDULE_DELAY="50",
        )  # fmt: skip
        out, errors = worker.communicate(timeout=60)
        assert worker.returncode == 0, out + errors
        batch = ("worker.refunds.batch", "sentinel.action.guard.batch", "sentinel.guard.batch")
        wait_until(lambda: {one["name"] for one in collector.spans()} >= set(batch))
    ledger.close()
    assert collector.ways("sentinel.guard.batch") == [batch]
    services = {one["name"]: one["service"] for one in collector.spans()}
    assert [services[name] for name in batch] == ["sentinel-worker", "sentinel-worker", "sentinel"]
    (of_batch,) = [one for one in collector.spans() if one["name"] == batch[0]]
    assert of_batch["told"] == {"worker.rows": 2} and not of_batch["events"]
    assert b"private" not in b"".join(asked.body for asked in collector.asked)
