"""What was decided first covers a later decision only where that one is stricter in nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from sentinel.core.decision import (
    ApprovalTerms,
    BreakerCheck,
    Decision,
    ReservationRequest,
    Verdict,
    WindowKind,
    stricter_reason,
)

LIMIT = ReservationRequest(
    "p/day|acct", "acct|USD", WindowKind.ROLLING, 86_400, 60, "UTC", 30_000, Verdict.DENY, "day_full"
)
BREAKER = BreakerCheck("p/rate", "agent", "a", 300, 1, 100, None, "100 operations in 5 minutes")
ASKS = Decision(
    Verdict.APPROVAL_REQUIRED, "large", ("large", "late"), (), limits=(LIMIT,), breakers=(BREAKER,),
    approval=ApprovalTerms("approver", 1, 3600), once_key="refund|rf_1",
)  # fmt: skip
ALLOWS = msgspec.structs.replace(ASKS, verdict=Verdict.ALLOW, reason_code="small", reasons=())
STRICTER: dict[str, tuple[dict[str, Any], str]] = {
    "a denial": ({"verdict": Verdict.DENY, "reason_code": "never", "reasons": ("never",)}, "never"),
    "one more reason": ({"reasons": ("large", "late", "often")}, "often"),
    "another reason": ({"reasons": ("often",)}, "often"),
    "more people": ({"approval": ApprovalTerms("approver", 2, 3600)}, "large"),
    "another role": ({"approval": ApprovalTerms("admin", 1, 3600)}, "large"),
    "nobody may approve": ({"approvable": False}, "large"),
    "another budget": ({"limits": (LIMIT._replace(limit_key="p/day|other"),)}, "day_full"),
    "a lower cap": ({"limits": (LIMIT._replace(cap_minor=1),)}, "day_full"),
    "another rate": ({"breakers": (BREAKER, replace(BREAKER, scope="tenant"))}, "velocity_halted"),
    "another once-key": ({"once_key": "refund|rf_2"}, "once_key_changed"),
    "no once-key": ({"once_key": None}, "once_key_changed"),
}  # fmt: skip
"""What the later decision has otherwise, and the reason that is named."""


@pytest.mark.parametrize("what", STRICTER)
def test_whatever_is_stricter_is_named(what: str) -> None:
    changed, reason = STRICTER[what]
    assert stricter_reason(ASKS, msgspec.structs.replace(ASKS, **changed)) == reason


def test_a_question_to_a_person_is_stricter_than_a_permission() -> None:
    assert stricter_reason(ALLOWS, ASKS) == "large"


def test_the_same_and_what_is_looser_is_covered() -> None:
    fewer = msgspec.structs.replace(ASKS, reasons=("late",), reason_code="late", limits=(), breakers=())
    for looser in (ASKS, ALLOWS, fewer):
        assert stricter_reason(ASKS, looser) is None
