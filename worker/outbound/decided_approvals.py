"""Decided approvals as the authority lists them, page by page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime

from sentinel.client.answers import ApprovalDecision

_PAGE = 64
"""Decisions per request. Each is up to 10 KB, because its reason may have 2,000 characters, and the client refuses an
answer of more than 1 MiB."""


def decided_pages(
    fetch: Callable[[datetime, int], Sequence[ApprovalDecision]], since: datetime | None
) -> Iterator[Sequence[ApprovalDecision]]:
    """Yield the approvals decided after `since`, oldest first, a page at a time and no empty one; nothing if `since` is None.

    `fetch` is `Client.approvals_since`; what it raises goes through.
    """
    while since is not None:
        page = fetch(since, _PAGE)
        if page:
            yield page
        # A full page whose last decision is no later than `since` would be fetched again for ever.
        more = len(page) >= _PAGE and page[-1].decided_at > since
        since = page[-1].decided_at if more else None
