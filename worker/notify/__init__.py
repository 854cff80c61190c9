"""Notifying customers: a message is made in their language and handed to one of the adapters."""

from worker.notify.messages import Message
from worker.notify.messenger import Messenger
from worker.notify.notifier import Delivered, Failed, Notifier
from worker.notify.select import notifier_from

__all__ = ["Delivered", "Failed", "Message", "Messenger", "Notifier", "notifier_from"]
