"""Sends confirmation messages as mail."""

from __future__ import annotations

from sentinel.platform.outbound.mail import Mail, Mailer, SmtpAccount
from worker.notify.messages import Message
from worker.notify.notifier import Delivered, Failed


class SmtpNotifier:
    """Sends each message as plain-text mail."""

    name = "smtp"

    def __init__(self, account: SmtpAccount) -> None:
        self._mailer = Mailer(account)

    def deliver(self, message: Message) -> Delivered | Failed:
        """Hand one message in."""
        mail = Mail(str(message.confirmation_id), message.contact, message.subject, message.text, message.language)
        failure = self._mailer.send(mail)
        return Delivered() if failure is None else Failed(failure.kind, final=failure.final)
