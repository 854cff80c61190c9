"""Decided approvals as the authority lists them, page by page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime

from sentinel.client.answers import ApprovalDecision
from sentinel.client.calls import MOST_DECISIONS


def decided_pages(
    fetch: Callable[[datetime, int], Sequence[ApprovalDecision]], since: datetime | None
) -> Iterator[Sequence[ApprovalDecision]]:
    """Yield the approvals decided after `since`, oldest first, a page at a time and no empty one; nothing if `since` is None.

    `fetch` is `Client.approvals_since`; what it raises goes through.
    """
    while since is not None:
        page = fetch(since, MOST_DECISIONS)
        if page:
            yield page
        # A full page whose last decision is no later than `since` would be fetched again for ever.
        more = len(page) >= MOST_DECISIONS and page[-1].decided_at > since
        since = page[-1].decided_at if more else None
