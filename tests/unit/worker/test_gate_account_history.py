"""What accounts had refunded before a gate's cases: whatever of it cannot be recorded ends the run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from sentinel.client import GuardAnswer, NoAnswerKind, Unreachable
from sentinel.core.money import Money
from worker.gates import account_history
from worker.gates.account_history import AccountHistoryFailed

LOST = Unreachable(NoAnswerKind.BROKEN, "the connection broke")


@pytest.mark.parametrize("fails", ["start_many", "report_many"])
def test_an_earlier_refund_that_is_not_started_or_not_reported_ends_the_run(
    fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finding: it stayed reserved, was not moved back in time, and its case was judged on another history."""
    for made in ("_question", "_report"):
        monkeypatch.setattr(account_history, made, lambda *_: {})
    allowed: Any = Mock(spec=GuardAnswer, status="allowed")
    client, admin = Mock(), Mock()
    client.guard_many.return_value = [allowed]
    client.start_many.return_value = client.report_many.return_value = [object()]
    getattr(client, fails).return_value = [LOST]
    case: Any = SimpleNamespace(where="cases.yaml:7")
    piece = account_history._Piece(case, 0, Money(500, "USD"), "1d")
    with pytest.raises(AccountHistoryFailed, match=r"cases.yaml:7: .* the connection broke"):
        account_history._refund(client, admin, Mock(), [piece])
    admin.execute.assert_not_called()
