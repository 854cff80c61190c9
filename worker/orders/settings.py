"""Order review's settings: one frozen value, read from the environment once; all faults are reported together."""

from __future__ import annotations

import importlib.util
import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marshmallow.validate import OneOf, Range

from sentinel.platform.http.bodies import MAX_BYTES
from sentinel.platform.outbound.client import is_http_url
from sentinel.platform.outbound.failures import FAULTS
from sentinel.platform.outbound.public_addresses import public_client
from sentinel.platform.resources import policies_dir
from sentinel.platform.settings import (
    ADDRESS_CONNECTIONS_HELP,
    BEHIND_TLS,
    CONNECTIONS_HELP,
    COUNT,
    HEALTH_HELP,
    LOG_LEVEL,
    LOG_LEVEL_HELP,
    PORT,
    PORT_OR_NONE,
    TRUSTED_PROXIES,
    given,
    read_fields,
    refuse_unsafe,
    setting,
)
from sentinel.store.database import POOLER, POOLER_HELP, POOLERS, describe, same_database

MOST_BODY_BYTES = 4 << 20
"""The highest limit that may be set for a delivery's body."""
_SECONDS = Range(min=0, max=3600, min_inclusive=False)


@dataclass(frozen=True, slots=True)
class OrderReviewSettings:
    """The intake's settings."""

    authority_url: str = setting("SENTINEL_URL", "Address of the authority.", "http://127.0.0.1:7860")
    api_key: str = setting("SENTINEL_ORDERS_API_KEY", "The agent key of order review. Required.", "")
    database_url: str = setting(
        "ORDERS_DATABASE_URL",
        "Address of the PostgreSQL with the orders schema: the database of authority, console and ledger, or analysts could not decide on orders."
        " Default SENTINEL_DATABASE_URL, else the embedded one.",
        "",
    )
    database_pooler: str = setting(POOLER, POOLER_HELP, "none", valid=OneOf(POOLERS))
    stripe_webhook_secrets: tuple[str, ...] = setting(
        "SENTINEL_STRIPE_WEBHOOK_SECRETS",
        "Signing secrets of Stripe's webhook endpoint /webhooks/stripe, comma separated, newest first; if not set, the endpoint does not exist.",
        (),
    )
    tenant_id: uuid.UUID | None = setting(
        "SENTINEL_TENANT_ID", "Id of the tenant; default: the ledger's default tenant."
    )
    policies_dir: Path = setting(
        "SENTINEL_POLICIES_DIR", "Folder with order_sources.yaml and order_signals.yaml.", policies_dir()
    )
    host: str = setting("SENTINEL_ORDERS_HOST", "Address the intake listens on.", "127.0.0.1")
    port: int = setting("SENTINEL_ORDERS_PORT", "Port of the intake.", 7862, valid=PORT)
    processes: int = setting("SENTINEL_ORDERS_PROCESSES", "Server processes of the intake.", 1, valid=COUNT)
    threads: int = setting(
        "SENTINEL_ORDERS_THREADS",
        "Threads per process for calls to other systems about one order: look-ups, a model, a shop.",
        48,
        valid=COUNT,
    )
    health_host: str = setting("SENTINEL_ORDERS_HEALTH_HOST", "Address the health port listens on.", "127.0.0.1")
    health_port: int = setting("SENTINEL_ORDERS_HEALTH_PORT", HEALTH_HELP, 0, valid=PORT_OR_NONE)
    max_connections: int = setting("SENTINEL_ORDERS_MAX_CONNECTIONS", CONNECTIONS_HELP, 2000, valid=COUNT)
    max_connections_per_address: int = setting(
        "SENTINEL_ORDERS_MAX_CONNECTIONS_PER_ADDRESS", ADDRESS_CONNECTIONS_HELP, 200, valid=COUNT
    )
    pool_size: int = setting("SENTINEL_ORDERS_POOL_SIZE", "Database connections per process.", 16, valid=COUNT)
    trusted_proxies: int = setting(
        "SENTINEL_TRUSTED_PROXIES",
        "How many proxies in front of this program set X-Forwarded-For and X-Forwarded-Proto; a sender's address is then taken from X-Forwarded-For.",
        0,
        valid=TRUSTED_PROXIES,
    )
    behind_tls: bool = setting(
        "SENTINEL_BEHIND_TLS",
        f"{BEHIND_TLS} If it is off, X-Forwarded-Proto of trusted proxies decides for each request.",
        False,
    )
    address_per_second: int = setting(
        "SENTINEL_ORDERS_ADDRESS_PER_SECOND",
        "Deliveries per second from one address (IPv6: from one /64 network), with a valid signature or not, over all processes.",
        100,
        valid=COUNT,
    )
    address_burst: int = setting(
        "SENTINEL_ORDERS_ADDRESS_BURST", "Deliveries that an address may make at once.", 600, valid=COUNT
    )
    max_body_bytes: int = setting(
        "SENTINEL_ORDERS_MAX_BODY_BYTES",
        "Largest body of a delivery; a larger one is refused with 413. An order of Shopify takes one to three kilobytes per order line. At most 4194304.",
        MAX_BYTES,
        valid=Range(min=1024, max=MOST_BODY_BYTES),
    )
    budget_seconds: float = setting(
        "SENTINEL_ORDERS_BUDGET_SECONDS",
        "Time for one order in all; when it is used up, the order goes to a person. Must be more than 16 where look-ups or a model are used.",
        30.0,
        valid=_SECONDS,
    )
    lease_seconds: float = setting(
        "SENTINEL_ORDERS_LEASE_SECONDS",
        "After this long another process takes over an order that is not finished; must be more than SENTINEL_ORDERS_BUDGET_SECONDS.", 35.0, valid=_SECONDS)  # fmt: skip
    authority_timeout_seconds: float = setting(
        "SENTINEL_ORDERS_AUTHORITY_TIMEOUT_SECONDS",
        "Longest call to the authority, retries included.",
        5.0,
        valid=_SECONDS,
    )
    poll_seconds: float = setting(
        "SENTINEL_ORDERS_POLL_SECONDS",
        "How often the background task looks for unfinished orders, decided approvals and work that is due.",
        0.5,
        valid=_SECONDS,
    )
    shop_url: str = setting(
        "SENTINEL_SHOP_URL",
        "Address of the shop; {source} in its path is replaced by the order's source. If not set, a simulated shop writes rows to the database.",
        "",
    )
    shop_key: str = setting("SENTINEL_SHOP_KEY", "Bearer key for the shop; if not set, none is sent.", "")
    # Two calls and a look must fit into an order's default budget of 30 seconds.
    shop_timeout_seconds: float = setting(
        "SENTINEL_SHOP_TIMEOUT_SECONDS",
        "Longest call to the shop.",
        3.0,
        valid=Range(min=0, max=10, min_inclusive=False),
    )
    shop_under_way_seconds: float = setting(
        "SENTINEL_SHOP_UNDER_WAY_SECONDS",
        "After a call that the shop did not answer, the order is only looked up there for this long before the call is repeated.",
        10.0,
        valid=_SECONDS,
    )
    slack_webhook_url: str = setting(
        "SLACK_WEBHOOK_URL", "Slack-compatible incoming webhook for alerts; if not set, alerts go to the log.", ""
    )
    alerts_on_this_machine: bool = setting(
        "SENTINEL_ALERTS_ON_THIS_MACHINE", "1 allows an alert webhook on this machine; demo and tests only.", False
    )
    model_url: str = setting(
        "SENTINEL_ORDERS_MODEL_URL",
        "Address of an OpenAI-compatible model that may raise a score, the part before /chat/completions; if not set, only the rules score.",
        "",
    )
    model_name: str = setting(
        "SENTINEL_ORDERS_MODEL", "Name of the model; required with SENTINEL_ORDERS_MODEL_URL.", ""
    )
    model_key: str = setting("SENTINEL_ORDERS_MODEL_API_KEY", "Bearer key for the model; if not set, none is sent.", "")
    model_timeout_seconds: float = setting(
        "SENTINEL_ORDERS_MODEL_TIMEOUT_SECONDS",
        "Longest wait for the model's score, including second requests after a malformed answer.",
        3.0,
        valid=_SECONDS,
    )
    log_level: str = setting("SENTINEL_LOG_LEVEL", LOG_LEVEL_HELP, "info", valid=LOG_LEVEL)
    failpoint: str = setting("SENTINEL_FAILPOINT", "name:action[:nth] of a failpoint; tests only.", "")
    failpoints_allowed: bool = setting("SENTINEL_ALLOW_FAILPOINTS", "1 allows SENTINEL_FAILPOINT; tests only.", False)


