"""What one administrator asks and a second one approves, by the pages."""

from __future__ import annotations

from typing import Any


def waiting(answer: Any) -> str:
    """The id of the approval that an act waits for."""
    address = answer.headers.get("Location", "")
    assert (answer.status_code, address.startswith("/ops/approvals/")) == (303, True), answer.get_data(as_text=True)
    return str(address.rpartition("/")[2])


def approve(fixtures: Any, approval_id: str, second: Any) -> None:
    """The second administrator's browser approves it."""
    word = {"verdict": "approve", "reason": "we spoke about it", "digest": fixtures.digest(approval_id)}
    answer = second.submit(f"/ops/approvals/{approval_id}", **word)
    assert answer.status_code == 303, answer.get_data(as_text=True)


def agreed(fixtures: Any, asker: Any, answer: Any, second: Any) -> Any:
    """The page that shows the asker the password or key of an act that the second administrator's browser approved."""
    approval_id = waiting(answer)
    approve(fixtures, approval_id, second)
    made = asker.submit(f"/ops/approvals/{approval_id}/collect")
    assert made.status_code in (200, 201), made.get_data(as_text=True)
    return made
