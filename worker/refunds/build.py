"""Builds the worker from its settings: database, ledger, client and agent. The one place where settings become objects."""

from __future__ import annotations

import math
import os
import secrets
import socket
import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from random import Random

from sentinel.client import Client
from sentinel.core.errors import EngineUnavailable
from sentinel.platform.settings import UnsafeConfiguration
from sentinel.platform.tracing import tracing_of
from sentinel.policy.errors import PolicyError
from sentinel.policy.switches import FILE_NAME as SWITCHES
from sentinel.policy.switches import SwitchFile, read_switches
from sentinel.store.database import WORKER, Pool, with_role
from sentinel.store.safety import UnsafeDatabase, database_status, require_schema
from worker.critic.critic import critic_from
from worker.critic.settings import branches
from worker.failpoints import Failpoints
from worker.images import InvalidLabels, InvalidRecogniser, recogniser_from
from worker.key_check import NO_TENANT, KeyCheck, KeyFaultKind, tenant_label
from worker.notify import Messenger, notifier_from
from worker.refunds.agent import Agent, BatchProcessor, OnRow
from worker.refunds.concurrency import PeriodicTask, WorkerPool
from worker.refunds.confirmations import confirmations_from
from worker.refunds.ledger import Ledger, default_tenant
from worker.refunds.reconcile import EVERY_SECONDS as RECONCILE_EVERY_SECONDS
from worker.refunds.reconcile import Reconciler
from worker.refunds.reporter import LOOK_EVERY_SECONDS, InDoubtPoller, Reporter
from worker.refunds.settings import WorkerSettings
from worker.refunds.transitions import RetryPolicy
from worker.refunds.workflow.build import Dependencies, build_runner, build_simulator
from worker.refunds.workflow.routes import FILE_NAME as ROUTES
from worker.refunds.workflow.routes import SCENARIOS, Routes
from worker.refunds.workflow.runner import ContextLoader
from worker.refunds.workflow.simulation import Simulator
from worker.refunds.workflow.steps.order_and_image import directories
from worker.settlement.effects import Effects, deliver_best_effort
from worker.settlement.registry import Systems
from worker.settlement.saga import in_flight_seconds
from worker.settlement.stripe_events import EVERY_SECONDS as WATCH_EVERY_SECONDS
from worker.settlement.stripe_events import SettlementFindings, SettlementWatch

_KEY_CHECK_SECONDS = 1.5
_FORGET_EVERY_SECONDS = 3600.0


@contextmanager
def open_ledger(settings: WorkerSettings) -> Iterator[Ledger]:
    """Open the ledger of the settings' database and tenant; if the database is unreachable, each statement says so.

    Raises `LedgerUnavailable`, `UnsafeConfiguration`, `InvalidAddress`, `SchemaNotReady`, `MissingGrant` and `EmbeddedError`.
    """
    with _database_url(settings) as url:
        with suppress(EngineUnavailable):
            require_schema(url, WORKER)
        pool = Pool(with_role(url, WORKER, application_name="worker"), size=settings.connections)
        try:
            tenant_id = settings.tenant_id or default_tenant(pool)
            if tenant_id is None:
                raise UnsafeConfiguration(NO_TENANT)
            yield Ledger(
                pool, tenant_id, worker_id=_worker_id(), lease_seconds=settings.lease_seconds,
                act_seconds=settings.act_seconds,
            )  # fmt: skip
        finally:
            pool.close()


def open_client(settings: WorkerSettings, tenant_id: uuid.UUID) -> Client:
    """Build the client of the authority; every call names the tenant, so that the key of another tenant is refused."""
    return Client(
        settings.authority_url, settings.api_key, agent_id=settings.agent_id, tenant_id=tenant_id,
        timeout_seconds=settings.guard_timeout_seconds, pool_size=settings.concurrency + 2,
    )  # fmt: skip


@contextmanager
def open_key_check(settings: WorkerSettings, ledger: Ledger) -> Iterator[KeyCheck]:
    """Open a check of the agent's key. Its client names no tenant, so that the answer says whose the key is."""
    with Client(
        settings.authority_url, settings.api_key, agent_id=settings.agent_id,
        timeout_seconds=min(settings.guard_timeout_seconds, _KEY_CHECK_SECONDS), retries=0, pool_size=1,
    ) as client:  # fmt: skip
        yield KeyCheck(
            client, variable="SENTINEL_REFUND_AGENT_API_KEY", tenant_id=ledger.tenant_id,
            tenant=lambda: tenant_label(ledger.pool, ledger.tenant_id), agent_id=settings.agent_id,
        )  # fmt: skip


