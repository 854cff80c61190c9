"""How events are sent to each kind of receiver. The result of an attempt is a value: accepted, failed with a code, or gone for good."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from sentinel.client.transport import current_traceparent
from sentinel.export.cloud_events import CONTENT_TYPE, EventMessage, FeedEvent, messages_of
from sentinel.export.deliveries import Claim, Resend
from sentinel.export.signing_secrets import SigningSecrets
from sentinel.platform.outbound.client import Response
from sentinel.platform.outbound.public_addresses import NotAllowed, PublicHttpClient
from sentinel.platform.outbound.standard_webhooks import signed_headers

MAX_ANSWER_BYTES = 16 << 10
GONE = "http_410"
"""The code for status 410, by which a receiver says that it is gone for good (Standard Webhooks)."""


class Receiver(Protocol):
    """A kind of receiver. Thread-safe."""

    @property
    def at_once(self) -> int:
        """The most events in one call of `send`."""

    @property
    def needs_present_state(self) -> bool:
        """Whether what `send` does depends on what became of an event since, so that it must be read immediately before."""

    def send(self, endpoint: Claim | Resend, events: Sequence[FeedEvent]) -> str | None:
        """Send events of one feed in their order. Returns None when they were accepted, else what went wrong, in a word or two."""


@dataclass(frozen=True, slots=True)
class WebhookReceiver:
    """Sends CloudEvents as Standard Webhooks, one message per request. Any 2xx means accepted; redirects are not followed."""

    client: PublicHttpClient
    secrets: SigningSecrets
    deadline_seconds: float
    now: Callable[[], float] = time.time
    at_once: int = 1
    needs_present_state: bool = False

    def send(self, endpoint: Claim | Resend, events: Sequence[FeedEvent]) -> str | None:
        """Send one request per message; an event's second message is sent after its first was accepted."""
        for event in events:
            for message in messages_of(event, endpoint.event_types):
                error = self.post(endpoint, message)
                if error is not None:
                    return error
        return None

    def post(self, endpoint: Claim | Resend, message: EventMessage) -> str | None:
        """Make one attempt to send one message; None when it was accepted, else what went wrong."""
        assert endpoint.url is not None
        body = message.body()
        keys = self.secrets.keys(endpoint.endpoint_id, endpoint.secret_number, old_too=endpoint.old_secret_too)
        headers = {"Content-Type": CONTENT_TYPE, **signed_headers(keys, message.id, int(self.now()), body)}
        return post(self.client, endpoint.url, body, headers, self.deadline_seconds)


def post(
    client: PublicHttpClient, url: str, body: bytes, headers: dict[str, str], deadline_seconds: float
) -> str | None:
    """Send a POST request within the current trace. Returns None for any 2xx, else what went wrong."""
    if (trace := current_traceparent()) is not None:
        headers = {**headers, "traceparent": trace}
    found = client.exchange(
        "POST", url, body, headers=headers, deadline_seconds=deadline_seconds, max_bytes=MAX_ANSWER_BYTES
    )
    if isinstance(found, Response):
        return None if 200 <= found.status < 300 else f"http_{found.status}"
    return f"not_allowed: {found.why}" if isinstance(found, NotAllowed) else found.kind.value
