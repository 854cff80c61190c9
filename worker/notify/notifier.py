"""The notifier interface: one call, whose result is a value and never an exception."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from worker.notify.messages import Message


@dataclass(frozen=True, slots=True)
class Delivered:
    """The message was handed over."""


@dataclass(frozen=True, slots=True)
class Failed:
    """It surely or probably is not. `kind` is a short code without customer data; `final`: another try would end the same."""

    kind: str
    final: bool = False


class Notifier(Protocol):
    """A way to a customer. `deliver` takes seconds at most and never raises."""

    @property
    def name(self) -> str:
        """How settings and logs call it."""

    def deliver(self, message: Message) -> Delivered | Failed:
        """Hand over one message."""
