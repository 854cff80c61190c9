"""What a page must never do: complain in the console, break its own policy, ask another host, or fail to load a part."""

from __future__ import annotations

import re
from typing import Any

# Violations of the policy are told where the other complaints are.
LISTEN = (
    "document.addEventListener('securitypolicyviolation', (event) =>"
    " console.error(`policy violated: ${event.effectiveDirective} ${event.blockedURI} ${event.sample}`));"
)
# The browser says so of each answer that is not a success; tests that want one look at the page.
_STATUS = re.compile(r"Failed to load resource: the server responded with a status of (\d+)")


class Watch:
    """Complaints of every page of the contexts that it looks at."""

    def __init__(self, *urls: str) -> None:
        self.complaints: list[str] = []
        self.hosts = list(urls)
        self._expected: list[re.Pattern[str]] = []

    def look_at(self, context: Any) -> None:
        """Everything that happens in it from now on."""
        context.add_init_script(LISTEN)
        context.on("console", self._said)
        context.on("weberror", lambda error: self._complain(f"script error: {error.error}"))
        context.on("request", self._asked)
        context.on("requestfailed", self._failed)

    def expect(self, *patterns: str) -> None:
        """Complaints that a test provokes."""
        self._expected += map(re.compile, patterns)

    def forget(self) -> None:
        """Begin anew, with no complaint and none expected."""
        self.complaints, self._expected = [], []

    def unexpected(self) -> list[str]:
        """What nobody asked for; forgotten afterwards."""
        found = [one for one in self.complaints if not any(pattern.search(one) for pattern in self._expected)]
        self.complaints = []
        return found

    def _complain(self, text: str) -> None:
        self.complaints.append(text)

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            status = _STATUS.search(message.text)
            self._complain(
                f"status {status[1]}: {message.location.get('url')}" if status else f"console: {message.text}"
            )

    def _asked(self, request: Any) -> None:
        if not request.url.startswith((*self.hosts, "data:", "about:", "blob:")):
            self._complain(f"another host: {request.url}")

    def _failed(self, request: Any) -> None:
        # A page that is left gives up what it was waiting for.
        if "ERR_ABORTED" not in (request.failure or ""):
            self._complain(f"request failed: {request.url} {request.failure}")