def refuse_wrong_key(check: KeyCheck) -> None:
    """Raise `UnsafeConfiguration` if the key surely belongs to another tenant or agent."""
    fault = check.fault()
    if fault is not None and fault.kind is KeyFaultKind.ANOTHERS:
        raise UnsafeConfiguration(fault.text)


def refuse_unsafe_database(ledger: Ledger) -> None:
    """Raise `UnsafeDatabase` for a wrong role, rights or time limits, or too few connections for the worker.

    An unreachable database is no error here: the worker waits for it.
    """
    with suppress(EngineUnavailable):
        faults = database_status(ledger.pool, WORKER, connections=ledger.pool.size).faults
        if faults:
            raise UnsafeDatabase("; ".join(faults))


def make_agent(
    settings: WorkerSettings, ledger: Ledger, client: Client, *, failpoints: Failpoints, retry_policy: RetryPolicy | None = None,
    on_row: OnRow | None = None, only_agent: Callable[[], str | None] = lambda: None,
) -> Agent:  # fmt: skip
    """Build the agent with its workflow.

    `only_agent` returns the one agent whose rows, reports and rows in doubt it takes; None: every agent's. Raises
    `UnsafeConfiguration` for files that cannot be used.
    """
    retry_policy = retry_policy or _retry_policy(settings)
    worker_pool, stopping = WorkerPool(settings.concurrency), threading.Event()
    parts = make_dependencies(settings, ledger, client, worker_pool=worker_pool, retry_policy=retry_policy)
    reporter = Reporter(ledger, client, worker_pool, retry_policy, failpoints, only_agent=only_agent)
    processor = BatchProcessor(
        ledger=ledger, context_loader=ContextLoader(parts.routes, parts.confirmations),
        runner=build_runner(parts, failpoints=failpoints, stopping=stopping), reporter=reporter, retry_policy=retry_policy,
        failpoints=failpoints,
    )  # fmt: skip
    return Agent(
        settings, ledger=ledger, client=client, worker_pool=worker_pool, reporter=reporter, processor=processor,
        periodic_tasks=_periodic_tasks(settings, ledger, parts, only_agent), stopping=stopping, on_row=on_row,
        tracing=tracing_of("sentinel-worker", with_client=True), only_agent=only_agent,
    )  # fmt: skip


def _periodic_tasks(
    settings: WorkerSettings, ledger: Ledger, parts: Dependencies, only_agent: Callable[[], str | None]
) -> Sequence[PeriodicTask]:
    effects, adapters = Effects(ledger.pool, ledger.tenant_id), parts.systems.adapters
    reconciler = Reconciler(ledger.pool, ledger.tenant_id, parts.client, parts.routes, settings.policies_dir)
    watch = SettlementWatch(SettlementFindings(ledger.pool, ledger.tenant_id), parts.systems)
    periodic_tasks = [
        # Reconciliation first: a single run goes through them in turn, and no other task may keep it from running.
        PeriodicTask(reconciler.look, RECONCILE_EVERY_SECONDS),
        PeriodicTask(partial(deliver_best_effort, effects, adapters)),
        PeriodicTask(InDoubtPoller(ledger, parts.client, parts.routes, only_agent=only_agent).look, LOOK_EVERY_SECONDS),
        PeriodicTask(watch.look, WATCH_EVERY_SECONDS),
        PeriodicTask(partial(ledger.forget_ended, settings.agent_id), _FORGET_EVERY_SECONDS),
    ]
    if parts.confirmations.can_ask:
        periodic_tasks.append(PeriodicTask(Messenger(parts.confirmations, notifier_from(settings)).deliver_all))
    return periodic_tasks


