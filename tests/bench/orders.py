"""Order review under load: first deliveries of low orders to their end, then the same deliveries again.

An intake process of its own beside the authority that is measured anyway; no model, the simulated shop. A first delivery
is taken, scored, decided, started, fulfilled and recorded before it is answered; its report follows.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sentinel.platform.resources import policies_dir
from tests.bench.load import LoadResult, request_bytes, run_load
from tests.support.order_fixtures import SECRET, order_body, signed
from tests.support.ports import free_port

CONNECTIONS = 24
"""As many orders in hand as keep both processors busy: with 20 to 32 the rate is the same, with more only the wait grows."""
WARM_SECONDS = 1.5
MOST_PER_SECOND = 3000
"""Orders prepared for each second: were they used up before the time is over, the rate would be too low."""


@dataclass(frozen=True)
class Place:
    """Where the authority and the database are, and as whom the intake asks them."""

    database_url: str
    authority_port: int
    tenant_id: uuid.UUID
    key: str


def deliveries() -> Iterator[bytes]:
    """Endless distinct orders, each from an account of its own."""
    run = os.urandom(4).hex()
    for number in itertools.count():
        body = order_body(f"b-{run}-{number}", account_ref=f"acct-{run}-{number}")
        yield request_bytes(
            "/webhooks/demo/orders", body, {"X-Sentinel-Signature": signed(body)["X-Sentinel-Signature"]}
        )


def measure(place: Place, seconds: float) -> tuple[LoadResult, LoadResult]:
    """(first deliveries, redeliveries) at CONNECTIONS connections. Raises `SystemExit` for an answer other than 200."""
    # Made before the clock runs: the generator shares the processors with what it measures.
    prepared = list(itertools.islice(deliveries(), int((seconds + WARM_SECONDS) * MOST_PER_SECOND)))
    with running_intake(place) as port:
        first = run_load(
            ("127.0.0.1", port), iter(prepared), connections=CONNECTIONS, seconds=seconds, warm_seconds=WARM_SECONDS
        )
        # The reports still go out: they belong to the first ones.
        time.sleep(0.5)
        answered = prepared[: len(first.latencies)]
        again = run_load(("127.0.0.1", port), itertools.cycle(answered), connections=CONNECTIONS, seconds=seconds / 2)
    for name, result in (("orders", first), ("redelivery", again)):
        if wrong := {status: count for status, count in result.statuses.items() if status != 200}:
            raise SystemExit(f"{name}: answers other than 200: {wrong}")
    return first, again


@contextlib.contextmanager
def running_intake(place: Place) -> Iterator[int]:
    """`python -m worker.orders` with one process, whose demo source may send as fast as it can; yields its port."""
    with tempfile.TemporaryDirectory() as folder:
        policies = Path(folder) / "policies"
        shutil.copytree(policies_dir(), policies)
        _without_rate(policies / "order_sources.yaml")
        port = free_port()
        process = subprocess.Popen(
            [sys.executable, "-m", "worker.orders", "--port", str(port), "--graceful-seconds", "1"],
            env=os.environ | _environment(place, policies), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            _wait(port)
            yield port
        finally:
            process.terminate()
            process.wait(timeout=10)


def _environment(place: Place, policies: Path) -> dict[str, str]:
    return {
        "SENTINEL_DATABASE_URL": place.database_url, "SENTINEL_URL": f"http://127.0.0.1:{place.authority_port}",
        "SENTINEL_ORDERS_API_KEY": place.key, "SENTINEL_TENANT_ID": str(place.tenant_id), "SENTINEL_LOG_LEVEL": "warning",
        "SENTINEL_POLICIES_DIR": str(policies), "ORDERS_DEMO_SECRET": SECRET,
        "SENTINEL_ORDERS_ADDRESS_PER_SECOND": "100000", "SENTINEL_ORDERS_ADDRESS_BURST": "100000",
    }  # fmt: skip


def _without_rate(sources: Path) -> None:
    secret = "    secret: ORDERS_DEMO_SECRET\n"
    sources.write_text(
        sources.read_text().replace(secret, f"{secret}    rate: {{burst: 100000, per_second: 100000}}\n", 1)
    )


def _wait(port: int) -> None:
    for _ in range(400):
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2):
            return
        time.sleep(0.05)
    raise SystemExit("the intake did not become ready")
