"""The sender's settings: one frozen value, read from the environment once, with every fault reported at once.

Each field carries its variable's name and meaning; `docs/settings.md` is made from them.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import os
import uuid
from dataclasses import dataclass
from typing import Any

from marshmallow.validate import OneOf, Range

from sentinel.export.cloud_events import DECISION, REQUESTED
from sentinel.platform.outbound.failures import FAULTS
from sentinel.platform.outbound.mail import SmtpAccount, account_faults, is_mail_address
from sentinel.platform.outbound.public_addresses import (
    LOOPBACK_CLIENT,
    Address,
    PublicHttpClient,
    is_cloud_service,
    is_relayed,
)
from sentinel.platform.settings import (
    HEALTH_HELP,
    LOG_LEVEL,
    LOG_LEVEL_HELP,
    PORT,
    PORT_OR_NONE,
    SMTP_SECURITY,
    kept_secret,
    read_fields,
    refuse_unsafe,
    setting,
    weak_secret_faults,
)
from sentinel.store.database import POOLER, POOLER_HELP, POOLERS

SECRET_FILE = "export_secret"
"""Name of the file with the sender's secret, in the data folder of an embedded database."""


@dataclass(frozen=True, slots=True)
class ExportSettings:
    """What the sender of events runs with."""

    database_url: str = setting(
        "SENTINEL_EXPORT_DATABASE_URL", "Address of the authority's database; default SENTINEL_DATABASE_URL, else the embedded one.", ""
    )  # fmt: skip
    database_pooler: str = setting(POOLER, POOLER_HELP, "none", valid=OneOf(POOLERS))
    tenant_id: uuid.UUID | None = setting(
        "SENTINEL_TENANT_ID",
        "Tenant whose events go to the decision log, Slack and mail below; needed only where there are several tenants.",
    )
    secrets: tuple[str, ...] = setting(
        "SENTINEL_EXPORT_SECRETS",
        "Secrets that webhooks' signing secrets are derived from, comma separated, newest first, at least 32 characters each; keep old ones until"
        " every receiver has its new secret. Required with a database of your own; else one is made and kept in the data folder.",
        (),
    )
    addresses: str = setting(
        "SENTINEL_EXPORT_ADDRESSES",
        "Which receivers may be called: `public` (https on port 443 or 8443, public addresses), `private` (also http and names and addresses of private networks, but none of a"
        " cloud's own services) or `loopback` (this machine alone; demo and tests).",
        "public",
        valid=OneOf(["public", "private", "loopback"]),
    )
    timeout_seconds: float = setting(
        "SENTINEL_EXPORT_TIMEOUT_SECONDS", "Longest call to a receiver.", 10.0, valid=Range(min=0.1, max=60)
    )
    give_up_seconds: int = setting(
        "SENTINEL_EXPORT_GIVE_UP_SECONDS", "How long sending an event is retried before it becomes a dead letter.", 43200, valid=Range(min=0, max=2_592_000))  # fmt: skip
    threads: int = setting(
        "SENTINEL_EXPORT_THREADS", "Receivers that are sent to at the same time.", 4, valid=Range(min=1, max=64)
    )
    console_url: str = setting(
        "SENTINEL_EXPORT_CONSOLE_URL", "Address of the console, for links in notices.", "http://127.0.0.1:7861"
    )
    slack_webhook_url: str = setting(
        "SENTINEL_EXPORT_SLACK_WEBHOOK_URL", "Slack-compatible incoming webhook that gets a notice of each new approval; if not set, no notices are sent.", ""
    )  # fmt: skip
    mail_to: str = setting(
        "SENTINEL_EXPORT_MAIL_TO", "Mail address that gets a notice of each new approval, sent by the mail server SMTP_HOST; if not set, no notices are sent.", ""
    )  # fmt: skip
    smtp_host: str = setting("SMTP_HOST", "Mail server; required with SENTINEL_EXPORT_MAIL_TO.", "")
    smtp_port: int = setting("SMTP_PORT", "Port of the mail server.", 587, valid=PORT)
    smtp_security: str = setting(
        "SMTP_SECURITY", "starttls, tls, or none (loopback only).", "starttls", valid=SMTP_SECURITY
    )
    smtp_username: str = setting("SMTP_USERNAME", "Account on the mail server; if not set, there is no login.", "")
    smtp_password: str = setting("SMTP_PASSWORD", "Password of that account.", "")
    smtp_from: str = setting("SMTP_FROM", "Address that mail is sent from; required with SENTINEL_EXPORT_MAIL_TO.", "")
    decision_log_url: str = setting(
        "SENTINEL_EXPORT_DECISION_LOG_URL", "Address of a collector of OPA decision logs, such as …/logs; decisions are posted to it in gzip batches. If not set, none are.", ""
    )  # fmt: skip
    decision_log_token: str = setting(
        "SENTINEL_EXPORT_DECISION_LOG_TOKEN", "Bearer token for the collector; if not set, none is sent.", ""
    )
    health_host: str = setting("SENTINEL_EXPORT_HEALTH_HOST", "Address the health port listens on.", "127.0.0.1")
    health_port: int = setting("SENTINEL_EXPORT_HEALTH_PORT", HEALTH_HELP, 0, valid=PORT_OR_NONE)
    log_level: str = setting("SENTINEL_LOG_LEVEL", LOG_LEVEL_HELP, "info", valid=LOG_LEVEL)

    @property
    def by_setting(self) -> dict[str, tuple[str, ...]]:
        """The kinds of receivers whose address is set by a setting → the message types that each is sent."""
        asked = {
            "slack": (self.slack_webhook_url, (REQUESTED,)), "mail": (self.mail_to, (REQUESTED,)),
            "decision_log": (self.decision_log_url, (DECISION,)),
        }  # fmt: skip
        return {kind: types for kind, (address, types) in asked.items() if address}

    @property
    def smtp_account(self) -> SmtpAccount:
        """The account that notices are mailed with."""
        return SmtpAccount(
            host=self.smtp_host, port=self.smtp_port, sender=self.smtp_from, security=self.smtp_security,
            username=self.smtp_username, password=self.smtp_password, timeout_seconds=self.timeout_seconds,
        )  # fmt: skip

    @property
    def client(self) -> PublicHttpClient:
        """The HTTP client for receivers; it calls only what `addresses` permits."""
        return {"public": PublicHttpClient(), "private": PRIVATE_CLIENT, "loopback": LOOPBACK_CLIENT}[self.addresses]


