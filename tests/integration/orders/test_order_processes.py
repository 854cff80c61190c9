"""The intake as processes of its own: what they count is counted together."""

from __future__ import annotations

import subprocess
import sys
import urllib.request

import pytest

from tests.support.ledger_fixtures import ROOT
from tests.support.order_fixtures import OrderFixtures, intake_process, order_body
from tests.support.ports import free_port


def test_what_several_processes_count_is_one_sum(orders: OrderFixtures) -> None:
    health = free_port()
    # A budget that a busy machine does not use up: what takes longer is answered 202 and goes on behind it.
    env = {
        "SENTINEL_ORDERS_PROCESSES": "2", "SENTINEL_ORDERS_HEALTH_PORT": str(health),
        "SENTINEL_ORDERS_BUDGET_SECONDS": "30", "SENTINEL_ORDERS_LEASE_SECONDS": "60",
    }  # fmt: skip
    with intake_process(orders.fixtures, orders.authority_url, orders.key, from_nothing=True, **env) as process:
        bodies = [order_body(f"o-{number}") for number in range(8)]
        assert [process.post(body) for body in [*bodies, bodies[0]]] == [200] * 9
        with urllib.request.urlopen(f"http://127.0.0.1:{health}/metrics", timeout=10) as answer:
            counted = answer.read().decode()
    assert 'orders_deliveries_total{result="200",source="demo"} 8.0' in counted
    assert 'orders_deliveries_total{result="replayed",source="demo"} 1.0' in counted
    assert 'orders_decided_total{event="allowed",lane="low"} 8.0' in counted
    for name in ("orders_score_seconds_count", "orders_delivery_seconds_count", "orders_queued", "orders_model_total"):
        assert name in counted


def test_a_shop_of_large_orders_is_allowed_longer_deliveries(orders: OrderFixtures) -> None:
    health = free_port()
    env = {"SENTINEL_ORDERS_MAX_BODY_BYTES": "300000", "SENTINEL_ORDERS_HEALTH_PORT": str(health)}
    note = 300_000 - len(order_body("o-large", note=""))
    with intake_process(orders.fixtures, orders.authority_url, orders.key, from_nothing=True, **env) as process:
        assert process.post(order_body("o-large", note="x" * note)) in (200, 202)
        assert process.post(order_body("o-large", note="x" * (note + 1))) == 413
        with urllib.request.urlopen(f"http://127.0.0.1:{health}/metrics", timeout=10) as answer:
            counted = answer.read().decode()
    assert 'orders_deliveries_total{result="body-too-large",source="demo"} 1.0' in counted
    assert 'orders_deliveries_total{result="body-too-large",source="shop"} 0.0' in counted
    assert [status for (status,) in orders.all("select status from orders.reviews where order_id = 'o-large'")] == [
        "FULFILLED"
    ]


@pytest.mark.parametrize("module", ["worker.orders.serving", "sentinel.authority.serving", "ops_console.__main__"])
def test_counters_are_imported_only_once_their_folder_is_there(module: str) -> None:
    """Where they are imported earlier, each process counts for itself and tells nobody."""
    look = f"import sys, {module}; sys.exit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", look], cwd=ROOT, check=False).returncode == 0
