"""Which notifier the settings ask for: the one place where settings become one."""

from __future__ import annotations

from worker.notify.file_notifier import FileNotifier
from worker.notify.log_notifier import LogNotifier
from worker.notify.notifier import Notifier
from worker.notify.smtp_notifier import SmtpAccount, SmtpNotifier
from worker.settings import WorkerSettings


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