def make_reconciler(settings: WorkerSettings, ledger: Ledger, client: Client) -> Reconciler:
    """Build the reconciler of a command, which checks all executions.

    Raises `UnsafeConfiguration` for a route table that cannot be used.
    """
    try:
        routes = load_routes(settings.policies_dir, Systems.from_settings(settings).names())
    except PolicyError as error:
        raise UnsafeConfiguration(str(error)) from error
    return Reconciler(ledger.pool, ledger.tenant_id, client, routes, settings.policies_dir, at_length=True)


@contextmanager
def open_simulator(settings: WorkerSettings, ledger: Ledger, client: Client) -> Iterator[Simulator]:
    """Open a simulator of rows. Raises `UnsafeConfiguration` for files that cannot be used."""
    worker_pool = WorkerPool(settings.concurrency)
    try:
        parts = make_dependencies(
            settings, ledger, client, worker_pool=worker_pool, retry_policy=_retry_policy(settings)
        )
        yield Simulator(ledger, ContextLoader(parts.routes, parts.confirmations), build_simulator(parts))
    finally:
        worker_pool.close()


def _retry_policy(settings: WorkerSettings) -> RetryPolicy:
    return RetryPolicy(settings.max_attempts, settings.backoff_seconds, settings.backoff_max_seconds, Random())


def make_dependencies(
    settings: WorkerSettings, ledger: Ledger, client: Client, *, worker_pool: WorkerPool, retry_policy: RetryPolicy
) -> Dependencies:
    """Build what the workflow's steps need, from the settings. Raises `UnsafeConfiguration` for files that cannot be used."""
    try:
        systems = Systems.from_settings(settings, Effects(ledger.pool, ledger.tenant_id))
        routes = load_routes(settings.policies_dir, systems.names())
        critic = critic_from(settings)
        recogniser = recogniser_from(
            settings.recogniser,
            api_key=settings.recogniser_api_key,
            timeout_seconds=settings.recogniser_timeout_seconds,
        )
    except (PolicyError, InvalidRecogniser, InvalidLabels) as error:
        raise UnsafeConfiguration(str(error)) from error
    return Dependencies(
        ledger=ledger, client=client, worker_pool=worker_pool, retry_policy=retry_policy, routes=routes, systems=systems,
        critic=critic, recogniser=recogniser, confirmations=confirmations_from(settings, ledger.pool, ledger.tenant_id),
        directories=directories(public_is_connected=settings.public_orders_imported),
        model_branches=model_branches(settings.critic_branches, routes),
        act_within_seconds=act_within_seconds(settings),
    )  # fmt: skip


def act_within_seconds(settings: WorkerSettings) -> int:
    """Seconds that a start declares: the time to begin calls and commits in, plus the time that one begun at its end is in flight."""
    return math.ceil(settings.act_seconds + in_flight_seconds(settings.settlement_timeout_seconds))


def load_routes(policies: Path, systems: Collection[str]) -> Routes:
    """Load the route table of a policies folder. Raises `PolicyError`, also for a switch whose gate is not a scenario.

    If the switches cannot be read, everything is off, and the names of switches in the table are not checked.
    """
    switches = SwitchFile(policies).declared.switches
    if switches:
        read_switches(policies / SWITCHES, gates=SCENARIOS)
    return Routes.load(policies / ROUTES, switches=switches or None, systems=systems)


def model_branches(text: str, routes: Routes) -> frozenset[str]:
    """The branches that are to have the model critic too. Raises `UnsafeConfiguration` naming the nearest known one."""
    known = {route.name for route in routes.all} | {"all"}
    for name in sorted(wanted := branches(text)):
        if name not in known:
            near = get_close_matches(name, known, n=1, cutoff=0.0)[0]
            raise UnsafeConfiguration(f'SENTINEL_CRITIC_BRANCHES: there is no branch "{name}"; did you mean "{near}"?')
    return wanted


@contextmanager
def _database_url(settings: WorkerSettings) -> Iterator[str]:
    if settings.database_url:
        yield settings.database_url
        return
    from sentinel.store.address import embedded_server

    with embedded_server(settings.data_dir, "WORKER_DATABASE_URL", "SENTINEL_DATABASE_URL") as server:
        yield server.url(user=WORKER)


def _worker_id() -> str:
    """Unique per process, so that a successor on the same machine is never taken for the one before."""
    return f"{socket.gethostname()[:60]}:{os.getpid()}:{secrets.token_hex(4)}"
