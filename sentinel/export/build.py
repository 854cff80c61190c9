"""Assembles a sender from its settings, and runs it."""

from __future__ import annotations

import contextlib
import threading
import uuid

import structlog
from flask import Flask

from sentinel.authority.tenants import list_tenants
from sentinel.export.decision_log import DecisionLog
from sentinel.export.deliveries import Deliveries
from sentinel.export.notices import MailNotices, SlackNotices
from sentinel.export.receivers import Receiver, WebhookReceiver
from sentinel.export.sender import EventSender
from sentinel.export.settings import ExportSettings
from sentinel.export.signing_secrets import SigningSecrets
from sentinel.platform.http.readiness import Readiness, database_checks, exposition
from sentinel.platform.http.ready_gauge import ReadyGauge
from sentinel.platform.outbound.mail import Mailer
from sentinel.platform.outbound.slack import SlackWebhook
from sentinel.platform.serving.health import create_app, serving
from sentinel.platform.settings import UnsafeConfiguration
from sentinel.platform.tracing import tracing_of
from sentinel.store.database import EXPORTER, Pool, with_role
from sentinel.store.ids import new_id
from sentinel.store.safety import database_status, require_ready

_SPARE_CONNECTIONS = 1
"""Database connections beside those of the threads: for counting and for /readyz."""

log = structlog.get_logger("sentinel.export")


def webhook_receiver(settings: ExportSettings) -> WebhookReceiver:
    """Return the receiver of webhooks that the settings describe."""
    return WebhookReceiver(settings.client, SigningSecrets(settings.secrets), settings.timeout_seconds)


def make_sender(settings: ExportSettings, pool: Pool) -> EventSender:
    """Return a sender on `pool`, which must have the exporter's role."""
    receivers: dict[str, Receiver] = {"webhook": webhook_receiver(settings), **_receivers_by_setting(settings)}
    # A lease must outlast the calls for one portion: an event is at most two messages to a webhook, two calls.
    deliveries = Deliveries(
        pool, list(receivers), tenant_id=_tenant_of(settings, pool) if settings.by_setting else None,
        lease_seconds=2 * settings.timeout_seconds + 2, give_up_seconds=settings.give_up_seconds,
    )  # fmt: skip
    for kind, types in settings.by_setting.items():
        deliveries.open_endpoint(new_id(), kind, types)
    return EventSender(deliveries, receivers, tracing=tracing_of("sentinel-export"))


def _receivers_by_setting(settings: ExportSettings) -> dict[str, Receiver]:
    """Return the receivers that `settings.by_setting` names, by kind."""
    slack = SlackWebhook(settings.slack_webhook_url, settings.client, settings.timeout_seconds)
    made: dict[str, Receiver] = {
        "slack": SlackNotices(slack, settings.console_url),
        "mail": MailNotices(Mailer(settings.smtp_account), settings.mail_to, settings.console_url),
        "decision_log": DecisionLog(
            settings.decision_log_url, settings.decision_log_token, settings.client, settings.timeout_seconds
        ),
    }
    return {kind: made[kind] for kind in settings.by_setting}


def _tenant_of(settings: ExportSettings, pool: Pool) -> uuid.UUID:
    """Return the tenant whose events go to the receivers by setting. Raises `UnsafeConfiguration` where it is unset or unknown."""
    known = [one.tenant_id for one in list_tenants(pool)]
    if settings.tenant_id in known or (settings.tenant_id is None and len(known) == 1):
        return settings.tenant_id or known[0]
    raise UnsafeConfiguration(
        "SENTINEL_TENANT_ID: must be the tenant whose events go to the decision log, Slack and mail"
    )


def run(settings: ExportSettings, stop: threading.Event) -> None:
    """Send until `stop` is set. Raises `SchemaNotReady`, `UnsafeDatabase` or `EngineUnavailable` before anything is sent."""
    size = settings.threads + _SPARE_CONNECTIONS
    require_ready(settings.database_url, EXPORTER, connections=size)
    pool = Pool(with_role(settings.database_url, EXPORTER, application_name="sentinel-export"), size=size)
    with contextlib.ExitStack() as stack:
        stack.callback(pool.close)
        if settings.health_port:
            app = health_app(pool)
            stack.enter_context(serving(app, settings.health_host, settings.health_port, "SENTINEL_EXPORT_HEALTH_PORT"))
        log.info("sending", threads=settings.threads)
        make_sender(settings, pool).run(stop, settings.threads)


def health_app(pool: Pool) -> Flask:
    """Return the app of /healthz, /readyz and /metrics; ready where the database answers, is writable and has this program's schema."""
    readiness = Readiness(lambda: database_checks(lambda: database_status(pool, EXPORTER)))
    return create_app("sentinel.export", readiness, lambda: exposition(ReadyGauge("sentinel_export_ready", readiness)))