_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")
"""IPv6 addresses by which a machine without IPv4 reaches IPv4 hosts, through a translator (NAT64, RFC 6052)."""


def _is_host(address: Address) -> bool:
    """Return whether this is a host's address that `private` permits: not of a cloud's own services, and not
    link-local, loopback, multicast, relayed or unspecified. A translated address is judged by the IPv4 address in it.
    """
    if isinstance(address, ipaddress.IPv6Address) and address in _TRANSLATED:
        return _is_host(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    is_inside = isinstance(address, ipaddress.IPv4Address) or address.ipv4_mapped is None
    closed = address.is_link_local or address.is_multicast or address.is_unspecified or address.is_loopback
    closed = closed or is_cloud_service(address) or is_relayed(address)
    return is_inside and not closed and (address.is_private or address.is_global)


PRIVATE_CLIENT = PublicHttpClient(("https", "http"), None, _is_host, inside_names=True)
_ENV = {field.name: field.metadata["env"] for field in dataclasses.fields(ExportSettings)}


def load_export_settings(*, database_url: str = "", **over: Any) -> ExportSettings:
    """Load the settings from the environment; `database_url` is used where none is set. Raises `UnsafeConfiguration` with every fault."""
    values, bad = read_fields(ExportSettings)
    values["database_url"] = values["database_url"] or os.environ.get("SENTINEL_DATABASE_URL") or database_url
    kept = kept_secret(SECRET_FILE, "SENTINEL_DATABASE_URL", "SENTINEL_EXPORT_DATABASE_URL")
    values["secrets"] = values["secrets"] or ((kept,) if kept else ())
    settings = ExportSettings(**{**values, **over})
    refuse_unsafe(bad, unsafe(settings))
    return settings


def unsafe(settings: ExportSettings) -> list[str]:
    """Return the faults with which the sender must not run, a line each; without addresses, as some are secrets."""
    faults = []
    if not settings.secrets:
        faults.append(
            "SENTINEL_EXPORT_SECRETS: required with a database of your own; commands need the same value as the sender"
            " (for a new sender: openssl rand -hex 32)"
        )
    faults += weak_secret_faults("SENTINEL_EXPORT_SECRETS", settings.secrets)
    for name in ("slack_webhook_url", "decision_log_url"):
        if (url := getattr(settings, name)) and (why := settings.client.fault(url)):
            faults.append(f"{_ENV[name]}: {FAULTS[why]}; SENTINEL_EXPORT_ADDRESSES is {settings.addresses}")
    return faults + (_mail_faults(settings) if settings.mail_to else [])


def _mail_faults(settings: ExportSettings) -> list[str]:
    faults = account_faults(settings.smtp_account, "SENTINEL_EXPORT_MAIL_TO")
    if not is_mail_address(settings.mail_to):
        faults.append("SENTINEL_EXPORT_MAIL_TO: must be exactly one mail address, without a name")
    return faults
