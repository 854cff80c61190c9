"""Spans as a collector receives them, by OTLP over HTTP: an agent's call of a tool and a worker's batch are each one trace."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sentinel.authority.app import create_app
from sentinel.authority.settings import Settings
from sentinel.cli.scratch import listening
from sentinel.platform.http.rate_limit import SharedRateLimit
from tests.support.asgi_client import InProcessApp
from tests.support.fixtures import SECRET, Fixtures
from tests.support.ledger_fixtures import ROOT, LedgerFixtures, new_row, wait_until, worker_process
from tests.support.span_collector import Collector

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
guard = ToolGuard(read_tool_table(Path(table)), Client(url, key, agent_id="agent", timeout_seconds=60), facts=lambda tool, given: known)
with trace.get_tracer("agent").start_as_current_span("invoke_agent"):
    for tool, amount in (("create_refund", 5000), ("create_refund", 500_000), ("made up by a model", 1)):
        guard.attempt(tool, {"payment_intent": f"pi_private_{amount}", "amount": amount}, lambda given: "done")
"""


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector that the programs are told of."""
    with Collector().running() as running:
        assert isinstance(running, Collector)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", running.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60")
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
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=Path(ROOT))
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
    numbers = {value for one in collector.spans() for value in one["told"].values() if isinstance(value, int)}
    assert not {5_000, 500_000} & numbers, "a number is not sent as text"


def test_a_workers_batch_is_one_trace_to_the_authority(fixtures: Fixtures, collector: Collector) -> None:
    ledger = LedgerFixtures(fixtures.url, fixtures.tenant_id)
    with traced_authority(fixtures) as url:
        ledger.add(*[new_row(f"row_private_{number}") for number in range(12)])
        worker = worker_process(
            ["--once"], database_url=fixtures.url, authority_url=url, SENTINEL_REFUND_AGENT_API_KEY=fixtures.key,
            SENTINEL_TENANT_ID=str(fixtures.tenant_id), OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, OTEL_BSP_SCHEDULE_DELAY="50",
            OTEL_EXPORTER_OTLP_TIMEOUT="60",
        )  # fmt: skip
        out, errors = worker.communicate(timeout=120)
        assert worker.returncode == 0, out + errors
        batch = ("worker.refunds.batch", "sentinel.action.guard.batch", "sentinel.guard.batch")
        wait_until(lambda: {one["name"] for one in collector.spans()} >= set(batch))
    ledger.close()
    assert set(collector.ways("sentinel.guard.batch")) == {batch}
    services = {one["name"]: one["service"] for one in collector.spans()}
    assert [services[name] for name in batch] == ["sentinel-worker", "sentinel-worker", "sentinel"]
    of_batches = [one for one in collector.spans() if one["name"] == batch[0]]
    assert all(list(one["told"]) == ["worker.rows"] and not one["events"] for one in of_batches)
    # Three lanes claim at once and share the rows as it happens: one row may be left to go alone.
    assert sum(one["told"]["worker.rows"] for one in of_batches) == 12
    assert b"private" not in b"".join(asked.body for asked in collector.asked)
