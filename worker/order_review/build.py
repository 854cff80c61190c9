"""Putting order review together: the one place where settings become objects."""

from __future__ import annotations

import math
import uuid
from dataclasses import dataclass

from sentinel.client import Client
from sentinel.platform.settings import UnsafeConfiguration
from sentinel.store.database import ORDERS, Pool, with_role
from worker.failpoints import BadFailpoint, Failpoints
from worker.key_check import KeyCheck
from worker.order_review.alerts import Alerts, channel_from
from worker.order_review.authority import Authority
from worker.order_review.background import Background
from worker.order_review.crowd import Crowd
from worker.order_review.enrich import Enricher, Lookup
from worker.order_review.failpoints import Place
from worker.order_review.key import key_check, trying_client
from worker.order_review.model import AGENT_ID
from worker.order_review.model_score import ModelScore
from worker.order_review.outlets import shop_from
from worker.order_review.pipeline import Enriching, Pipeline, Scoring
from worker.order_review.reports import Reports
from worker.order_review.rule_numbers import RuleNumbers
from worker.order_review.rules import RulesScore
from worker.order_review.scoring import Scorer
from worker.order_review.settings import OrderReviewSettings
from worker.order_review.shop import Shop
from worker.order_review.simulated_shop import SimulatedShop
from worker.order_review.sources import FILE_NAME, PolicyError, SourcesFile
from worker.order_review.store import OrderStore, default_tenant

SIGNALS_FILE = "order_signals.yaml"


@dataclass(frozen=True, slots=True)
class OrderReview:
    """The parts of one process."""

    pool: Pool
    sources: SourcesFile
    store: OrderStore
    pipeline: Pipeline
    background: Background
    key: KeyCheck


def read_sources(settings: OrderReviewSettings) -> SourcesFile:
    """The declared sources. Raises `UnsafeConfiguration` with what is wrong in the file."""
    try:
        return SourcesFile(settings.policies_dir / FILE_NAME)
    except PolicyError as error:
        raise UnsafeConfiguration(str(error)) from None


def read_failpoints(settings: OrderReviewSettings) -> Failpoints:
    """The armed place, if any. Raises `UnsafeConfiguration`."""
    try:
        return Failpoints.parse(settings.failpoint, allowed=settings.failpoints_allowed, places=tuple(Place))
    except BadFailpoint as error:
        raise UnsafeConfiguration(str(error)) from None


def make_scorer(settings: OrderReviewSettings) -> Scorer:
    """Rules, and the model where one is named. Raises `UnsafeConfiguration` with what is wrong in the numbers."""
    try:
        rules = RulesScore(RuleNumbers.load(settings.policies_dir / SIGNALS_FILE))
    except PolicyError as error:
        raise UnsafeConfiguration(str(error)) from None
    model = None
    if settings.model_url:
        model = ModelScore(settings.model_url, settings.model_name, settings.model_key, settings.model_timeout_seconds)
    return Scorer(rules, model)


def build_order_review(
    settings: OrderReviewSettings, sources: SourcesFile, *, failpoints: Failpoints | None = None,
    scorer: Scoring | None = None, enricher: Enriching | None = None, shop: Shop | None = None,
) -> OrderReview:  # fmt: skip
    """The parts for one process; what is handed in replaces what the settings say.

    Raises `UnsafeConfiguration`, or `EngineUnavailable` without a database.
    """
    pool = Pool(with_role(settings.database_url, ORDERS, application_name="order-review"), size=settings.pool_size)
    tenant_id = settings.tenant_id or _tenant(pool)
    crowd = Crowd()
    store = OrderStore(pool, tenant_id, lease_seconds=settings.lease_seconds, crowd=crowd)
    client = Client(
        settings.authority_url, settings.api_key, agent_id=AGENT_ID, tenant_id=tenant_id,
        timeout_seconds=settings.authority_timeout_seconds,
    )  # fmt: skip
    authority = Authority(client, crowd, act_within_seconds=act_within_seconds(settings))
    failpoints = failpoints or read_failpoints(settings)
    scorer = scorer or make_scorer(settings)
    shop = shop or shop_from(
        url=settings.shop_url, key=settings.shop_key, timeout_seconds=settings.shop_timeout_seconds, pool=pool,
        tenant_id=tenant_id,
    )  # fmt: skip
    pipeline = Pipeline(
        store=store, authority=authority, scorer=scorer, enricher=enricher or Enricher(), shop=shop,
        reports=Reports(store, authority, failpoints), lookups=lambda name: _lookups(sources, name),
        always=lambda name: _always(sources, name), failpoints=failpoints, budget_seconds=settings.budget_seconds,
        act_seconds=settings.lease_seconds, under_way_seconds=settings.shop_under_way_seconds,
        scores_at_once=isinstance(scorer, Scorer) and scorer.asks_nobody and enricher is None,
        ships_here=isinstance(shop, SimulatedShop), crowd=crowd,
    )  # fmt: skip
    channel = channel_from(
        slack_webhook_url=settings.slack_webhook_url, on_this_machine=settings.alerts_on_this_machine
    )
    background = Background(pipeline, Alerts(pool, tenant_id, channel), poll_seconds=settings.poll_seconds)
    return OrderReview(
        pool, sources, store, pipeline, background, key_check(trying_client(settings), pool, tenant_id)
    )  # fmt: skip


def act_within_seconds(settings: OrderReviewSettings) -> int:
    """What a start declares: an order's lease, and the calls to the shop that may be under way at its end."""
    under_way = max(settings.shop_under_way_seconds, 3 * settings.shop_timeout_seconds)
    return math.ceil(settings.lease_seconds + settings.shop_timeout_seconds + under_way)


def _tenant(pool: Pool) -> uuid.UUID:
    tenant_id = default_tenant(pool)
    if tenant_id is None:
        raise UnsafeConfiguration("no tenant yet: create one first, or set SENTINEL_TENANT_ID")
    return tenant_id


def _always(sources: SourcesFile, name: str) -> tuple[str, ...]:
    source = sources.current().find(name)
    return source.always if source else ()


def _lookups(sources: SourcesFile, name: str) -> tuple[Lookup, ...]:
    source = sources.current().find(name)
    return source.lookups if source else ()
