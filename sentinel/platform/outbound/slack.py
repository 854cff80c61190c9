"""Slack-compatible incoming webhooks: POST {"text"} → 2xx. The URL is a secret and is not part of any error."""

from __future__ import annotations

import orjson

from sentinel.platform.outbound.client import Response
from sentinel.platform.outbound.public_addresses import NotAllowed, PublicHttpClient

MAX_ANSWER_BYTES = 16 << 10


def slack_text(text: str) -> str:
    """The text with Slack's three control characters as entities, as Slack requires for text that is not markup."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class SlackWebhook:
    """One incoming webhook. Thread-safe."""

    def __init__(self, url: str, client: PublicHttpClient, deadline_seconds: float) -> None:
        self._url, self._client, self._deadline_seconds = url, client, deadline_seconds

    def post(self, text: str) -> str | None:
        """Post once. None when it was accepted, else the failure in a word or two, without the URL."""
        body, headers = orjson.dumps({"text": text}), {"Content-Type": "application/json"}
        found = self._client.exchange(
            "POST",
            self._url,
            body,
            headers=headers,
            deadline_seconds=self._deadline_seconds,
            max_bytes=MAX_ANSWER_BYTES,
        )
        if isinstance(found, Response):
            return _fault(found)
        return f"not_allowed: {found.why}" if isinstance(found, NotAllowed) else found.kind.value


def _fault(answered: Response) -> str | None:
    if not 200 <= answered.status < 300:
        return f"http_{answered.status}"
    # Slack answers `ok` as text/html. Any other page is from a portal or a proxy, whatever its status says.
    is_page = answered.content_type == "text/html" and answered.body.strip().lower() != b"ok"
    return "a web page" if is_page else None
