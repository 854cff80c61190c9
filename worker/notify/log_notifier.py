"""Tells nobody but the log that there is a message; for trying things out. The link itself is not a log's business."""

from __future__ import annotations

import structlog

from worker.notify.messages import Message
from worker.notify.notifier import Delivered, Failed

log = structlog.get_logger("worker.notify")


class LogNotifier:
    """Logs the card's id. Nothing else of the message leaves the process."""

    name = "log"

    def deliver(self, message: Message) -> Delivered | Failed:
        """Always delivered, to nobody."""
        log.info("confirmation_waits", confirmation_id=str(message.confirmation_id), language=message.language)
        return Delivered()
