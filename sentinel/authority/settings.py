"""The authority's settings: one frozen value, read from the environment once, with every fault reported at once.

Each field carries its variable's name and meaning; `docs/settings.md` is made from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marshmallow.validate import OneOf, Range

from sentinel.platform.resources import policies_dir
from sentinel.platform.settings import (
    BEHIND_TLS,
    CONNECTIONS_HELP,
    COUNT,
    HEALTH_HELP,
    LOG_LEVEL,
    LOG_LEVEL_HELP,
    PORT,
    PORT_OR_NONE,
    given,
    read_fields,
    refuse_unsafe,
    setting,
    weak_secret_faults,
)
from sentinel.store.database import POOLER, POOLER_HELP, POOLERS

CHECKPOINTS = "checkpoints.jsonl"
"""The checkpoint file of an embedded database, in its data folder."""
_ACT_SECONDS = Range(min=10, max=1_000_000)


@dataclass(frozen=True, slots=True)
class Settings:
    """The authority's settings."""

    database_url: str = setting(
        "SENTINEL_DATABASE_URL",
        "Address of a PostgreSQL 15 or newer; if not set, an embedded one is started in the data folder.",
        "",
    )
    database_pooler: str = setting(POOLER, POOLER_HELP, "none", valid=OneOf(POOLERS))
    data_dir: Path = setting("SENTINEL_DATA_DIR", "Folder for the embedded database and the demo's files.", Path("var"))
    secret_keys: tuple[str, ...] = setting(
        "SENTINEL_SECRET_KEYS",
        "Secrets that sign permits, comma separated, at least 32 characters each; the first signs, all verify. Required with a database of your own; else one is made and kept in the data folder.",
        (),
    )
    policies_dir: Path = setting("SENTINEL_POLICIES_DIR", "Folder of policy files.", policies_dir())
    checkpoint_file: str = setting(
        "SENTINEL_CHECKPOINT_FILE",
        "File outside the database to which a checkpoint of the evidence is appended each minute; `sentinel doctor` compares the database with it. Default with the embedded database: `checkpoints.jsonl` in the data folder; else none.",
        "",
    )
    host: str = setting("SENTINEL_HOST", "Address the authority listens on.", "127.0.0.1")
    port: int = setting("SENTINEL_PORT", "Port of the authority.", 7860, valid=PORT)
    health_host: str = setting("SENTINEL_HEALTH_HOST", "Address the health port listens on.", "127.0.0.1")
    health_port: int = setting("SENTINEL_HEALTH_PORT", HEALTH_HELP, 0, valid=PORT_OR_NONE)
    processes: int = setting(
        "SENTINEL_PROCESSES",
        "Server processes. One uses a whole core and commits in the largest batches; use more on a machine with more than two cores, or so that requests are still answered when one process dies.",
        1,
        valid=COUNT,
    )
    threads: int = setting(
        "SENTINEL_THREADS", "Threads per process, for requests other than decisions.", 24, valid=COUNT
    )
    max_connections: int = setting("SENTINEL_MAX_CONNECTIONS", CONNECTIONS_HELP, 4000, valid=COUNT)
    max_connections_per_address: int = setting(
        "SENTINEL_MAX_CONNECTIONS_PER_ADDRESS",
        "Connections per process from one address (IPv6: from one /64 network). Behind a proxy, which is one address, set it to SENTINEL_MAX_CONNECTIONS.",
        2000,
        valid=COUNT,
    )
    pool_size: int = setting(
        "SENTINEL_POOL_SIZE",
        "Database connections per process: half for commits, half for everything else.",
        12,
        valid=COUNT,
    )
    max_streams: int = setting("SENTINEL_MAX_STREAMS", "Approvals streams held open per process.", 1000, valid=COUNT)
    max_streams_per_tenant: int = setting(
        "SENTINEL_MAX_STREAMS_PER_TENANT", "Approvals streams of one tenant held open per process.", 200, valid=COUNT
    )
    max_streams_per_key: int = setting(
        "SENTINEL_MAX_STREAMS_PER_KEY", "Approvals streams of one key held open per process.", 20, valid=COUNT
    )
    permit_seconds: int = setting(
        "SENTINEL_PERMIT_SECONDS", "How long a permit can be redeemed after it is issued.", 120, valid=COUNT
    )
    report_deadline_seconds: int = setting(
        "SENTINEL_REPORT_DEADLINE_SECONDS",
        "After a start, an operation without a report for this long is put in doubt; also how long a caller may act that declares no time (act_within_seconds).",
        300,
        valid=_ACT_SECONDS,
    )
    longest_act_seconds: int = setting(
        "SENTINEL_LONGEST_ACT_SECONDS",
        "Longest time to act that a start may declare (act_within_seconds); until that time is over, nobody can resolve the operation as not executed.",
        3600,
        valid=_ACT_SECONDS,
    )
    open_permits_per_key: int = setting(
        "SENTINEL_OPEN_PERMITS_PER_KEY",
        "Permits of one key that are neither redeemed nor expired; at the limit, a guard is answered with 429.",
        5000,
        valid=COUNT,
    )
    open_questions_per_key: int = setting(
        "SENTINEL_OPEN_QUESTIONS_PER_KEY",
        "Pending approvals of one key; at the limit, a guard that would need a person's approval is answered with 429.",
        20_000,
        valid=COUNT,
    )
    rate_per_second: int = setting(
        "SENTINEL_RATE_PER_SECOND",
        "Requests per second and key, over all processes of this host. Each whole 4 KiB of a request's body counts as one more request.",
        5000,
        valid=COUNT,
    )
    rate_burst: int = setting("SENTINEL_RATE_BURST", "Requests that a key may make at once.", 10000, valid=COUNT)
    behind_tls: bool = setting("SENTINEL_BEHIND_TLS", BEHIND_TLS, False)
    authzen_access_requests: bool = setting(
        "SENTINEL_AUTHZEN_ACCESS_REQUESTS",
        "Serve the access request and approval profile (draft 1) of AuthZEN beside its evaluations.",
        False,
    )
    log_level: str = setting("SENTINEL_LOG_LEVEL", LOG_LEVEL_HELP, "info", valid=LOG_LEVEL)
    debug: bool = setting(
        "SENTINEL_DEBUG",
        "Must be off, or the program does not start: a debugger would let outsiders run code in the authority.",
        False,
    )


def load_settings(**overrides: Any) -> Settings:
    """Read the settings from the environment; `overrides` are a command's options, without those that are None.

    Raises `UnsafeConfiguration` with every fault.
    """
    values, bad = read_fields(Settings)
    settings = Settings(**{**values, **given(overrides)})
    refuse_unsafe(bad, unsafe(settings))
    return settings


def unsafe(settings: Settings) -> list[str]:
    """Return the faults with which the authority must not start, one line each."""
    faults = ["SENTINEL_DEBUG: must be off"] if settings.debug else []
    faults += weak_secret_faults("SENTINEL_SECRET_KEYS", settings.secret_keys)
    if settings.database_url and not settings.secret_keys:
        faults.append("SENTINEL_SECRET_KEYS: required with SENTINEL_DATABASE_URL (try: openssl rand -hex 32)")
    return faults
