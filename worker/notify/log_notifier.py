"""Tells nobody but the log that there is a message; for trying things out. The link itself is not a log's business."""

from __future__ import annotations

import logging

from worker.notify.messages import Message
from worker.notify.notifier import Delivered, Failed

_log = logging.getLogger("worker.notify")


class LogNotifier:
    """Logs the card's id. Nothing else of the message leaves the process."""

    name = "log"

    def deliver(self, message: Message) -> Delivered | Failed:
        """Always delivered, to nobody."""
        _log.warning("card %s waits for its customer, who was not told", message.confirmation_id)
        return Delivered()
