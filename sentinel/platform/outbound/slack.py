"""Slack-compatible incoming webhooks: POST {"text"} → 2xx. The address is a secret and is in no message of ours."""

from __future__ import annotations

import orjson

from sentinel.platform.outbound.client import Response
from sentinel.platform.outbound.public_addresses import NotAllowed, PublicHttpClient

MAX_ANSWER_BYTES = 16 << 10


def slack_text(text: str) -> str:
    """Slack's three control characters as entities (its own rule for text that is not to be interpreted)."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class SlackWebhook:
    """One incoming webhook. Thread-safe."""

    def __init__(self, url: str, client: PublicHttpClient, deadline_seconds: float) -> None:
        self._url, self._client, self._deadline_seconds = url, client, deadline_seconds

    def post(self, text: str) -> str | None:
        """One try. None when it was taken, else what went wrong, in a word or two without the address."""
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
    # Slack says `ok` as text/html. Another page is a portal's or a proxy's, whatever its status says.
    is_page = answered.content_type == "text/html" and answered.body.strip().lower() != b"ok"
    return "a web page" if is_page else None
