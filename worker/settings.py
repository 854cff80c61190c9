"""The worker's settings, read once from the environment; everything missing or wrong is said at once.

The metadata of each field (`env`, `help`) is the source of the documented table.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from environs import Env, EnvError

_KEY_NAMES = ("SENTINEL_REFUND_AGENT_API_KEY", "HALTSTATE_REFUND_AGENT_API_KEY")


class BadSettings(Exception):
    """One line that names every setting that is missing or wrong."""


def _setting(env: str, help: str, default: Any = None) -> Any:
    return field(default=default, metadata={"env": env, "help": help})


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """Everything the worker can be told from outside."""

    # Where to ask; the only way to the authority.
    authority_url: str = _setting("SENTINEL_URL", "address of the authority", "http://127.0.0.1:7860")
    # The ledger's database; the authority's own is the default because the demo keeps both in one.
    database_url: str | None = _setting(
        "WORKER_DATABASE_URL", "database with the refunds schema; default SENTINEL_DATABASE_URL, else the embedded one"
    )
    # Where the embedded PostgreSQL lives when no address is given.
    data_dir: Path = _setting("SENTINEL_DATA_DIR", "folder of the embedded PostgreSQL", Path("var"))
    # One worker serves one tenant.
    tenant_id: uuid.UUID | None = _setting("SENTINEL_TENANT_ID", "tenant; default: the ledger's default tenant")
    # The agent's key; never in a log, never on a command line.
    api_key: str = _setting(
        "SENTINEL_REFUND_AGENT_API_KEY", "the agent's key (or HALTSTATE_REFUND_AGENT_API_KEY, or --api-key-file)", ""
    )
    # The name under which this worker asks for approvals and shows itself.
    agent_id: str = _setting("WORKER_AGENT_ID", "name of this agent", "retail-refund-agent")
    # Rows per claim: enough to make the statements cheap, few enough to be finished within a lease.
    batch: int = _setting("WORKER_BATCH", "rows per claim", 64)
    # Calls to the authority at the same time.
    concurrency: int = _setting("WORKER_CONCURRENCY", "calls to the authority at the same time", 16)
    # Batches at the same time: while one waits for its commit, the other asks.
    lanes: int = _setting("WORKER_LANES", "batches under way at the same time", 2)
    # After this without a heartbeat another worker may take a row.
    lease_seconds: float = _setting("WORKER_LEASE_SECONDS", "how long a claim lasts", 30.0)
    heartbeat_seconds: float = _setting("WORKER_HEARTBEAT_SECONDS", "how often claims are renewed", 10.0)
    # One call to the authority, retries included.
    guard_timeout_seconds: float = _setting("WORKER_GUARD_TIMEOUT_SECONDS", "longest call to the authority", 5.0)
    # How often a row may stay without an answer before a person must look.
    max_attempts: int = _setting("WORKER_MAX_ATTEMPTS", "attempts without an answer before ERROR", 8)
    # Pause after a failed attempt: doubling from the first to the second, with jitter.
    backoff_seconds: float = _setting("WORKER_BACKOFF_SECONDS", "first pause after no answer", 1.0)
    backoff_max_seconds: float = _setting("WORKER_BACKOFF_MAX_SECONDS", "longest pause after no answer", 60.0)
    # How often an idle worker looks for work and for decided approvals.
    poll_seconds: float = _setting("WORKER_POLL_SECONDS", "how often an idle worker looks", 0.5)
    # Test harnesses only: where to break (see failpoints.py).
    failpoint: str | None = _setting("SENTINEL_FAILPOINT", "name:action[:nth] of a failpoint; tests only")
    failpoints_allowed: bool = _setting(
        "SENTINEL_ALLOW_FAILPOINTS", "1 lets SENTINEL_FAILPOINT work; tests only", False
    )


def _text(env: Env, name: str, default: Any) -> Any:
    return env.str(name, default)


_READERS: Mapping[str, Callable[[Env, str, Any], Any]] = {
    "data_dir": lambda env, name, default: Path(env.str(name, str(default))),
    "tenant_id": lambda env, name, _: env.uuid(name, None),
    "failpoints_allowed": lambda env, name, default: env.bool(name, default),
    **dict.fromkeys(("batch", "concurrency", "lanes", "max_attempts"), lambda env, n, d: env.int(n, d)),
    **dict.fromkeys(
        ("lease_seconds", "heartbeat_seconds", "guard_timeout_seconds", "backoff_seconds", "backoff_max_seconds",
         "poll_seconds"), lambda env, n, d: env.float(n, d)),
}  # fmt: skip


def read_settings(*, api_key_file: Path | None = None, needs_authority: bool = True) -> WorkerSettings:
    """Settings from the environment. Raises `BadSettings` with everything that is wrong in one line."""
    problems: list[str] = []
    values = _values(problems)
    values["database_url"] = values["database_url"] or os.environ.get("SENTINEL_DATABASE_URL") or None
    if needs_authority:
        values["api_key"] = _api_key(api_key_file, problems)
    settings = WorkerSettings(**values)
    problems += _contradictions(settings)
    if problems:
        raise BadSettings("settings: " + "; ".join(problems))
    return settings


def _values(problems: list[str]) -> dict[str, Any]:
    env, values = Env(), {}
    for name, spec in WorkerSettings.__dataclass_fields__.items():
        variable = spec.metadata["env"]
        values[name] = spec.default
        # An empty variable is how compose files and shells say "not set".
        if not os.environ.get(variable):
            continue
        try:
            read = _READERS.get(name, _text)
            values[name] = read(env, variable, spec.default)
        except EnvError:
            problems.append(f"{variable} is not a valid {spec.type.split(' ')[0]}")
    return values


def _api_key(file: Path | None, problems: list[str]) -> str:
    if file is not None:
        try:
            key = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            problems.append(f"--api-key-file cannot be read ({getattr(error, 'strerror', None) or 'not text'})")
            return ""
    else:
        key = next((os.environ[name].strip() for name in _KEY_NAMES if os.environ.get(name)), "")
    if not key:
        problems.append(f"no agent key: set {_KEY_NAMES[0]} or give --api-key-file")
    elif not key.isascii() or not key.isprintable() or " " in key:
        problems.append("the agent key must be printable ASCII without spaces")
    return key


def _contradictions(settings: WorkerSettings) -> list[str]:
    found = []
    address = urlsplit(settings.authority_url)
    if address.scheme not in ("http", "https") or not address.hostname:
        found.append("SENTINEL_URL must look like http://host:port")
    for name in ("batch", "concurrency", "lanes", "max_attempts"):
        if getattr(settings, name) < 1:
            found.append(f"{_variable(name)} must be at least 1")
    for name in ("lease_seconds", "heartbeat_seconds", "guard_timeout_seconds", "backoff_seconds", "poll_seconds"):
        if not 0 < getattr(settings, name) < 86400:
            found.append(f"{_variable(name)} must be more than 0 and less than a day")
    if not settings.backoff_seconds <= settings.backoff_max_seconds < 86400:
        found.append("WORKER_BACKOFF_MAX_SECONDS must not be less than WORKER_BACKOFF_SECONDS")
    least = 2 * settings.guard_timeout_seconds + settings.heartbeat_seconds
    if settings.lease_seconds < least:
        # Else a healthy worker could lose a row to another while it still waits for the authority.
        found.append(
            f"WORKER_LEASE_SECONDS must be at least 2 × WORKER_GUARD_TIMEOUT_SECONDS + WORKER_HEARTBEAT_SECONDS = {least:g}"
        )
    return found


def _variable(name: str) -> str:
    variable: str = WorkerSettings.__dataclass_fields__[name].metadata["env"]
    return variable
