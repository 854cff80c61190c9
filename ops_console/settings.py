"""The console's settings: one frozen value, read from the environment once; every fault is reported at once."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from marshmallow.validate import OneOf

from ops_console.audience import Audience
from ops_console.board.agents import PublicAgents, parse_public_agents
from sentinel.authority.actor import has_role
from sentinel.core.errors import InvalidInput
from sentinel.core.hosts import is_loopback
from sentinel.platform.resources import policies_dir
from sentinel.platform.settings import (
    ADDRESS_CONNECTIONS_HELP,
    BEHIND_TLS,
    CONNECTIONS_HELP,
    COUNT,
    HEALTH_HELP,
    LOG_LEVEL,
    LOG_LEVEL_HELP,
    PORT,
    PORT_OR_NONE,
    TRUSTED_PROXIES,
    confirm_secrets,
    given,
    public_id_secrets,
    read_fields,
    refuse_unsafe,
    setting,
    weak_secret_faults,
)
from sentinel.store.database import CONSOLE, POOLER, POOLER_HELP, POOLERS, PUBLIC


@dataclass(frozen=True, slots=True)
class Login:
    """The database login of a process: its role, address, most connections and application name.

    `ledger_url` is "" if the ledger is in the same database.
    """

    role: str
    url: str
    connections: int
    name: str
    ledger_url: str


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """Everything the console can be configured with."""

    database_url: str = setting(
        "SENTINEL_DATABASE_URL", "Address of the authority's PostgreSQL; if not set, the embedded one is used.", ""
    )
    public_database_url: str = setting(
        "SENTINEL_PUBLIC_DATABASE_URL",
        "Address of the same database with the login of `sentinel_public`, for the public board and the confirm page; if not set, they use the"
        " console's login. If set, `--only public` needs no login of the console.",
        "",
    )
    board_database_url: str = setting(
        "SENTINEL_BOARD_DATABASE_URL",
        "Address of the same database with a login that can read only what the public board shows; if not set, the login of the public board and"
        " the confirm page needs the role `board_reader` too.",
        "",
    )
    database_pooler: str = setting(POOLER, POOLER_HELP, "none", valid=OneOf(POOLERS))
    ledger_url: str = setting(
        "WORKER_DATABASE_URL",
        "Address of the refund ledger's PostgreSQL, if that is another database: its login needs the same roles there as the console's logins have in theirs.",
        "",
    )
    policies_dir: Path = setting(
        "SENTINEL_POLICIES_DIR",
        "Folder of the authority's policy files; the console shows them and reads switches.yaml.",
        policies_dir(),
    )
    host: str = setting("SENTINEL_CONSOLE_HOST", "Address the console listens on.", "127.0.0.1")
    port: int = setting("SENTINEL_CONSOLE_PORT", "Port of the console, for operators.", 7861, valid=PORT)
    health_host: str = setting(
        "SENTINEL_CONSOLE_HEALTH_HOST", "Address the health ports of console and board listen on.", "127.0.0.1"
    )
    health_port: int = setting("SENTINEL_CONSOLE_HEALTH_PORT", HEALTH_HELP, 0, valid=PORT_OR_NONE)
    board_health_port: int = setting("SENTINEL_BOARD_HEALTH_PORT", HEALTH_HELP, 0, valid=PORT_OR_NONE)
    processes: int = setting("SENTINEL_CONSOLE_PROCESSES", "Server processes of the console.", 1, valid=COUNT)
    threads: int = setting(
        "SENTINEL_CONSOLE_THREADS", "Threads per process: requests answered at the same time.", 24, valid=COUNT
    )
    max_connections: int = setting("SENTINEL_CONSOLE_MAX_CONNECTIONS", CONNECTIONS_HELP, 1000, valid=COUNT)
    max_connections_per_address: int = setting(
        "SENTINEL_CONSOLE_MAX_CONNECTIONS_PER_ADDRESS", ADDRESS_CONNECTIONS_HELP, 200, valid=COUNT
    )
    board_host: str = setting(
        "SENTINEL_BOARD_HOST", "Address the public board and the confirm page listen on.", "127.0.0.1"
    )
    board_port: int = setting("SENTINEL_BOARD_PORT", "Port of the public board and the confirm page.", 7863, valid=PORT)
    board_origin: str = setting(
        "SENTINEL_BOARD_ORIGIN",
        "The public board's address in browsers, e.g. https://board.example; default: host and port of its listener.",
        "",
    )
    board_processes: int = setting("SENTINEL_BOARD_PROCESSES", "Server processes of the public board.", 1, valid=COUNT)
    board_threads: int = setting(
        "SENTINEL_BOARD_THREADS",
        "Threads per process of the public board; a viewer of the live stream takes none.",
        24,
        valid=COUNT,
    )
    board_max_connections: int = setting("SENTINEL_BOARD_MAX_CONNECTIONS", CONNECTIONS_HELP, 2000, valid=COUNT)
    board_max_connections_per_address: int = setting(
        "SENTINEL_BOARD_MAX_CONNECTIONS_PER_ADDRESS",
        f"{ADDRESS_CONNECTIONS_HELP} The same limit applies to the live streams of one client's address, also behind trusted proxies.",
        100,
        valid=COUNT,
    )
    pool_size: int = setting(
        "SENTINEL_CONSOLE_POOL_SIZE", "Database connections per process for operators' requests.", 8, valid=COUNT
    )
    board_pool_size: int = setting(
        "SENTINEL_BOARD_POOL_SIZE",
        "Database connections per process of the public board, for each of its logins.",
        4,
        valid=COUNT,
    )
    public_tenant: str = setting(
        "SENTINEL_PUBLIC_TENANT",
        "Label or id of the tenant on the public board; default: the only tenant, or public-demo where there are several.",
        "",
    )
    public_agents: str = setting(
        "SENTINEL_PUBLIC_AGENTS",
        "Agents on the public board, `agent_id=name:source`, comma separated; `*` adds all other agents, of which only"
        " the 50 with the newest decisions are listed. A decision that was asked for with a key not bound to its agent"
        " is shown under a public id instead of the agent's name, and counts as its agent's last decision in the agent's"
        " status. Set but empty: no agent is shown.",
        "retail-refund-agent=refund:refunds",
    )
    idle_seconds: int = setting(
        "SENTINEL_SESSION_IDLE_SECONDS", "A session that is unused for this long ends.", 900, valid=COUNT
    )
    absolute_seconds: int = setting(
        "SENTINEL_SESSION_SECONDS", "A session ends after this long, used or not.", 28800, valid=COUNT
    )
    step_up_seconds: int = setting(
        "SENTINEL_STEP_UP_SECONDS",
        "How long an entered password or code is valid for approving and other sensitive actions of the session.",
        300,
        valid=COUNT,
    )
    require_second_factor: str = setting(
        "SENTINEL_REQUIRE_SECOND_FACTOR",
        "Who must have a second factor: `approvers` (with administrators), `everyone` or `nobody`. People without one must set it up after sign-in, before anything else.",
        "approvers",
        valid=OneOf(["approvers", "everyone", "nobody"]),
    )
    origin: str = setting(
        "SENTINEL_CONSOLE_ORIGIN",
        "The console's address in browsers, e.g. https://console.example; default: the request's Host.",
        "",
    )
    insecure_cookies: bool = setting(
        "SENTINEL_INSECURE_COOKIES",
        "Allow the session cookie over plain http; only where the console listens on a loopback address.",
        False,
    )
    trusted_proxies: int = setting(
        "SENTINEL_TRUSTED_PROXIES",
        "How many proxies in front of this program set X-Forwarded-For and X-Forwarded-Proto.",
        0,
        valid=TRUSTED_PROXIES,
    )
    behind_tls: bool = setting(
        "SENTINEL_BEHIND_TLS",
        f"{BEHIND_TLS} If it is off, X-Forwarded-Proto of trusted proxies decides for each request.",
        False,
    )
    max_streams: int = setting(
        "SENTINEL_CONSOLE_MAX_STREAMS",
        "Live streams per process of the public board, one for each viewer.",
        1000,
        valid=COUNT,
    )
    confirm_secrets: tuple[str, ...] = setting(
        "CONFIRM_SECRETS",
        "Secrets that sign confirm links, the same as the worker's; the confirm page, which the public board serves, verifies links with them. Default SENTINEL_SECRET_KEYS, else the embedded database's. Without one no confirm link is valid.",
        (),
    )
    second_factor_secrets: tuple[str, ...] = setting(
        "SENTINEL_SECOND_FACTOR_SECRETS",
        "Secrets that encrypt second factors and sign the cookies of known browsers, comma separated: the first encrypts and signs, all decrypt and verify;"
        " keep an old one until everybody has signed in with a code. How to replace one: *Replacing secrets*. Default: the same as CONFIRM_SECRETS. Without one no second factor can be set up.",
        (),
    )
    public_id_secrets: tuple[str, ...] = setting(
        "SENTINEL_PUBLIC_ID_SECRETS",
        "Secrets from which the public ids on public pages are generated, comma separated, newest first: the first generates, and a"
        " proof is compared under all of them. With another first secret every refund, ledger entry and agent gets another public id."
        " Default: a secret that the database keeps.",
        (),
    )
    log_level: str = setting("SENTINEL_LOG_LEVEL", LOG_LEVEL_HELP, "info", valid=LOG_LEVEL)

    def requires_second_factor(self, role: str) -> bool:
        """Whether a person of this role must have a second factor."""
        return self.require_second_factor == "everyone" or (
            self.require_second_factor == "approvers" and has_role(role, "approver")
        )

    def login_of(self, audience: Audience) -> Login:
        """The database login that an audience's process uses; the board's reader has another one of its own."""
        role, url, connections, name = CONSOLE, self.database_url, self.pool_size, "console"
        if audience is Audience.PUBLIC and self.public_database_url:
            role, url, connections, name = PUBLIC, self.public_database_url, self.board_pool_size, "public"
        return Login(role, url, connections, name, self.ledger_url if self.ledger_url != url else "")

    @property
    def public_origin(self) -> str:
        """The public board's address, for links that people copy. Not from the request's Host, because pages are cached for all."""
        host = f"[{self.board_host}]" if ":" in self.board_host else self.board_host
        return self.board_origin or f"http://{host}:{self.board_port}"

    @property
    def board(self) -> PublicAgents:
        """The public agents, parsed."""
        return parse_public_agents(self.public_agents)


def load_console_settings(**overrides: Any) -> ConsoleSettings:
    """Read the settings from the environment; `overrides` are a command's options. Raises `UnsafeConfiguration` with every fault."""
    values, bad = read_fields(ConsoleSettings)
    # Read directly, because an empty value means something here: no agent is named on the board.
    values["public_agents"] = os.environ.get("SENTINEL_PUBLIC_AGENTS", values["public_agents"])
    values["confirm_secrets"] = confirm_secrets()
    values["public_id_secrets"] = public_id_secrets()
    values["second_factor_secrets"] = values["second_factor_secrets"] or values["confirm_secrets"]
    settings = ConsoleSettings(**{**values, **given(overrides)})
    refuse_unsafe(bad, unsafe(settings))
    return settings


