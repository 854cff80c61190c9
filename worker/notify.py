"""Notifies customers: messages of confirm cards in their language, the notifiers that send them, and retries.

A notifier is one call whose result is a value, never an exception. A test checks that no translation is missing.
"""

from __future__ import annotations

import fcntl
import logging
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol

import orjson

from sentinel.core.customer_text import language_of, moment_text, money_text, visible_text
from sentinel.core.wording import unlinked
from sentinel.platform.backoff import Backoff
from sentinel.platform.outbound.mail import Mail, Mailer, SmtpAccount
from sentinel.platform.private_files import sync_folder
from worker.refunds.confirmations import Confirmations, UndeliveredCard
from worker.refunds.settings import WorkerSettings

_log = logging.getLogger("worker.notify")

# Messages.

CATALOGUES: Mapping[str, Mapping[str, str]] = {
    "en": {
        "subject": "Please confirm your refund request",
        "greeting": "Hello,",
        "ask": "please look at your request and say whether it is right:",
        "amount": "Amount: {amount}",
        "coupon": "Coupon worth: {amount}",
        "order": "Order: {order}",
        "link": "To confirm or decline, open this page:",
        "until": "It can be answered until {until}. Without an answer the request ends and nothing is paid.",
        "private": "The link is yours alone: whoever opens it can answer for you. Please do not pass it on.",
    },
    "de": {
        "subject": "Bitte bestätigen Sie Ihren Erstattungsantrag",
        "greeting": "Guten Tag,",
        "ask": "bitte sehen Sie sich Ihren Antrag an und sagen Sie uns, ob er stimmt:",
        "amount": "Betrag: {amount}",
        "coupon": "Gutschein über: {amount}",
        "order": "Bestellung: {order}",
        "link": "Zum Bestätigen oder Ablehnen öffnen Sie diese Seite:",
        "until": "Sie können bis {until} antworten. Ohne Antwort endet der Antrag, und es wird nichts ausgezahlt.",
        "private": "Der Link ist nur für Sie: Wer ihn öffnet, kann für Sie antworten. Bitte geben Sie ihn nicht weiter.",
    },
}


@dataclass(frozen=True, slots=True)
class Message:
    """One message to one customer. What only the customer may see is left out of its repr."""

    confirmation_id: uuid.UUID
    language: str
    contact: str | None = field(repr=False)
    subject: str = field(repr=False)
    text: str = field(repr=False)
    link: str = field(repr=False)


def confirm_message(
    *, confirmation_id: uuid.UUID, language: str | None, contact: str | None, scenario: str, amount_minor: int,
    currency: str, order_ref: str | None, expires_at: datetime, link: str,
) -> Message:  # fmt: skip
    """Write the message of a card. The order's name is untrusted text and written without links, so the card's is the only one."""
    spoken = language_of(language)
    words = CATALOGUES[spoken]
    amount = money_text(amount_minor, currency, spoken)
    facts = [words["coupon" if scenario == "compensation" else "amount"].format(amount=amount)]
    if order_ref:
        facts.append(words["order"].format(order=unlinked(visible_text(order_ref))))
    until = words["until"].format(until=moment_text(expires_at, spoken))
    paragraphs = (
        words["greeting"],
        words["ask"],
        "\n".join(facts),
        f"{words['link']}\n{link}",
        until,
        words["private"],
    )
    return Message(confirmation_id, spoken, contact, words["subject"], "\n\n".join(paragraphs) + "\n", link)


# Notifiers.


@dataclass(frozen=True, slots=True)
class Delivered:
    """The message was handed over."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The message was not, or perhaps not, handed over.

    `kind` is a short code without customer data; `final` means that a retry would fail the same way.
    """

    kind: str
    final: bool = False


class Notifier(Protocol):
    """One way of sending messages to customers. `deliver` never raises."""

    @property
    def name(self) -> str:
        """The name in settings and logs."""

    @property
    def longest_seconds(self) -> float:
        """The longest that sending one message can take, in seconds."""

    def deliver(self, message: Message) -> Delivered | Failed:
        """Hand over one message."""


FILE_NAME = "confirmations.jsonl"


