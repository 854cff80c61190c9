"""The end of a process that records spans."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from tests.support.span_collector import Collector

RECORDS_ONE = """
from sentinel.platform.tracing import Tracing
Tracing("sentinel").record("sentinel.guard", traceparent="", began_ns=1, attributes={})
"""


def end_with(endpoint: str) -> None:
    """A process that records a span and ends; raises where that takes longer than a supervisor would wait."""
    env = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_TIMEOUT": "60"}
    subprocess.run([sys.executable, "-c", RECORDS_ONE], env=env, check=True, timeout=28)


def test_a_process_ends_although_its_collector_does_not_answer() -> None:
    """The finding: the SDK waits for it, up to half a minute, and an upgrade for the process."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        end_with(f"http://127.0.0.1:{silent.getsockname()[1]}")


def test_the_last_spans_are_sent_as_a_process_ends() -> None:
    with Collector().running() as collector:
        end_with(collector.url)
        assert [one["name"] for one in collector.spans()] == ["sentinel.guard"]
