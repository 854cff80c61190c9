"""The shop of the settings, where alerts may go, and what can be wrong with those."""

from __future__ import annotations

import uuid

from sentinel.store.database import Pool
from worker.addresses import is_http_url
from worker.order_review.addresses import ON_THIS_MACHINE, Outward
from worker.order_review.shop import HttpShop, Shop
from worker.order_review.simulated_shop import SimulatedShop


def outlet_faults(
    *, shop_url: str, shop_key: str, shop_timeout_seconds: float, slack_webhook_url: str, alerts_on_this_machine: bool
) -> list[str]:
    """One text per fault; none of them repeats a secret."""
    found = []
    if shop_url and not is_http_url(shop_url.replace("{source}", "source")):
        found.append(
            "SENTINEL_SHOP_URL must look like https://host or https://host/path; {source} may stand in the path"
        )
    if shop_key and not shop_url:
        found.append("SENTINEL_SHOP_KEY is of no use without SENTINEL_SHOP_URL")
    if shop_key and (not shop_key.isascii() or not shop_key.isprintable() or " " in shop_key):
        found.append("SENTINEL_SHOP_KEY must be printable ASCII without spaces")
    if not 0 < shop_timeout_seconds <= 10:
        # Two calls and a look must fit into an order's 30 seconds.
        found.append("SENTINEL_SHOP_TIMEOUT_SECONDS must be more than 0 and at most 10")
    if slack_webhook_url and (why := outward(alerts_on_this_machine).fault(slack_webhook_url)):
        found.append(f"SLACK_WEBHOOK_URL cannot be used ({why}): it must be https and an outside address")
    return found


def shop_from(*, url: str, key: str, timeout_seconds: float, pool: Pool, tenant_id: uuid.UUID) -> Shop:
    """The shop at `url`, else the simulated one in the database."""
    return HttpShop(url, key, timeout_seconds) if url else SimulatedShop(pool, tenant_id)


def outward(on_this_machine: bool) -> Outward:
    """A channel on this very machine is for a demo and for tests: nothing else inside may be named."""
    return ON_THIS_MACHINE if on_this_machine else Outward()
