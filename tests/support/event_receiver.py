"""A receiver of events on loopback: checks each message as a released Standard Webhooks library does, and records it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cloudevents.core.bindings.http import HTTPMessage, from_http_event
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from tests.support.scripted_server import Asked, Script, ScriptedServer


class EventReceiver:
    """Answers 204 to what one of `secrets` verifies, 401 to the rest; `faults` are used up first, one a request."""

    def __init__(self, *secrets: str) -> None:
        self.secrets = list(secrets)
        self.taken: list[Any] = []
        """Messages that were taken, as the CloudEvents library reads them."""
        self.faults: list[Script] = []
        self.http = ScriptedServer()
        self.http.script = self._answer

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"{self.http.url}/events"

    @property
    def types(self) -> list[str]:
        """The types of what was taken, in the order in which it came."""
        return [one.get_type() for one in self.taken]

    @property
    def ids(self) -> list[str]:
        """The ids of what was taken, in the order in which it came."""
        return [one.get_id() for one in self.taken]

    @contextmanager
    def running(self) -> Iterator[EventReceiver]:
        """Listens inside."""
        with self.http.running():
            yield self

    def _answer(self, asked: Asked) -> None:
        if self.faults:
            return self.faults.pop(0)(asked)
        if not any(verifies(secret, asked) for secret in self.secrets):
            return asked.answer(401, b"")
        self.taken.append(from_http_event(HTTPMessage(asked.headers, asked.body)))
        return asked.answer(204, b"")


def verifies(secret: str, asked: Asked) -> bool:
    """Whether the released library takes the request for genuine."""
    try:
        Webhook(secret).verify(asked.body, asked.headers)
    except WebhookVerificationError:
        return False
    return True


def answers(status: int, **headers: str) -> Script:
    """A receiver that does not take it."""
    return lambda asked: asked.answer(status, b"", **headers)