def unsafe(settings: ConsoleSettings) -> list[str]:
    """Return every reason not to start with these settings, a line each."""
    faults = [
        *weak_secret_faults("CONFIRM_SECRETS", settings.confirm_secrets),
        *weak_secret_faults("SENTINEL_SECOND_FACTOR_SECRETS", settings.second_factor_secrets),
        *weak_secret_faults("SENTINEL_PUBLIC_ID_SECRETS", settings.public_id_secrets),
    ]
    if settings.require_second_factor != "nobody" and not settings.second_factor_secrets:
        faults.append(
            "SENTINEL_REQUIRE_SECOND_FACTOR: needs SENTINEL_SECOND_FACTOR_SECRETS, or nobody could set one up;"
            " `nobody` requires none"
        )
    if settings.insecure_cookies and not is_loopback(settings.host):
        faults.append("SENTINEL_INSECURE_COOKIES: only where the console listens on a loopback address")
    if settings.idle_seconds > settings.absolute_seconds:
        faults.append("SENTINEL_SESSION_IDLE_SECONDS: must not be longer than SENTINEL_SESSION_SECONDS")
    if settings.origin and not _is_origin(settings.origin):
        faults.append("SENTINEL_CONSOLE_ORIGIN: must be scheme and host, e.g. https://console.example")
    if settings.board_origin and not _is_origin(settings.board_origin):
        faults.append("SENTINEL_BOARD_ORIGIN: must be scheme and host, e.g. https://board.example")
    if (settings.host, settings.port) == (settings.board_host, settings.board_port):
        faults.append("SENTINEL_BOARD_PORT: must not be the console's own, SENTINEL_CONSOLE_PORT")
    try:
        parse_public_agents(settings.public_agents)
    except InvalidInput as error:
        faults.append(f"SENTINEL_PUBLIC_AGENTS: {error.detail}")
    return faults


def _is_origin(text: str) -> bool:
    parts = urlsplit(text)
    return (
        parts.scheme in ("http", "https") and bool(parts.netloc) and not (parts.path or parts.query or parts.fragment)
    )
