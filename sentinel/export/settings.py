"""The sender's settings: one frozen value, read from the environment once, with every fault reported at once.

Each field carries its variable's name and meaning; `docs/settings.md` is made from them.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from environs import Env
from marshmallow.validate import OneOf, Range

from sentinel.platform.outbound.public_addresses import LOOPBACK_CLIENT, Address, PublicHttpClient
from sentinel.platform.settings import HEALTH_HELP, is_weak, malformed, readable, refuse_unsafe, setting
from sentinel.store.database import POOLER, POOLER_HELP, POOLERS

SECRET_FILE = "export_secret"
"""The sender's secret beside an embedded database, in its data folder."""


@dataclass(frozen=True, slots=True)
class ExportSettings:
    """What the sender of events runs with."""

    database_url: str = setting(
        "SENTINEL_EXPORT_DATABASE_URL", "The authority's database; default SENTINEL_DATABASE_URL, else the embedded one.", ""
    )  # fmt: skip
    database_pooler: str = setting(POOLER, POOLER_HELP, "none")
    tenant_id: uuid.UUID | None = setting(
        "SENTINEL_TENANT_ID",
        "Whose events go to the decision log, Slack and mail below; not needed where there is one tenant.",
    )
    secrets: tuple[str, ...] = setting(
        "SENTINEL_EXPORT_SECRETS",
        "Secrets that webhooks' signing secrets are derived from, comma separated, newest first, at least 32 characters each; keep old ones until"
        " every receiver has its new secret. Required with a database of your own; made and kept in the data folder otherwise.",
        (),
    )
    addresses: str = setting(
        "SENTINEL_EXPORT_ADDRESSES",
        "Which receivers may be called: `public` (https, public addresses), `private` (also http and addresses of private networks) or `loopback`"
        " (this machine alone; demo and tests).",
        "public",
    )
    timeout_seconds: float = setting("SENTINEL_EXPORT_TIMEOUT_SECONDS", "Longest call to a receiver.", 10.0)
    give_up_seconds: int = setting(
        "SENTINEL_EXPORT_GIVE_UP_SECONDS", "An event that its receiver did not take for so long becomes a dead letter.", 43200
    )  # fmt: skip
    threads: int = setting("SENTINEL_EXPORT_THREADS", "Receivers that are served at once.", 4)
    health_host: str = setting("SENTINEL_EXPORT_HEALTH_HOST", "Address of the health port.", "127.0.0.1")
    health_port: int = setting("SENTINEL_EXPORT_HEALTH_PORT", HEALTH_HELP, 0)
    log_level: str = setting("SENTINEL_LOG_LEVEL", "debug, info, warning or error.", "info")

    @property
    def client(self) -> PublicHttpClient:
        """What may be called."""
        return {"public": PublicHttpClient(), "private": PRIVATE_CLIENT, "loopback": LOOPBACK_CLIENT}[self.addresses]


def _is_host(address: Address) -> bool:
    """Any one host's address but those of a cloud's own services and of this machine's links."""
    is_inside = isinstance(address, ipaddress.IPv4Address) or address.ipv4_mapped is None
    closed = address.is_link_local or address.is_multicast or address.is_unspecified or address.is_loopback
    return is_inside and not closed and (address.is_private or address.is_global)


PRIVATE_CLIENT = PublicHttpClient(("https", "http"), None, _is_host)
_ENV = {field.name: field.metadata["env"] for field in dataclasses.fields(ExportSettings)}


def load_export_settings(*, database_url: str = "", **over: Any) -> ExportSettings:
    """Settings from the environment; `database_url` counts where none is set. Raises `UnsafeConfiguration` with every fault."""
    env, default = Env(eager=False), ExportSettings()
    given = os.environ.get("SENTINEL_DATABASE_URL") or database_url
    values: dict[str, Any] = {
        "database_url": env.str(_ENV["database_url"], given) or given,
        "database_pooler": env.str(_ENV["database_pooler"], default.database_pooler, validate=OneOf(POOLERS)),
        "tenant_id": env.uuid(_ENV["tenant_id"], None),
        "secrets": env.list(_ENV["secrets"], [], subcast=str),
        "addresses": env.str(_ENV["addresses"], default.addresses, validate=OneOf(["public", "private", "loopback"])),
        "timeout_seconds": env.float(_ENV["timeout_seconds"], default.timeout_seconds, validate=Range(min=0.1, max=60)),
        "give_up_seconds": env.int(_ENV["give_up_seconds"], default.give_up_seconds, validate=Range(min=0, max=2_592_000)),
        "threads": env.int(_ENV["threads"], default.threads, validate=Range(min=1, max=64)),
        "health_host": env.str(_ENV["health_host"], default.health_host),
        "health_port": env.int(_ENV["health_port"], 0, validate=Range(min=0, max=65535)),
        "log_level": env.str(_ENV["log_level"], default.log_level, validate=OneOf(["debug", "info", "warning", "error"])),
    }  # fmt: skip
    bad = malformed(env)
    values = readable(ExportSettings, values, bad)
    values["secrets"] = tuple(one.strip() for one in values["secrets"] if one.strip()) or kept_secrets()
    settings = ExportSettings(**{**values, **over})
    refuse_unsafe(bad, unsafe(settings))
    return settings


def kept_secrets() -> tuple[str, ...]:
    """The secret that is kept beside an embedded database; none with a database of one's own."""
    if any(os.environ.get(name) for name in ("SENTINEL_DATABASE_URL", "SENTINEL_EXPORT_DATABASE_URL")):
        return ()
    kept = Path(os.environ.get("SENTINEL_DATA_DIR") or "var") / SECRET_FILE
    return (kept.read_text().strip(),) if kept.exists() else ()


def unsafe(settings: ExportSettings) -> list[str]:
    """What must not run, a line each."""
    if not settings.secrets:
        return ["SENTINEL_EXPORT_SECRETS: required with a database of your own (try: openssl rand -hex 32)"]
    if any(is_weak(secret) for secret in settings.secrets):
        return ["SENTINEL_EXPORT_SECRETS: every secret needs at least 32 characters that nobody can guess"]
    return []
