"""The authority's process: refuse to start unsafe, then serve.

`serve` runs in the foreground until SIGTERM. What all processes share (policies, rate limit) is made before they fork.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path
from typing import Any

import structlog

from sentinel.authority.settings import Settings
from sentinel.core.errors import SentinelError
from sentinel.platform.logs import configure_logs, gather_lines
from sentinel.platform.serving.server import Listener, Server, metrics_folder
from sentinel.policy.errors import PolicyError
from sentinel.policy.library import PolicyHolder
from sentinel.store.database import AUTHORITY
from sentinel.store.safety import require_ready

log = structlog.get_logger("sentinel")

LOG_SECONDS = 0.01
"""How long a line of the log may wait for others to be written with."""


def serve(settings: Settings, *, graceful_seconds: int = 20) -> None:
    """Run the authority until it is told to stop. Raises one-line refusals before anything listens."""
    configure_logs(settings.log_level, program="sentinel")
    listener = Listener(
        settings.host, settings.port, settings.max_connections, settings.max_connections_per_address, "--port or SENTINEL_PORT",
        "SENTINEL_HEALTH_PORT", "SENTINEL_MAX_CONNECTIONS", health=(settings.health_host, settings.health_port),
    )  # fmt: skip
    listener.require()
    policies = PolicyHolder(settings.policies_dir)
    require_ready(settings.database_url, AUTHORITY, connections=settings.processes * settings.pool_size)
    with metrics_folder():
        _run(settings, listener, policies, graceful_seconds)


def _run(settings: Settings, listener: Listener, policies: PolicyHolder, graceful_seconds: int) -> None:
    from sentinel.authority import metrics
    from sentinel.authority.app import build_authority, create_edge
    from sentinel.authority.checkpointer import Checkpointer
    from sentinel.authority.housekeeping import Housekeeper
    from sentinel.authority.policies import declare_policies
    from sentinel.platform.http.rate_limit import SharedRateLimit

    limit = SharedRateLimit(per_second=settings.rate_per_second, burst=settings.rate_burst)
    keepers: list[Housekeeper] = []

    def reload_policies() -> None:
        try:
            policies.reload()
        except PolicyError as error:
            metrics.POLICY_RELOADS.labels("kept_last_good").inc()
            log.error("policy_reload_refused", fault=str(error))
            return
        metrics.POLICY_RELOADS.labels("loaded").inc()
        log.info("policies_loaded", versions=[one.policy.version for one in policies.library.policies])

    def make_app(worker: Any) -> Any:
        gather_lines(lambda write: worker.loop.call_soon_threadsafe(worker.loop.call_later, LOG_SECONDS, write))
        authority = build_authority(settings, policies)
        with contextlib.suppress(SentinelError):
            authority.clock.ask()  # before the loop runs; without a database the first decision waits for it
        wanted = {"reload": True}

        checkpointer = Checkpointer(Path(settings.checkpoint_file)) if settings.checkpoint_file else None

        def each_round() -> None:
            declare_when_wanted()
            if checkpointer is not None:
                checkpointer.round(authority.pool)

        def declare_when_wanted() -> None:
            if not wanted["reload"]:
                return
            wanted["reload"] = False
            try:
                declare_policies(authority)
            except SentinelError:
                wanted["reload"] = True  # the database is away: again in the next round
                raise

        def take_new_policies() -> None:
            reload_policies()
            wanted["reload"] = True

        # In a thread: compiling takes longer than a decision may wait.
        worker.loop.add_signal_handler(signal.SIGHUP, lambda: threading.Thread(target=take_new_policies).start())
        keeper = Housekeeper(authority, tell=_count_house, each_round=each_round)
        keeper.start()
        keepers.append(keeper)
        return create_edge(settings, authority, limit, stopping=lambda: not worker.alive)

    def _count_house(house: Any) -> None:
        for what in ("permits_expired", "approvals_expired", "fell_in_doubt"):
            if getattr(house, what):
                metrics.HOUSEKEEPING.labels(what).inc(getattr(house, what))

    def stop_keepers() -> None:
        for keeper in keepers:
            keeper.stop()

    log.info("serving", address=listener.url, process=os.getpid())
    Server(
        make_app, listener, processes=settings.processes, graceful_seconds=graceful_seconds, on_reload=reload_policies,
        on_worker_exit=stop_keepers,
    ).run()  # fmt: skip
