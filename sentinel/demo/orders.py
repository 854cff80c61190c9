"""The demo's orders: a few per lane, signed and posted to the intake as the demo shop would.

Their ids and bodies are fixed, so what is posted again is a replay and changes nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentinel.demo.processes import direct
from sentinel.platform.private_files import write_private

SOURCE = "demo"
SECRET_FILE = "orders_secret"
_HEADER = "X-Sentinel-Signature"
_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class DemoOrderSource:
    """The source of the demo's orders: its name at the intake, the secret that it signs with, and the URL that it posts to."""

    name: str
    secret: str
    url: str


def order_source(orders_url: str, secret: str) -> DemoOrderSource:
    """Return the demo's source at an intake."""
    return DemoOrderSource(SOURCE, secret, f"{orders_url}/webhooks/{SOURCE}/orders")


def demo_orders() -> Iterator[bytes]:
    """Yield the request bodies of the demo's orders. Each order's lane follows from its signals."""
    yield _order("low_1", "42.50", "USD")
    yield _order("low_2", "18.00", "EUR", account_age_days=35)
    yield _order("low_3", "310.00", "GBP", account_age_days=900)
    yield _order("medium_1", "89.90", "EUR", billing_country="DE", shipping_country="FR")
    yield _order("medium_2", "2450.00", "USD", account_age_days=700)
    yield _order("medium_3", "64.00", "USD", email="someone@mailinator.com")
    yield _order("medium_4", "0.00", "EUR")
    yield _order("high_1", "480.00", "USD", account_age_days=0)
    yield _order("high_2", "120.00", "GBP", failed_payments=6)
    # Each of these may be chance; three together are a pattern.
    yield _order("high_3", "199.00", "EUR", shipping_country="NL", email="x@yopmail.com", failed_payments=3)


def _order(name: str, value: str, currency: str, **more: Any) -> bytes:
    order = {
        "id": f"demo_{name}", "amount": {"value": value, "currency": currency}, "email": f"{name}@customer.example",
        "account_ref": f"acct_order_{name}", "account_age_days": 400, "billing_country": "DE", "shipping_country": "DE",
        "shipping_speed": "standard", "items": [{"sku": "tea-01", "title": "Tea", "quantity": 1}], "failed_payments": 0,
        **more,
    }  # fmt: skip
    return json.dumps({"order": order}).encode()


def post_demo_orders(
    source: DemoOrderSource, data_dir: Path, tenant_id: str, should_stop: Callable[[], bool]
) -> str | None:
    """Post the orders once per data folder and tenant; return what went wrong, in one line, or None. The next start retries a failure."""
    done = data_dir / "demo_orders_posted"
    if done.exists() and done.read_text() == tenant_id:
        return None
    for body in demo_orders():
        if should_stop():
            return "the demo is stopping"
        try:
            _post(source, body)
        except urllib.error.HTTPError as error:
            with error:
                return f"the intake answered {error.code} to a demo order"
        except OSError as error:
            return f"the intake did not answer a demo order: {error}"
    write_private(done, tenant_id.encode())
    return None


def _post(source: DemoOrderSource, body: bytes) -> None:
    signature = hmac.new(source.secret.encode(), body, hashlib.sha256).hexdigest()
    headers = {_HEADER: f"sha256={signature}", "Content-Type": "application/json"}
    question = urllib.request.Request(source.url, data=body, headers=headers)  # noqa: S310 - our own address
    with direct.open(question, timeout=_SECONDS) as answer:
        answer.read()


def curl_line(source: DemoOrderSource) -> str:
    """Return a shell line that signs an order and posts it; it contains the secret, as does the summary printed above it."""
    body = {
        "order": {"id": "order-1", "amount": {"value": "49.90", "currency": "EUR"}, "email": "kim@customer.example",
                  "account_age_days": 400, "billing_country": "DE", "shipping_country": "DE"},
    }  # fmt: skip
    signed = f"\"$(printf %s \"$body\" | openssl dgst -sha256 -hmac '{source.secret}' | sed 's/.* //')\""
    return (
        f"body='{json.dumps(body, separators=(',', ':'))}'; curl -si {source.url} -H 'Content-Type: application/json'"
        f" -H '{_HEADER}: sha256='{signed} --data-binary \"$body\""
    )