AFTER_SCORE_SECONDS = 16.0
"""The part of an order's time budget that is reserved for guard, start and shop; look-ups and a model must end before it."""
NO_TIME_TO_ASK = (
    f"SENTINEL_ORDERS_BUDGET_SECONDS: must be more than {AFTER_SCORE_SECONDS:g}, which are kept for the authority and the shop, where"
    " look-ups or a model are asked"
)


def load_order_settings(*, needs_authority: bool = True, **overrides: Any) -> OrderReviewSettings:
    """Read the settings from the environment; `overrides` are a command's options, None where one was not given.

    Raises `UnsafeConfiguration` with every fault.
    """
    values, bad = read_fields(OrderReviewSettings)
    values |= given(overrides)
    values["database_url"] = values["database_url"] or os.environ.get("SENTINEL_DATABASE_URL", "")
    settings = OrderReviewSettings(**values)
    refuse_unsafe(bad, _elsewhere(settings.database_url) + unsafe(settings, needs_authority=needs_authority))
    return settings


def unsafe(settings: OrderReviewSettings, *, needs_authority: bool = True) -> list[str]:
    """One line for each fault that must keep the intake from starting."""
    faults = _authority_faults(settings) if needs_authority else []
    if settings.lease_seconds <= settings.budget_seconds:
        # With a shorter lease a healthy process could lose an order to another one while still working on it.
        faults.append("SENTINEL_ORDERS_LEASE_SECONDS: must be more than SENTINEL_ORDERS_BUDGET_SECONDS")
    if settings.model_url and settings.budget_seconds <= AFTER_SCORE_SECONDS:
        faults.append(NO_TIME_TO_ASK)
    if settings.model_url and not is_http_url(settings.model_url):
        faults.append("SENTINEL_ORDERS_MODEL_URL: must look like https://host or https://host/path")
    if bool(settings.model_url) != bool(settings.model_name):
        faults.append("SENTINEL_ORDERS_MODEL_URL and SENTINEL_ORDERS_MODEL: both or neither")
    if any(not secret.startswith("whsec_") or len(secret) < 20 for secret in settings.stripe_webhook_secrets):
        faults.append(
            "SENTINEL_STRIPE_WEBHOOK_SECRETS: must be signing secrets of webhook endpoints, whsec_…, comma separated"
        )
    if settings.stripe_webhook_secrets and importlib.util.find_spec("stripe") is None:
        faults.append("SENTINEL_STRIPE_WEBHOOK_SECRETS: needs the extra `stripe`, which is not installed")
    return faults + outlet_faults(
        shop_url=settings.shop_url, shop_key=settings.shop_key,
        slack_webhook_url=settings.slack_webhook_url, alerts_on_this_machine=settings.alerts_on_this_machine,
    )  # fmt: skip