class FileNotifier:
    """Appends to `confirmations.jsonl` in a folder; links are secrets, so the file is readable by this account only."""

    name, longest_seconds = "file", 0.0

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def deliver(self, message: Message) -> Delivered | Failed:
        """Append one whole line, or nothing on an error."""
        line = orjson.dumps(
            {
                "confirmation_id": str(message.confirmation_id), "to": message.contact, "language": message.language,
                "subject": message.subject, "text": message.text, "link": message.link,
            }, option=orjson.OPT_APPEND_NEWLINE,
        )  # fmt: skip
        try:
            self._append(line)
        except OSError as error:
            return Failed(f"file: {os.strerror(error.errno) if error.errno else type(error).__name__}")
        return Delivered()

    def _append(self, line: bytes) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # O_NOFOLLOW: other accounts may be able to write to the folder, and could plant a symbolic link.
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(self._folder / FILE_NAME, flags, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            before = os.fstat(file).st_size
            try:
                _write_all(file, _on_a_line_of_its_own(file, before, line))
                os.fsync(file)
            except OSError:
                os.ftruncate(file, before)
                raise
        finally:
            os.close(file)
        sync_folder(self._folder)


def _on_a_line_of_its_own(file: int, size: int, line: bytes) -> bytes:
    """The line to append, with a newline before it where a crash left an unfinished line at the end of the file."""
    cut_off = size > 0 and os.pread(file, 1, size - 1) != b"\n"
    return b"\n" + line if cut_off else line


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


class SmtpNotifier:
    """Sends each message as plain-text mail."""

    name = "smtp"

    def __init__(self, account: SmtpAccount) -> None:
        self._mailer, self.longest_seconds = Mailer(account), account.timeout_seconds

    def deliver(self, message: Message) -> Delivered | Failed:
        """Send one message to the mail server."""
        mail = Mail(str(message.confirmation_id), message.contact, message.subject, message.text, message.language)
        failure = self._mailer.send(mail)
        return Delivered() if failure is None else Failed(failure.kind, final=failure.final)


class LogNotifier:
    """Logs the card's id; nothing else of the message leaves the process, and the customer is not notified."""

    name, longest_seconds = "log", 0.0

    def deliver(self, message: Message) -> Delivered | Failed:
        """Log the card's id; the message counts as delivered."""
        _log.warning("card %s waits for its customer, who was not told", message.confirmation_id)
        return Delivered()


def notifier_from(settings: WorkerSettings) -> Notifier:
    """Make the notifier that `WORKER_NOTIFIER` names; the settings were checked when they were read."""
    if settings.notifier == "smtp":
        return SmtpNotifier(settings.smtp_account)
    return LogNotifier() if settings.notifier == "log" else FileNotifier(settings.outbox_dir)


# Sending the links of pending cards, with retries.

BACKOFF = Backoff(15.0, 3600.0)


class Messenger:
    """Delivers cards with one notifier. Its log entries have ids and codes, no links and no addresses."""

    def __init__(self, confirmations: Confirmations, notifier: Notifier) -> None:
        self._confirmations, self._notifier = confirmations, notifier

    def deliver_due(self, limit: int = 20) -> int:
        """Run one round: make rows due whose customer answered, then send due cards; return how many were sent.

        Raises `LedgerUnavailable`; a card that was sent but could not be marked as sent is sent again later.
        """
        self._confirmations.wake_answered()
        cards = self._confirmations.undelivered(limit, self._notifier.longest_seconds)
        return sum(self._deliver(card) for card in cards)

    def deliver_all(self) -> int:
        """Run rounds until one sends nothing; return how many cards were sent. Raises `LedgerUnavailable`."""
        sent = 0
        while round_sent := self.deliver_due():
            sent += round_sent
        return sent

    def _deliver(self, card: UndeliveredCard) -> bool:
        outcome, name = self._outcome(self._message(card)), self._notifier.name
        if isinstance(outcome, Delivered):
            self._confirmations.mark_delivered(card.confirmation_id)
            _log.info("card %s was sent by %s at try %s", card.confirmation_id, name, card.delivery_attempts)
            return True
        pause = None if outcome.final else BACKOFF.pause_seconds(card.delivery_attempts - 1)
        self._confirmations.postpone(card.confirmation_id, outcome.kind, pause)
        then = "not tried again" if outcome.final else f"again in {pause:g} s"
        _log.warning(
            "card %s was not sent by %s at try %s: %s, %s",
            card.confirmation_id, name, card.delivery_attempts, outcome.kind, then,
        )  # fmt: skip
        return False

    def _outcome(self, message: Message) -> Delivered | Failed:
        try:
            return self._notifier.deliver(message)
        except Exception as error:
            # A defective notifier must not stop the other messages; the error's text is left out because it could hold
            # the address.
            return Failed(f"defect: {type(error).__name__}")

    def _message(self, card: UndeliveredCard) -> Message:
        return confirm_message(
            confirmation_id=card.confirmation_id, language=card.language, contact=card.contact, scenario=card.scenario,
            amount_minor=card.amount_minor, currency=card.currency, order_ref=card.order_ref, expires_at=card.expires_at,
            link=self._confirmations.link(card),
        )  # fmt: skip
