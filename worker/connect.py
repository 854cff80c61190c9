"""Putting a worker together: its database, its ledger and its client. The one place where settings become objects."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from sentinel.client import Client
from sentinel.store.database import WORKER, Pool, with_role
from worker.agent import Agent, OnRow
from worker.failpoints import Failpoints
from worker.ledger import Ledger, LedgerUnavailable, default_tenant
from worker.next_steps import Patience
from worker.settings import BadSettings, WorkerSettings
from worker.settlement import SimulatedRefund


@contextmanager
def open_ledger(settings: WorkerSettings) -> Iterator[Ledger]:
    """The ledger of the settings' database and tenant. Raises `LedgerUnavailable`, `BadSettings`, `EmbeddedError`."""
    with _database_url(settings) as url:
        pool = Pool(with_role(url, WORKER, application_name="worker"), size=settings.lanes + 3)
        try:
            tenant_id = settings.tenant_id or default_tenant(pool)
            if tenant_id is None:
                raise BadSettings("no tenant yet: create one first, or set SENTINEL_TENANT_ID")
            yield Ledger(pool, tenant_id, worker_id=_worker_id(), lease_seconds=settings.lease_seconds)
        finally:
            pool.close()


def open_client(settings: WorkerSettings) -> Client:
    """The client of the authority."""
    return Client(
        settings.authority_url, settings.api_key, agent_id=settings.agent_id, tenant_id=settings.tenant_id,
        timeout_seconds=settings.guard_timeout_seconds, pool_size=settings.concurrency + 2,
    )  # fmt: skip


def make_agent(
    settings: WorkerSettings, ledger: Ledger, client: Client, *, failpoints: Failpoints, on_row: OnRow
) -> Agent:
    """The agent with its settlement system."""
    patience = Patience(settings.max_attempts, settings.backoff_seconds, settings.backoff_max_seconds, Random())
    return Agent(
        settings, ledger=ledger, client=client, patience=patience, system=SimulatedRefund(), failpoints=failpoints,
        on_row=on_row,
    )  # fmt: skip


@contextmanager
def _database_url(settings: WorkerSettings) -> Iterator[str]:
    if settings.database_url:
        yield settings.database_url
        return
    from sentinel.store.embedded import running

    with running(settings.data_dir) as server:
        yield server.admin_url


def _worker_id() -> str:
    """Unique per process, so that a successor on the same machine is never taken for the one before."""
    return f"{socket.gethostname()[:60]}:{os.getpid()}:{secrets.token_hex(4)}"


__all__ = ["BadSettings", "LedgerUnavailable", "make_agent", "open_client", "open_ledger"]
