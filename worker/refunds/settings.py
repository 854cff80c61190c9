"""The worker's settings, read once from the environment; everything missing or wrong is reported at once.

The metadata of each field (`env`, `help`, `valid`) is the source of the documented table.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from marshmallow.validate import OneOf, Range

from sentinel.platform.outbound.client import is_http_url
from sentinel.platform.outbound.mail import SmtpAccount, account_faults
from sentinel.platform.resources import policies_dir
from sentinel.platform.secret_files import read_secret
from sentinel.platform.settings import (
    COUNT,
    PORT,
    PORT_OR_NONE,
    SMTP_SECURITY,
    UnsafeConfiguration,
    confirm_secrets,
    read_fields,
    setting,
    weak_secret_faults,
    without_faults_about,
)
from sentinel.store.database import POOLER, POOLER_HELP, POOLERS
from worker.critic.settings import faults as critic_faults
from worker.refunds.rows import DEFAULT_AGENT
from worker.settlement.settings import faults as settlement_faults

_KEY_NAMES = ("SENTINEL_REFUND_AGENT_API_KEY", "HALTSTATE_REFUND_AGENT_API_KEY")

_SECONDS = Range(min=0, max=86400, min_inclusive=False, max_inclusive=False)
_CALL_SECONDS = Range(min=0, max=60, min_inclusive=False)
SPARE_CONNECTIONS = 4
"""Connections to the ledger's database in addition to one per lane, for heartbeat, periodic tasks and health checks."""


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """All settings of the worker."""

    # The authority's address; the worker reaches it over HTTP only.
    authority_url: str = setting("SENTINEL_URL", "address of the authority", "http://127.0.0.1:7860")
    # The ledger's database; the authority's own is the default because the demo keeps both in one.
    database_url: str | None = setting(
        "WORKER_DATABASE_URL",
        "address of the database with the refunds schema; default SENTINEL_DATABASE_URL, else the embedded one",
    )
    # A pooler in transaction mode keeps no session state: settings made when a connection opens are lost there.
    database_pooler: str = setting(POOLER, POOLER_HELP, "none", valid=OneOf(POOLERS))
    # Where the embedded PostgreSQL lives when no address is given.
    data_dir: Path = setting("SENTINEL_DATA_DIR", "folder of the embedded PostgreSQL", Path("var"))
    # One worker serves one tenant.
    tenant_id: uuid.UUID | None = setting(
        "SENTINEL_TENANT_ID", "id of the tenant; default: the ledger's default tenant"
    )
    # The agent's key; never in a log, never on a command line.
    api_key: str = setting(
        "SENTINEL_REFUND_AGENT_API_KEY", "the agent's key (or HALTSTATE_REFUND_AGENT_API_KEY, or --api-key-file)", ""
    )
    # The name under which this worker asks for approvals and shows itself.
    agent_id: str = setting(
        "WORKER_AGENT_ID", "id of this agent, also for imported rows that name no agent", DEFAULT_AGENT
    )
    # Rows per claim: enough to make the statements cheap, few enough to be finished within a lease.
    batch: int = setting(
        "WORKER_BATCH",
        "rows per claim: enough for several calls to the authority at once, and few enough to be finished within a lease",
        128,
        valid=COUNT,
    )
    # Calls to the authority at the same time.
    concurrency: int = setting("WORKER_CONCURRENCY", "calls to the authority at the same time", 16, valid=COUNT)
    # Batches at the same time: while one waits for its commit, another asks and a third decides. A fourth only waits for them.
    lanes: int = setting("WORKER_LANES", "batches processed at the same time", 3, valid=COUNT)
    # After this without a heartbeat another worker may take a row.
    lease_seconds: float = setting(
        "WORKER_LEASE_SECONDS", "how long a claim lasts unless it is renewed", 30.0, valid=_SECONDS
    )
    heartbeat_seconds: float = setting("WORKER_HEARTBEAT_SECONDS", "how often claims are renewed", 10.0, valid=_SECONDS)
    # One call to the authority, retries included.
    guard_timeout_seconds: float = setting(
        "WORKER_GUARD_TIMEOUT_SECONDS", "longest call to the authority", 5.0, valid=_SECONDS
    )
    # From asking for a start to the last call or commit under it; after that the start must be asked for again. Until
    # this time and any call still in flight are over, nobody can resolve the operation as not executed. The authority
    # accepts an hour at most, calls in flight included.
    act_seconds: float = setting(
        "WORKER_ACT_SECONDS",
        "time to execute a row under one start, counted from the request for the start; after it the start is asked for again",
        120.0,
        valid=Range(min=0, max=3000, min_inclusive=False),
    )
    # How often a row may fail for a reason of its own before a person must look; outages are not counted.
    max_attempts: int = setting(
        "WORKER_MAX_ATTEMPTS",
        "failed attempts after which a row becomes ERROR: refused starts, failures of the row itself, workers that ended while processing it; outages do not count",
        8,
        valid=COUNT,
    )
    # Pauses after failed attempts double from the first value to the second, with jitter.
    backoff_seconds: float = setting(
        "WORKER_BACKOFF_SECONDS", "first pause after a call without an answer", 1.0, valid=_SECONDS
    )
    backoff_max_seconds: float = setting(
        "WORKER_BACKOFF_MAX_SECONDS",
        "longest pause after a call without an answer; when the authority is back, rows that wait for it are processed within seconds",
        60.0,
        valid=_SECONDS,
    )
    # How often an idle worker looks for work and for decided approvals.
    poll_seconds: float = setting(
        "WORKER_POLL_SECONDS", "how often an idle worker looks for due rows and decided approvals", 0.5, valid=_SECONDS
    )
    # /healthz, /readyz and /metrics of a worker with --loop; not for the public.
    health_host: str = setting("WORKER_HEALTH_HOST", "address the health port listens on", "127.0.0.1")
    health_port: int = setting(
        "WORKER_HEALTH_PORT",
        "port for /healthz, /readyz and /metrics with --loop, another one for each worker on a machine; 0: they are off",
        0,
        valid=PORT_OR_NONE,
    )
    # What signs the links of confirm cards; the public board must have the same.
    confirm_secrets: tuple[str, ...] = setting(
        "CONFIRM_SECRETS",
        "secrets that sign confirm links, comma separated, at least 32 characters each, newest first; the public board, which serves the confirm page, needs the same. Default SENTINEL_SECRET_KEYS, else the embedded database's. Without one no customer can be asked for a confirmation",
        (),
    )
    # The public board's address for customers; confirm links begin with it.
    confirm_base_url: str = setting(
        "CONFIRM_BASE_URL",
        "address of the public board as customers reach it; confirm links begin with it",
        "http://127.0.0.1:7863",
    )
    # After this an unanswered card ends its row as DENIED.
    confirm_expires_seconds: int = setting(
        "CONFIRM_EXPIRES_SECONDS",
        "how long a customer can answer a confirm card; after that the row is DENIED",
        86400,
        valid=Range(min=60, max=90 * 86400),
    )
    # How a link gets to its customer.
    notifier: str = setting(
        "WORKER_NOTIFIER",
        "how confirm links are sent: file, smtp, or log (which sends nothing)",
        "file",
        valid=OneOf(["log", "file", "smtp"]),
    )
    outbox_dir: Path = setting(
        "WORKER_OUTBOX_DIR",
        "folder of the file confirmations.jsonl, to which WORKER_NOTIFIER=file writes the links",
        Path("var/outbox"),
    )
    smtp_host: str = setting("SMTP_HOST", "mail server; required with WORKER_NOTIFIER=smtp", "")
    smtp_port: int = setting("SMTP_PORT", "port of the mail server", 587, valid=PORT)
    smtp_security: str = setting(
        "SMTP_SECURITY", "starttls, tls, or none (loopback only)", "starttls", valid=SMTP_SECURITY
    )
    smtp_username: str = setting("SMTP_USERNAME", "account on the mail server; if not set, there is no login", "")
    smtp_password: str = setting("SMTP_PASSWORD", "password of that account", "")
    smtp_from: str = setting("SMTP_FROM", "address that mail is sent from; required with WORKER_NOTIFIER=smtp", "")
    smtp_timeout_seconds: float = setting(
        "SMTP_TIMEOUT_SECONDS",
        "longest time for sending one mail, in all",
        10.0,
        valid=_CALL_SECONDS,
    )
    # The model critic: an OpenAI-compatible endpoint. Without it the rules critic judges alone.
    critic_url: str = setting(
        "SENTINEL_CRITIC_URL",
        "address of the model critic, the part before /chat/completions; if not set, only the rules judge",
        "",
    )
    critic_model: str = setting("SENTINEL_CRITIC_MODEL", "name of the model; required with SENTINEL_CRITIC_URL", "")
    critic_api_key: str = setting("SENTINEL_CRITIC_API_KEY", "bearer key for the model; if not set, none is sent", "")
    # Total time, however slowly the answer arrives; after it the row goes to a person.
    critic_timeout_seconds: float = setting(
        "SENTINEL_CRITIC_TIMEOUT_SECONDS", "longest wait for the model critic's answer", 3.0, valid=_CALL_SECONDS
    )
    critic_branches: str = setting(
        "SENTINEL_CRITIC_BRANCHES",
        "branches that the model judges in addition to those of the route table, e.g. private/fee, comma separated; or all",
        "",
    )
    # The folder with the route table and the declared switches.
    policies_dir: Path = setting(
        "SENTINEL_POLICIES_DIR",
        "folder of the policy files, the switches, the route table and the bounds of the critic",
        policies_dir(),
    )
    # A marketplace's orders count once the settings say that they are imported.
    public_orders_imported: bool = setting(
        "WORKER_PUBLIC_ORDERS",
        "1: orders of the public channel are imported into the ledger; else refunds of that channel go to a person",
        False,
    )
    # What reads proof images.
    recogniser: str = setting(
        "WORKER_RECOGNISER", "what recognises proof images: none, labels:FILE or http:URL", "none"
    )
    recogniser_api_key: str = setting(
        "WORKER_RECOGNISER_API_KEY", "bearer key for the recogniser; if not set, none is sent", ""
    )
    recogniser_timeout_seconds: float = setting(
        "WORKER_RECOGNISER_TIMEOUT_SECONDS", "longest wait for the recogniser's answer", 5.0, valid=_CALL_SECONDS
    )
    # Settlement systems outside the ledger; one without an address is not ready, and its refunds go to a person.
    price_difference_url: str | None = setting(
        "WORKER_PRICE_DIFFERENCE_URL",
        "address of the price-difference system; if not set, it is not ready and its refunds go to a person",
    )
    price_difference_key: str | None = setting("WORKER_PRICE_DIFFERENCE_KEY", "API key of the price-difference system")
    platform_url: str | None = setting(
        "WORKER_PLATFORM_URL",
        "address of the platform's backend for refunds; if not set, it is not ready and its refunds go to a person",
    )
    platform_key: str | None = setting("WORKER_PLATFORM_KEY", "API key of the platform's backend")
    ticket_url: str | None = setting(
        "WORKER_TICKET_URL", "address of the ticket system; if not set, it is not ready and its refunds go to a person"
    )
    ticket_key: str | None = setting("WORKER_TICKET_KEY", "API key of the ticket system")
    # Refunds at Stripe, for routes that settle to `stripe`: the order's fact payment_ref names the payment.
    stripe_key: str | None = setting(
        "WORKER_STRIPE_KEY",
        "restricted key of Stripe (refunds: write; charges and payment intents: read); if not set, stripe is not ready and its refunds go to a person",
    )
    stripe_url: str = setting("WORKER_STRIPE_URL", "address of Stripe's API", "https://api.stripe.com")
    settlement_timeout_seconds: float = setting(
        "WORKER_SETTLEMENT_TIMEOUT_SECONDS",
        "longest call to a settlement system, from the request to the end of the answer",
        5.0,
        valid=_CALL_SECONDS,
    )
    # Test harnesses only: where to break (see failpoints.py).
    failpoint: str | None = setting("SENTINEL_FAILPOINT", "name:action[:nth] of a failpoint; tests only")
    failpoints_allowed: bool = setting("SENTINEL_ALLOW_FAILPOINTS", "1 allows SENTINEL_FAILPOINT; tests only", False)

    @property
    def smtp_account(self) -> SmtpAccount:
        """The account that mail is sent with where WORKER_NOTIFIER is smtp."""
        return SmtpAccount(
            host=self.smtp_host, port=self.smtp_port, sender=self.smtp_from, security=self.smtp_security,
            username=self.smtp_username, password=self.smtp_password, timeout_seconds=self.smtp_timeout_seconds,
        )  # fmt: skip

    @property
    def connections(self) -> int:
        """How many connections to the ledger's database a worker opens at most."""
        return self.lanes + SPARE_CONNECTIONS


