"""Puts a sender together from its settings, and runs it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping

import structlog
from prometheus_client import generate_latest

from sentinel.export.deliveries import Deliveries
from sentinel.export.receivers import Receiver, WebhookReceiver
from sentinel.export.sender import Sender
from sentinel.export.settings import ExportSettings
from sentinel.export.signing_secrets import SigningSecrets
from sentinel.platform.http.readiness import database_checks
from sentinel.platform.serving.health import create_app, serving
from sentinel.store.database import EXPORTER, Pool, with_role
from sentinel.store.safety import database_status, require_ready

_SPARE_CONNECTIONS = 1
"""Beside the threads': for counting and for /readyz."""

log = structlog.get_logger("sentinel.export")


def webhook_receiver(settings: ExportSettings) -> WebhookReceiver:
    """Webhooks as the settings have them."""
    return WebhookReceiver(settings.client, SigningSecrets(settings.secrets), settings.timeout_seconds)


def make_sender(settings: ExportSettings, pool: Pool) -> Sender:
    """A sender on `pool`, whose role is the exporter's."""
    receivers: dict[str, Receiver] = {"webhook": webhook_receiver(settings)}
    # A lease outlasts the calls that one portion takes: a webhook's event is two messages at most.
    deliveries = Deliveries(
        pool, list(receivers), lease_seconds=2 * settings.timeout_seconds + 2, give_up_seconds=settings.give_up_seconds
    )
    return Sender(deliveries, receivers)


def run(settings: ExportSettings, stop: threading.Event) -> None:
    """Send until `stop` is set. Raises `SchemaNotReady`, `UnsafeDatabase` or `EngineUnavailable` before anything is sent."""
    size = settings.threads + _SPARE_CONNECTIONS
    require_ready(settings.database_url, EXPORTER, connections=size)
    pool = Pool(with_role(settings.database_url, EXPORTER, application_name="sentinel-export"), size=size)
    with contextlib.ExitStack() as stack:
        stack.callback(pool.close)
        if settings.health_port:
            app = create_app("sentinel.export", _readiness_of(pool), generate_latest)
            stack.enter_context(serving(app, settings.health_host, settings.health_port, "SENTINEL_EXPORT_HEALTH_PORT"))
        log.info("sending", threads=settings.threads)
        make_sender(settings, pool).run(stop, settings.threads)


def _readiness_of(pool: Pool) -> Callable[[], Mapping[str, bool]]:
    return lambda: database_checks(lambda: database_status(pool, EXPORTER))