def _elsewhere(database_url: str) -> list[str]:
    """The faults of databases that differ: an analyst's decision changes an order, its approval and a refund's row in
    one transaction, so all of them must be in one database."""
    faults = []
    for variable, whose in (("SENTINEL_DATABASE_URL", "approvals"), ("WORKER_DATABASE_URL", "refunds")):
        other = os.environ.get(variable, "").strip()
        if database_url and other and not same_database(database_url, other):
            faults.append(
                f"ORDERS_DATABASE_URL ({describe(database_url)}) and {variable} ({describe(other)}): orders and their"
                f" {whose} must be in one database"
            )
    return faults


def _authority_faults(settings: OrderReviewSettings) -> list[str]:
    faults = []
    if not is_http_url(settings.authority_url):
        faults.append("SENTINEL_URL: must look like http://host:port")
    key = settings.api_key
    if not key:
        faults.append(
            "SENTINEL_ORDERS_API_KEY: no agent key; `sentinel keys create --worker --agent-id order-review` makes one"
        )
    elif not key.isascii() or not key.isprintable() or " " in key:
        faults.append("SENTINEL_ORDERS_API_KEY: must be printable ASCII without spaces")
    return faults


def outlet_faults(*, shop_url: str, shop_key: str, slack_webhook_url: str, alerts_on_this_machine: bool) -> list[str]:
    """The faults of the settings of shop and alerts, a text each; none of them contains a secret."""
    found = []
    if shop_url and not is_http_url(shop_url.replace("{source}", "source")):
        found.append(
            "SENTINEL_SHOP_URL must look like https://host or https://host/path; {source} may stand in the path"
        )
    if shop_key and not shop_url:
        found.append("SENTINEL_SHOP_KEY is of no use without SENTINEL_SHOP_URL")
    if shop_key and (not shop_key.isascii() or not shop_key.isprintable() or " " in shop_key):
        found.append("SENTINEL_SHOP_KEY must be printable ASCII without spaces")
    if slack_webhook_url and (why := public_client(loopback_only=alerts_on_this_machine).fault(slack_webhook_url)):
        found.append(f"SLACK_WEBHOOK_URL {FAULTS[why]}")
    return found
