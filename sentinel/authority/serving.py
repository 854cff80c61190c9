"""The authority's process: refuse to start with unsafe settings, then serve.

`serve` runs in the foreground until SIGTERM. What all server processes share (policies, rate limit) is made before the
fork.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from sentinel.authority.checkpointer import Checkpointer
from sentinel.authority.checkpoints import CheckpointFile
from sentinel.authority.housekeeping import ExpiredCounts, Housekeeper
from sentinel.authority.policies import refuse_unknown_zones, refuse_unknown_zones_at
from sentinel.authority.policy_declarations import LastDeclared, PolicyDeclarations
from sentinel.authority.settings import Settings
from sentinel.core.errors import SentinelError
from sentinel.platform.http.asgi import Edge
from sentinel.platform.http.rate_limit import SharedRateLimit
from sentinel.platform.logs import buffer_log_lines, configure_logs
from sentinel.platform.serving.server import Listener, Server, metrics_folder, require_listeners
from sentinel.platform.settings import UnsafeConfiguration
from sentinel.platform.tracing import require_tracing
from sentinel.policy.errors import PolicyError
from sentinel.policy.library import PolicyLibrary, ReloadablePolicies
from sentinel.store.database import AUTHORITY, with_role
from sentinel.store.safety import require_ready

log = structlog.get_logger("sentinel")

LOG_SECONDS = 0.01
"""How long a log line may be buffered, to be written together with others."""


def serve(settings: Settings, *, graceful_seconds: int = 20) -> None:
    """Run the authority until it is stopped by a signal.

    Raises `UnsafeConfiguration` and other errors with one-line messages before it listens.
    """
    configure_logs(settings.log_level)
    listener = Listener(
        settings.host, settings.port, settings.max_connections, settings.max_connections_per_address, "--port or SENTINEL_PORT",
        "SENTINEL_HEALTH_PORT", "SENTINEL_MAX_CONNECTIONS", health=(settings.health_host, settings.health_port),
    )  # fmt: skip
    require_listeners(listener)
    policies = _first_policies(settings.policies_dir)
    _require_checkpoint_file(settings.checkpoint_file)
    require_tracing(
        "sentinel"
    )  # here, and not only in each server process: there it would be a failure of unknown cause
    require_ready(settings.database_url, AUTHORITY, connections=settings.processes * max(2, settings.pool_size))
    with metrics_folder():
        _run(settings, listener, policies, graceful_seconds)


def _first_policies(folder: Path) -> ReloadablePolicies:
    """Load the policies. Raises `UnsafeConfiguration` if they cannot be used: a restart does not help then, only a person."""
    try:
        return ReloadablePolicies(folder)
    except PolicyError as error:
        raise UnsafeConfiguration(error.detail) from error


def _require_checkpoint_file(name: str) -> None:
    """Raise `UnsafeConfiguration` if a checkpoint file is configured and cannot be written.

    Not for a full disk: its missing checkpoints raise an alert, and decisions do not wait for a person who starts the
    authority again once there is room.
    """
    try:
        if name:
            CheckpointFile(Path(name)).require_writable()
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return
        raise UnsafeConfiguration(f"SENTINEL_CHECKPOINT_FILE: {name} cannot be written: {error.strerror}") from error


def _run(settings: Settings, listener: Listener, policies: ReloadablePolicies, graceful_seconds: int) -> None:
    limit = SharedRateLimit(per_second=settings.rate_per_second, burst=settings.rate_burst)
    last_declared = LastDeclared()
    keepers: list[Housekeeper] = []

    def make_app(worker: Any) -> Edge:
        app, keeper = _begin(worker, settings, policies, limit, last_declared)
        keepers.append(keeper)
        return app

    def stop_keepers() -> None:
        for keeper in keepers:
            keeper.stop()

    # The master process has no pool: its server processes make theirs after the fork.
    check = partial(refuse_unknown_zones_at, with_role(settings.database_url, AUTHORITY), policies.directory)

    def reload_in_master() -> None:
        if _reload_policies(policies, check):
            last_declared.forget()

    log.info("serving", address=listener.url, process=os.getpid())
    Server(
        make_app, listener, processes=settings.processes, graceful_seconds=graceful_seconds,
        on_reload=reload_in_master, on_worker_exit=stop_keepers,
    ).run()  # fmt: skip


def _begin(
    worker: Any, settings: Settings, policies: ReloadablePolicies, limit: SharedRateLimit, last_declared: LastDeclared
) -> tuple[Edge, Housekeeper]:
    """Set up one server process after the fork; return its app and its housekeeping thread, already started."""
    # Imported only here: `metrics` must not be imported before its multiprocess folder exists.
    from sentinel.authority import metrics
    from sentinel.authority.app import build_authority, create_app

    buffer_log_lines(lambda write: worker.loop.call_soon_threadsafe(worker.loop.call_later, LOG_SECONDS, write))
    authority = build_authority(settings, policies)
    with contextlib.suppress(SentinelError):
        authority.clock.refresh()  # now, before the loop runs: otherwise the first decision would have to wait for it
    declaring = PolicyDeclarations(authority, last_declared)
    note_connections = partial(metrics.note_connections, authority.pool, authority.connections)
    each_round: list[Callable[[], None]] = [note_connections, declaring.round, declaring.catch_up]
    if settings.checkpoint_file:
        checkpointer = Checkpointer(Path(settings.checkpoint_file), count_failure=metrics.CHECKPOINT_FAILURES.inc)
        each_round.append(partial(checkpointer.round, authority.pool))

    check = partial(refuse_unknown_zones, authority.pool, policies.directory)

    def take_new_policies() -> None:
        # Where the folder is refused, other authorities may have declared newer texts than those that stay loaded here.
        if _reload_policies(policies, check):
            declaring.want()

    if declaring.is_behind() and _reload_policies(policies, check) and declaring.is_behind():
        declaring.want()
    # In a thread, because compiling policies would block the event loop for longer than a decision may take.
    worker.loop.add_signal_handler(signal.SIGHUP, lambda: threading.Thread(target=take_new_policies).start())
    keeper = Housekeeper(authority, tell=_count_expired, each_round=each_round)
    keeper.start()
    return create_app(settings, authority, limit, stopping=lambda: not worker.alive), keeper


def _reload_policies(policies: ReloadablePolicies, check: Callable[[PolicyLibrary], None]) -> bool:
    """Reload the policy folder; if a policy cannot be compiled, or `check` refuses, the last good policies stay loaded.

    Returns whether it was loaded.
    """
    from sentinel.authority import metrics

    try:
        policies.reload(check)
    except PolicyError as error:
        metrics.POLICY_RELOADS.labels("kept_last_good").inc()
        log.error("policy_reload_refused", fault=str(error))
        return False
    metrics.POLICY_RELOADS.labels("loaded").inc()
    log.info("policies_loaded", versions=[one.policy.version for one in policies.library.policies])
    return True


def _count_expired(counts: ExpiredCounts) -> None:
    from sentinel.authority import metrics

    for what, count in dataclasses.asdict(counts).items():
        if count:
            metrics.HOUSEKEEPING.labels(what).inc(count)
