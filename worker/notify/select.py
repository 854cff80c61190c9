"""Selects the notifier of the settings."""

from __future__ import annotations

import logging

from sentinel.platform.outbound.mail import SmtpAccount
from worker.notify.file_notifier import FileNotifier
from worker.notify.messages import Message
from worker.notify.notifier import Delivered, Failed, Notifier
from worker.notify.smtp_notifier import SmtpNotifier
from worker.refunds.settings import WorkerSettings

_log = logging.getLogger("worker.notify")


class LogNotifier:
    """Logs the card's id. Nothing else of the message leaves the process."""

    name = "log"

    def deliver(self, message: Message) -> Delivered | Failed:
        """Logged; counts as delivered."""
        _log.warning("card %s waits for its customer, who was not told", message.confirmation_id)
        return Delivered()


def notifier_from(settings: WorkerSettings) -> Notifier:
    """The notifier that `WORKER_NOTIFIER` names; the settings were checked when they were read."""
    if settings.notifier == "smtp":
        return SmtpNotifier(
            SmtpAccount(
                host=settings.smtp_host, port=settings.smtp_port, sender=settings.smtp_from, security=settings.smtp_security,
                username=settings.smtp_username, password=settings.smtp_password, timeout_seconds=settings.smtp_timeout_seconds,
            )
        )  # fmt: skip
    return LogNotifier() if settings.notifier == "log" else FileNotifier(settings.outbox_dir)