def read_settings(*, api_key_file: Path | None = None, needs_authority: bool = True) -> WorkerSettings:
    """Settings from the environment. Raises `UnsafeConfiguration` with everything that is wrong in one line."""
    values, bad = read_fields(WorkerSettings)
    problems = [f"{variable}: {text}" for variable, text in bad.items()]
    values["confirm_secrets"] = confirm_secrets()
    values["database_url"] = values["database_url"] or os.environ.get("SENTINEL_DATABASE_URL") or None
    if needs_authority:
        values["api_key"] = _api_key(api_key_file, problems)
    settings = WorkerSettings(**values)
    faults = _contradictions(settings) + _confirm_faults(settings) + critic_faults(settings)
    problems += without_faults_about(bad, faults + settlement_faults(settings))
    if problems:
        raise UnsafeConfiguration("settings: " + "; ".join(problems))
    return settings


def _api_key(file: Path | None, problems: list[str]) -> str:
    if file is not None:
        try:
            key = read_secret(file)
        except OSError as error:
            problems.append(f"--api-key-file cannot be read ({error.strerror})")
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
    if not is_http_url(settings.authority_url):
        found.append("SENTINEL_URL must look like http://host:port")
    if settings.backoff_max_seconds < settings.backoff_seconds:
        found.append("WORKER_BACKOFF_MAX_SECONDS must be at least WORKER_BACKOFF_SECONDS")
    shortest_act = settings.guard_timeout_seconds + settings.settlement_timeout_seconds
    if settings.act_seconds < shortest_act:
        # It could be over before the first settlement call ends.
        found.append(
            "WORKER_ACT_SECONDS must be at least WORKER_GUARD_TIMEOUT_SECONDS + WORKER_SETTLEMENT_TIMEOUT_SECONDS"
            f" = {shortest_act:g}"
        )
    least = 2 * settings.guard_timeout_seconds + settings.heartbeat_seconds
    if settings.lease_seconds < least:
        # Else a healthy worker could lose a row to another while it still waits for the authority.
        found.append(
            f"WORKER_LEASE_SECONDS must be at least 2 × WORKER_GUARD_TIMEOUT_SECONDS + WORKER_HEARTBEAT_SECONDS = {least:g}"
        )
    return found


def _confirm_faults(settings: WorkerSettings) -> list[str]:
    """Return what is wrong with the settings of confirm cards."""
    found = weak_secret_faults("CONFIRM_SECRETS", settings.confirm_secrets)
    address = urlsplit(settings.confirm_base_url)
    if address.scheme not in ("http", "https") or not address.hostname or address.query or address.fragment:
        found.append("CONFIRM_BASE_URL must look like https://host or https://host/path")
    return found + (
        account_faults(settings.smtp_account, "WORKER_NOTIFIER=smtp") if settings.notifier == "smtp" else []
    )
