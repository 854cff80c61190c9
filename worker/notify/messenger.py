"""Sends the links of pending confirm cards, and retries later what could not be sent."""

from __future__ import annotations

import logging

from worker.notify.messages import Message, confirm_message
from worker.notify.notifier import Delivered, Failed, Notifier
from worker.refunds.confirmations import Confirmations, Undelivered

FIRST_PAUSE_SECONDS = 15.0
LONGEST_PAUSE_SECONDS = 3600.0

_log = logging.getLogger("worker.notify")


def pause_seconds(attempts: int) -> float:
    """After so many tries in vain: 15 s, doubling, at most an hour."""
    return min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(attempts - 1, 10))


class Messenger:
    """Delivers cards by one notifier. The log has ids and codes: no link, no address."""

    def __init__(self, confirmations: Confirmations, notifier: Notifier) -> None:
        self._confirmations, self._notifier = confirmations, notifier

    def deliver_due(self, limit: int = 20) -> int:
        """One round: wake rows whose answer was missed, send what is due; returns how many went out.

        Raises `LedgerUnavailable`; what was sent but could not be marked is sent once more, later.
        """
        self._confirmations.wake_answered()
        return sum(self._deliver(card) for card in self._confirmations.undelivered(limit))

    def _deliver(self, card: Undelivered) -> bool:
        outcome, name = self._outcome(self._message(card)), self._notifier.name
        if isinstance(outcome, Delivered):
            self._confirmations.mark_delivered(card.confirmation_id)
            _log.info("card %s was sent by %s at try %s", card.confirmation_id, name, card.delivery_attempts)
            return True
        pause = None if outcome.final else pause_seconds(card.delivery_attempts)
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
            # An adapter with a defect must not stop the others' messages; its text could hold the address.
            return Failed(f"defect: {type(error).__name__}")

    def _message(self, card: Undelivered) -> Message:
        return confirm_message(
            confirmation_id=card.confirmation_id, language=card.language, contact=card.contact, scenario=card.scenario,
            amount_minor=card.amount_minor, currency=card.currency, order_ref=card.order_ref, expires_at=card.expires_at,
            link=self._confirmations.link(card),
        )  # fmt: skip
