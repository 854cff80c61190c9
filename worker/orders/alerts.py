"""Alerts to people through a channel: an outbox that is retried until the channel takes each alert.

An alert is raised in the database in the transaction of its cause; this module delivers it at least once: an alert may
arrive twice when the channel took it and its answer was lost. It is never dropped, and shown in the metrics while
it is open.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import psycopg
import structlog
from prometheus_client import Counter
from psycopg.rows import class_row, scalar_row

from sentinel.core.wording import unlinked
from sentinel.platform.backoff import Backoff
from sentinel.platform.outbound.public_addresses import PublicHttpClient, public_client
from sentinel.platform.outbound.slack import SlackWebhook, slack_text
from sentinel.store.database import Pool
from sentinel.store.queries import call_with_retry
from worker.outbound.effects import one_line

BACKOFF = Backoff(5.0, 3600.0)
_MAX_SUMMARY = 500
OUTSIDE = PublicHttpClient()

ALERTS = Counter("orders_alerts", "Attempts to deliver an alert by result: sent or failed.", ["result"])
log = structlog.get_logger("worker.orders")

HOLD_SECONDS = 60.0
"""How long a batch of claimed alerts is held on top of its longest sending time; those of a process that died are then due again."""

# Claim alerts for one attempt: they are due again after the hold, so a sender that dies does not block them for long.
_TAKE = """
with due as materialized (
  select tenant_id, alert_id from orders.alerts
  where tenant_id = %(tenant_id)s and delivered_at is null and next_attempt_at <= statement_timestamp()
  order by next_attempt_at, alert_id limit %(limit)s for update skip locked)
update orders.alerts a set attempts = a.attempts + 1,
  next_attempt_at = clock_timestamp() + make_interval(secs => %(hold_seconds)s)
from due where a.tenant_id = due.tenant_id and a.alert_id = due.alert_id
returning a.alert_id, a.kind, a.source, a.order_id, a.summary, a.details, a.attempts
"""
_MARK = """
update orders.alerts set delivered_at = clock_timestamp(), delivered_by = %(channel)s, last_error = null
where tenant_id = %(tenant_id)s and alert_id = %(alert_id)s and delivered_at is null returning alert_id
"""
_POSTPONE = """
update orders.alerts set last_error = %(error)s, next_attempt_at = clock_timestamp() + make_interval(secs => %(pause)s)
where tenant_id = %(tenant_id)s and alert_id = %(alert_id)s and delivered_at is null
"""


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert to deliver; `details` are strings and lists, signals among them."""

    alert_id: uuid.UUID
    kind: str
    source: str
    order_id: str
    summary: str
    details: Mapping[str, Any]
    attempts: int


class Channel(Protocol):
    """Where alerts go. Thread-safe."""

    name: str
    longest_seconds: float
    """The longest that sending one message can take, in seconds."""

    def send(self, alert: Alert) -> str | None:
        """Send one alert. Return None when the channel took it, else the fault in a word or two, without the address."""


class LogChannel:
    """Writes a log line, where no channel is configured: kind, source and order id, no details."""

    name, longest_seconds = "log", 0.0

    def send(self, alert: Alert) -> str | None:
        """Log the alert; it always counts as taken."""
        log.warning("order_alert", kind=alert.kind, source=alert.source, order_id=alert.order_id)
        return None


def channel_from(*, slack_webhook_url: str, on_this_machine: bool = False) -> Channel:
    """The Slack channel at the webhook's URL, or the log where there is none."""
    return (
        SlackChannel(slack_webhook_url, public_client(loopback_only=on_this_machine))
        if slack_webhook_url
        else LogChannel()
    )


class SlackChannel:
    """A Slack-compatible incoming webhook."""

    name = "slack"

    def __init__(self, url: str, alert_client: PublicHttpClient = OUTSIDE, deadline_seconds: float = 5.0) -> None:
        self._webhook, self.longest_seconds = SlackWebhook(url, alert_client, deadline_seconds), deadline_seconds

    def send(self, alert: Alert) -> str | None:
        """Post the alert once."""
        return self._webhook.post(text_of(alert))


def text_of(alert: Alert) -> str:
    """The message: summary, order and up to 20 signals. Untrusted text cannot become links or mentions."""
    lines = [f"*{_plain(alert.summary)}*", f"order {_plain(alert.order_id)} of {_plain(alert.source)}"]
    lines += [f"• {_plain(_worded(signal))}" for signal in alert.details.get("signals", [])[:20]]
    return "\n".join(lines)


def _worded(signal: Any) -> str:
    if isinstance(signal, Mapping):
        return f"{signal.get('code')}: {signal.get('detail')}"
    return str(signal)


def _plain(text: str) -> str:
    """The text as one line in which Slack finds no markup and no link."""
    return slack_text(unlinked(one_line(text, _MAX_SUMMARY)))


class Alerts:
    """The outbox of one tenant. Raises `EngineUnavailable` when the database does not answer, or `StillDeciding`."""

    def __init__(
        self, pool: Pool, tenant_id: uuid.UUID, channel: Channel, *, spread: Callable[[], float] = random.random
    ) -> None:
        self._pool, self._tenant_id, self._channel, self._spread = pool, tenant_id, channel, spread

    def deliver_due(self, limit: int = 20) -> int:
        """Attempt each of up to `limit` due alerts once; return how many the channel took."""
        # The hold outlasts all attempts of the batch, so no other process claims one of its alerts meanwhile.
        hold = HOLD_SECONDS + limit * self._channel.longest_seconds
        due = self._run(_TAKE, class_row(Alert), limit=limit, hold_seconds=hold)
        return sum(self._deliver(alert) for alert in due)

    def _deliver(self, alert: Alert) -> bool:
        error = self._sent(alert)
        ALERTS.labels("failed" if error else "sent").inc()
        if error is None:
            return bool(self._run(_MARK, scalar_row, alert_id=alert.alert_id, channel=self._channel.name))
        pause = BACKOFF.pause_seconds(alert.attempts - 1, self._spread())
        self._run(_POSTPONE, alert_id=alert.alert_id, error=error[:500], pause=pause)
        log.warning(
            "alert_not_sent", alert_id=str(alert.alert_id), kind=alert.kind, attempt=alert.attempts, error=error
        )
        return False

    def _sent(self, alert: Alert) -> str | None:
        try:
            return self._channel.send(alert)
        except Exception as error:
            # A defective channel must not stop the other alerts; the error's text is left out because it could hold the
            # address.
            return f"defect: {type(error).__name__}"

    def _run(self, statement: str, row_factory: Any = scalar_row, **fields: Any) -> list[Any]:
        def call(connection: psycopg.Connection[Any]) -> list[Any]:
            with connection.cursor(row_factory=row_factory) as cursor:
                cursor.execute(statement.encode(), {"tenant_id": self._tenant_id, **fields})
                return cursor.fetchall() if cursor.description else []

        return call_with_retry(self._pool, call)
