"""Checks the intake's key: the start is refused with a key of another tenant or agent; readiness goes on checking.

Loaded before the folder of the shared counters exists, so it must not import modules with metrics.
"""

from __future__ import annotations

import contextlib
import uuid
from typing import Any

import psycopg
import structlog

from sentinel.client import Client
from sentinel.platform.settings import UnsafeConfiguration
from sentinel.store.database import ORDERS, Pool, with_role
from sentinel.store.queries import call_with_retry
from worker.key_check import KeyCheck, KeyFaultKind, tenant_label
from worker.orders.order import AGENT_ID
from worker.orders.settings import OrderReviewSettings
from worker.orders.store import DEFAULT_TENANT

log = structlog.get_logger("worker.orders")

_SECONDS = 1.5


def refuse_wrong_key(settings: OrderReviewSettings) -> None:
    """Raise `UnsafeConfiguration` for a key of another tenant or agent.

    A key that cannot be checked now is only logged; readiness checks it again.
    """
    pool = Pool(with_role(settings.database_url, ORDERS, application_name="order-review"), size=1)
    client = trying_client(settings)
    with contextlib.closing(pool), contextlib.closing(client):
        tenant_id = settings.tenant_id or default_tenant(pool)
        if tenant_id is None:
            return  # `build_order_review` refuses the start for it
        fault = key_check(client, pool, tenant_id).fault()
    if fault is None:
        return
    if fault.kind is KeyFaultKind.ANOTHERS:
        raise UnsafeConfiguration(fault.text)
    log.warning("key_not_tried", why=fault.text)


def trying_client(settings: OrderReviewSettings) -> Client:
    """A client with a short timeout that names no tenant, so that the answer says which tenant the key belongs to."""
    return Client(settings.authority_url, settings.api_key, agent_id=AGENT_ID, timeout_seconds=_SECONDS, retries=0)


def key_check(client: Client, pool: Pool, tenant_id: uuid.UUID) -> KeyCheck:
    """A check of the key against this tenant and the intake's agent."""
    return KeyCheck(
        client, variable="SENTINEL_ORDERS_API_KEY", tenant_id=tenant_id, tenant=lambda: tenant_label(pool, tenant_id),
        agent_id=AGENT_ID,
    )  # fmt: skip


def default_tenant(pool: Pool) -> uuid.UUID | None:
    """The tenant of orders where the settings name none; None where there is no tenant yet. Raises `EngineUnavailable`."""

    def call(connection: psycopg.Connection[Any]) -> uuid.UUID | None:
        row = connection.execute(DEFAULT_TENANT).fetchone()
        return row[0] if row else None

    return call_with_retry(pool, call)
