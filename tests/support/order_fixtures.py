"""Builders for tests of order review: a real authority in this process, an intake beside it or as processes, signed orders."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from werkzeug.test import TestResponse

from sentinel.platform.http.rate_limit import SharedRateLimit
from sentinel.platform.resources import policies_dir
from sentinel.store.database import ORDERS
from tests.support.asgi_client import InProcessApp
from tests.support.busy import is_over, long_enough
from tests.support.fixtures import Fixtures, unique, unlimited
from tests.support.logins import program_url
from tests.support.ports import free_port
from tests.support.warm_process import ROOT, WarmProcess
from worker.failpoints import Failpoints
from worker.orders.app import create_app
from worker.orders.build import OrderReview, build_order_review
from worker.orders.intake import DeliveryLimits, Intake
from worker.orders.settings import OrderReviewSettings
from worker.orders.sources import SourcesFile

SECRET = "only-for-tests-order-secret-0123456789"
SOURCES = policies_dir() / "order_sources.yaml"
LANES = {"low": "FULFILLED", "medium": "QUEUED", "high": "HELD"}

_OF_LANE: Mapping[str, Mapping[str, Any]] = {
    "low": {},
    "medium": {"billing_country": "DE", "shipping_country": "FR"},
    "high": {"account_age_days": 0, "amount": {"value": "450.00", "currency": "USD"}},
}


def order_body(order_id: str | None = None, lane: str = "low", **over: Any) -> bytes:
    """An order that the demo source sends and the shipped rules put into `lane`."""
    order = {
        "id": order_id or unique("o"), "amount": {"value": "42.50", "currency": "USD"}, "email": "one@customer.example",
        "account_ref": unique("acct"), "account_age_days": 400, "billing_country": "DE", "shipping_country": "DE",
        "shipping_speed": "standard", "items": [{"sku": "tea", "title": "Tea", "quantity": 1}], "failed_payments": 0,
        **_OF_LANE[lane], **over,
    }  # fmt: skip
    return json.dumps({"order": {name: value for name, value in order.items() if value is not None}}).encode()


def signed(body: bytes, secret: str = SECRET) -> dict[str, str]:
    """The headers of a genuine delivery of the demo source."""
    mac = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return {"X-Sentinel-Signature": f"sha256={mac}", "Content-Type": "application/json"}


@dataclass
class OrderFixtures:
    """A tenant, its authority over HTTP, and an intake in this process."""

    fixtures: Fixtures
    authority_url: str
    key: str
    settings: OrderReviewSettings
    review: OrderReview
    app: InProcessApp

    def deliver(
        self, body: bytes, *, headers: Mapping[str, str] | None = None, path: str = "orders", source: str = "demo"
    ) -> TestResponse:
        """POST one delivery; genuine unless the headers say otherwise."""
        given = signed(body) if headers is None else dict(headers)
        response: TestResponse = self.app.test_client().post(f"/webhooks/{source}/{path}", data=body, headers=given)
        return response

    def rounds(self, seconds: float = 5.0, until: Callable[[], bool] | None = None) -> None:
        """The background's rounds, until nothing is to do or `until` holds."""
        began = time.monotonic()
        while not is_over(began, seconds):
            taken = self.review.background.once()
            if until() if until else not taken:
                return
            time.sleep(0.02)
        assert until is None, "it never came"

    def all(self, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Rows of a query as administrator."""
        return self.fixtures.admin.execute(query.encode(), arguments).fetchall()

    def digest(self, order_id: str) -> str:
        """What an analyst is shown with an order; "unseen" where nothing waits."""
        query = (
            "select a.digest from orders.reviews r join sentinel.approvals a using (tenant_id, approval_id)"
            " where r.order_id = %s"
        )
        return str(self.one(query, order_id) or "unseen")

    def one(self, query: str, *arguments: Any) -> Any:
        """The first column of the first row, or None."""
        found = self.all(query, *arguments)
        return found[0][0] if found else None

    def status_and_lane(self, order_id: str) -> tuple[str, str | None]:
        """(status, lane) of an order."""
        return self.all("select status, lane from orders.reviews where order_id = %s", order_id)[0]  # type: ignore[return-value]

    def close(self) -> None:
        """Give everything back."""
        self.app.close()
        self.review.pool.close()

    def make_due(self) -> None:
        """As if every lease and pause were over."""
        self.fixtures.admin.execute(
            "update orders.reviews set lease_until = null, next_attempt_at = clock_timestamp() where status <> 'QUEUED'"
        )
        self.fixtures.admin.execute(
            "update orders.effects set next_attempt_at = clock_timestamp(), tried_at = tried_at - interval '1 hour',"
            " report_due_at = case when report_due_at is not null then clock_timestamp() end"
        )


def settings_of(fixtures: Fixtures, authority_url: str, key: str, **over: Any) -> OrderReviewSettings:
    """Settings of an intake of this fixtures."""
    fields: dict[str, Any] = {
        "authority_url": authority_url, "api_key": key, "database_url": program_url(fixtures.url, ORDERS), "tenant_id": fixtures.tenant_id,
        "pool_size": 40, "shop_under_way_seconds": 0.0, "poll_seconds": 0.05, "authority_timeout_seconds": 20.0,
    }  # fmt: skip
    return OrderReviewSettings(**{**fields, **over})


def make_intake(
    fixtures: Fixtures, authority_url: str, *, limit: SharedRateLimit | None = None, secrets: Mapping[str, str] | None = None,
    failpoints: Failpoints | None = None, parts: Mapping[str, Any] | None = None, **over: Any,
) -> OrderFixtures:  # fmt: skip
    """An intake in this process; `parts` replace scorer, enricher or shop, `over` are settings."""
    key = fixtures.new_key(agent_id="order-review")
    settings = settings_of(fixtures, authority_url, key, **over)
    sources = SourcesFile(SOURCES, secrets or {"ORDERS_DEMO_SECRET": SECRET})
    review = build_order_review(settings, sources, failpoints=failpoints or Failpoints(), **(parts or {}))
    limit = limit or unlimited()
    # Tests that are not about a source's limit have a source without one.
    intake = Intake(
        review.processor,
        sources,
        DeliveryLimits(limit, NoLimit()),
        ThreadPoolExecutor(48),
        settings.trusted_proxies,
        settings.max_body_bytes,
    )
    app = InProcessApp(create_app(intake, review.store, review.key, settings))
    return OrderFixtures(fixtures, authority_url, key, settings, review, app)


class NoLimit(SharedRateLimit):
    """Takes whatever comes."""

    def __init__(self) -> None:
        """Nothing is counted."""

    def take(self, key: bytes, cost: int = 1, *, per_second: int | None = None, burst: int | None = None) -> None:
        """Count nothing."""


@dataclass
class IntakeProcess:
    """`python -m worker.orders`, listening."""

    process: subprocess.Popen[str]
    port: int

    def post(self, body: bytes, *, timeout: float = 100.0) -> int | None:
        """The status of a genuine delivery; None when the connection broke."""
        url = f"http://127.0.0.1:{self.port}/webhooks/demo/orders"
        request = urllib.request.Request(url, data=body, headers=signed(body))
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return None


@contextmanager
def intake_process(
    fixtures: Fixtures, authority_url: str, key: str, *, within: float = 20, from_nothing: bool = False, **env: str
) -> Iterator[IntakeProcess]:
    """An intake with a process of its own that listens `within` seconds, gone after the block.

    It begins with everything imported. One that begins `from_nothing` shares its counters with its processes.
    """
    port = free_port()
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG") if name in os.environ}
    kept["PYTHONPATH"] = str(ROOT)
    start: type[subprocess.Popen[str]] = subprocess.Popen if from_nothing else WarmProcess
    process = start(
        [sys.executable, "-m", "worker.orders", "--graceful-seconds", "1"],
        env={**kept, "SENTINEL_URL": authority_url, "SENTINEL_ORDERS_API_KEY": key, "SENTINEL_DATABASE_URL": program_url(fixtures.url, ORDERS),
             "SENTINEL_TENANT_ID": str(fixtures.tenant_id), "SENTINEL_ORDERS_PORT": str(port), "ORDERS_DEMO_SECRET": SECRET,
             "SENTINEL_ORDERS_BUDGET_SECONDS": "1", "SENTINEL_ORDERS_LEASE_SECONDS": "1.5",
             "SENTINEL_SHOP_UNDER_WAY_SECONDS": "0.1", "SENTINEL_ORDERS_POLL_SECONDS": "0.1",
             "SENTINEL_ORDERS_AUTHORITY_TIMEOUT_SECONDS": "20", **env},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        _wait_for(port, process, long_enough(within))
        yield IntakeProcess(process, port)
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(60)


def _wait_for(port: int, process: subprocess.Popen[str], within: float) -> None:
    end = time.monotonic() + within
    while time.monotonic() < end:
        assert process.poll() is None, "the intake ended at once"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=20):
                return
        except OSError:
            time.sleep(0.05)
    raise AssertionError("the intake never listened")
