"""Builds order review from the settings; the only place where its parts are put together."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sentinel.client import Client
from sentinel.platform.settings import UnsafeConfiguration
from sentinel.store.database import ORDERS, Pool, with_role
from worker.failpoints import BadFailpoint, Failpoints, OrderFailpoint
from worker.key_check import KeyCheck
from worker.orders.alerts import Alerts, channel_from
from worker.orders.authority import AuthorityClient, OutcomeReporter
from worker.orders.background import Background
from worker.orders.enrich import Enricher
from worker.orders.key_check import key_check, required_default_tenant, trying_client
from worker.orders.model_score import ModelScore
from worker.orders.order import AGENT_ID
from worker.orders.processor import OrderProcessor
from worker.orders.rule_settings import FILE_NAME as SIGNALS
from worker.orders.rule_settings import RuleSettings
from worker.orders.scoring import RulesScore, Scorer
from worker.orders.settings import OrderReviewSettings
from worker.orders.shop import HttpShop, Shop, SimulatedShop
from worker.orders.silent_shops import SilentShops
from worker.orders.sources import FILE_NAME as SOURCES
from worker.orders.sources import PolicyError, SourcesFile
from worker.orders.store import OrderStore


@dataclass(frozen=True, slots=True)
class OrderReview:
    """The parts of one process."""

    pool: Pool
    sources: SourcesFile
    store: OrderStore
    processor: OrderProcessor
    background: Background
    key: KeyCheck


def read_sources(settings: OrderReviewSettings) -> SourcesFile:
    """Load the declared sources. Raises `UnsafeConfiguration` with the file's fault, also where the budget has no time for look-ups."""
    try:
        return SourcesFile(settings.policies_dir / SOURCES, budget_seconds=settings.budget_seconds)
    except PolicyError as error:
        raise UnsafeConfiguration(str(error)) from None


def read_failpoints(settings: OrderReviewSettings) -> Failpoints:
    """Read the failpoint that the settings arm, if any. Raises `UnsafeConfiguration`."""
    try:
        return Failpoints.parse(settings.failpoint, allowed=settings.failpoints_allowed, places=tuple(OrderFailpoint))
    except BadFailpoint as error:
        raise UnsafeConfiguration(str(error)) from None


def make_scorer(settings: OrderReviewSettings) -> Scorer:
    """Make the scorer: rules, and a model where the settings name one. Raises `UnsafeConfiguration` with the rules file's fault."""
    try:
        rules = RulesScore(RuleSettings.load(settings.policies_dir / SIGNALS))
    except PolicyError as error:
        raise UnsafeConfiguration(str(error)) from None
    model = None
    if settings.model_url:
        model = ModelScore(settings.model_url, settings.model_name, settings.model_key, settings.model_timeout_seconds)
    return Scorer(rules, model)


def build_order_review(
    settings: OrderReviewSettings, sources: SourcesFile, *, failpoints: Failpoints | None = None,
    scorer: Scorer | None = None, enricher: Enricher | None = None, shop: Shop | None = None,
) -> OrderReview:  # fmt: skip
    """Build the parts of one process; parts that are handed in replace those of the settings.

    Raises `UnsafeConfiguration`, or `EngineUnavailable` without a database.
    """
    pool = Pool(with_role(settings.database_url, ORDERS, application_name="order-review"), size=settings.pool_size)
    tenant_id = settings.tenant_id or required_default_tenant(pool)
    store = OrderStore(pool, tenant_id, lease_seconds=settings.lease_seconds)
    client = Client(
        settings.authority_url, settings.api_key, agent_id=AGENT_ID, tenant_id=tenant_id,
        timeout_seconds=settings.authority_timeout_seconds,
    )  # fmt: skip
    authority = AuthorityClient(client, act_within_seconds=act_within_seconds(settings))
    failpoints = failpoints or read_failpoints(settings)
    scorer = scorer or make_scorer(settings)
    if shop is None and settings.shop_url:
        shop = HttpShop(settings.shop_url, settings.shop_key, settings.shop_timeout_seconds)
    shop = shop or SimulatedShop(pool, tenant_id)
    processor = OrderProcessor(
        store=store, authority=authority, scorer=scorer, enricher=enricher or Enricher(), shop=shop,
        reports=OutcomeReporter(store, authority, failpoints), sources=sources, failpoints=failpoints,
        budget_seconds=settings.budget_seconds, act_seconds=settings.lease_seconds, under_way_seconds=settings.shop_under_way_seconds,
        scores_at_once=isinstance(scorer, Scorer) and scorer.asks_nobody and enricher is None,
        ships_here=isinstance(shop, SimulatedShop), silent_shops=SilentShops(one_shop="{source}" not in settings.shop_url),
    )  # fmt: skip
    channel = channel_from(
        slack_webhook_url=settings.slack_webhook_url, on_this_machine=settings.alerts_on_this_machine
    )
    background = Background(processor, Alerts(pool, tenant_id, channel), poll_seconds=settings.poll_seconds)
    return OrderReview(
        pool, sources, store, processor, background, key_check(trying_client(settings), pool, tenant_id)
    )  # fmt: skip


def act_within_seconds(settings: OrderReviewSettings) -> int:
    """The seconds that a start declares: an order's lease, plus the calls to the shop that may be in flight at its end."""
    under_way = max(settings.shop_under_way_seconds, 3 * settings.shop_timeout_seconds)
    return math.ceil(settings.lease_seconds + settings.shop_timeout_seconds + under_way)
