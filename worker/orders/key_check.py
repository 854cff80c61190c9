"""Checks the intake's key: the start is refused with a key of another tenant or agent; readiness goes on checking.

Loaded before the folder of the shared counters exists, so it must not import modules with metrics.
"""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import replace
from typing import Any

import psycopg
import structlog

from sentinel.client import Client
from sentinel.platform.settings import UnsafeConfiguration
from sentinel.store.database import ORDERS, Pool, with_role
from sentinel.store.queries import call_with_retry
from worker.key_check import GUARD_SCOPE, NO_TENANT, KeyCheck, KeyFaultKind, tenant_label
from worker.orders.order import AGENT_ID
from worker.orders.settings import OrderReviewSettings
from worker.orders.store import DEFAULT_TENANT

log = structlog.get_logger("worker.orders")

_SECONDS = 1.5
_NEEDS = (GUARD_SCOPE, "heartbeat")
"""The scopes without which no order is decided; with `heartbeat` the intake reads which halts are in force."""


def checked_at_start(settings: OrderReviewSettings) -> OrderReviewSettings:
    """The settings with their tenant, found once: a process that is replaced later starts even if the database is away.

    Raises `UnsafeConfiguration` where there is no tenant, and for a key of another tenant or agent. A key that cannot be
    checked now is only logged; readiness checks it again.
    """
    pool = Pool(with_role(settings.database_url, ORDERS, application_name="order-review"), size=1)
    client = trying_client(settings)
    with contextlib.closing(pool), contextlib.closing(client):
        tenant_id = settings.tenant_id or required_default_tenant(pool)
        fault = key_check(client, pool, tenant_id).fault()
    if fault is not None and fault.kind is KeyFaultKind.ANOTHERS:
        raise UnsafeConfiguration(fault.text)
    if fault is not None:
        log.warning("key_not_tried", why=fault.text)
    return replace(settings, tenant_id=tenant_id)


def trying_client(settings: OrderReviewSettings) -> Client:
    """A client with a short timeout that names no tenant, so that the answer says which tenant the key belongs to."""
    return Client(settings.authority_url, settings.api_key, agent_id=AGENT_ID, timeout_seconds=_SECONDS, retries=0)


def key_check(client: Client, pool: Pool, tenant_id: uuid.UUID) -> KeyCheck:
    """A check of the key against this tenant, the intake's agent and the scopes that it needs."""
    return KeyCheck(
        client, variable="SENTINEL_ORDERS_API_KEY", tenant_id=tenant_id, tenant=lambda: tenant_label(pool, tenant_id),
        agent_id=AGENT_ID, needs=_NEEDS,
    )  # fmt: skip


def required_default_tenant(pool: Pool) -> uuid.UUID:
    """The tenant of orders where the settings name none. Raises `UnsafeConfiguration` where there is none yet, or `EngineUnavailable`."""

    def call(connection: psycopg.Connection[Any]) -> uuid.UUID | None:
        row = connection.execute(DEFAULT_TENANT).fetchone()
        return row[0] if row else None

    tenant_id = call_with_retry(pool, call)
    if tenant_id is None:
        raise UnsafeConfiguration(NO_TENANT)
    return tenant_id
