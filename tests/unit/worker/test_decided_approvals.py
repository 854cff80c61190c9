"""Decided approvals are fetched in pages that the client accepts, whatever people wrote."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

import orjson

from sentinel.authority.api.approval_stream import decision_fields
from sentinel.authority.approvals import DecidedApproval
from sentinel.client.answers import ApprovalDecision
from sentinel.client.transport import MAX_RESPONSE_BYTES
from worker.outbound.decided_approvals import decided_pages


def test_a_page_of_the_longest_decisions_fits_into_an_answer() -> None:
    """The finding: after some hundred rejections with one long reason every fetch failed, as if the authority were away."""
    asked: list[int] = []

    def fetch(since: datetime, limit: int) -> list[ApprovalDecision]:
        asked.append(limit)
        return []

    assert list(decided_pages(fetch, datetime.now(UTC))) == []
    # Five people, as many as a policy may require, with the longest addresses; the last one gives the longest reason.
    longest = DecidedApproval(
        request_id=uuid.uuid4(), status="approved", approver=", ".join(["x" * 254] * 5), reason="\N{GRINNING FACE}" * 2000,
        agent_id="a" * 128, action="a" * 128, decided_at=datetime.now(UTC),
    )  # fmt: skip
    page = orjson.dumps({"decisions": [decision_fields(longest)] * asked[0]})
    assert len(page) <= MAX_RESPONSE_BYTES
