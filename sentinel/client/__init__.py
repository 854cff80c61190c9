"""The agents' library: a client of the authority, and `guarded()` around an action with a side effect.

Imports nothing from the rest of sentinel. Only a well-formed ALLOW or approved answer with a permit counts as
permission; everything else is a refusal, a wait or no answer at all.
"""

from typing import TYPE_CHECKING, Any

from sentinel.client.calls import CheckQuestion, GuardQuestion, Outcome
from sentinel.client.client import Client
from sentinel.client.errors import (
    ActionDenied,
    ActionExpired,
    AlreadyStarted,
    ApprovalPending,
    ClientError,
    KeyConflict,
    NoAnswerKind,
    Rejected,
    StartedTooLate,
    Unreachable,
)
from sentinel.client.guarded import AsyncGuarded, Guarded, guarded

if TYPE_CHECKING:
    from sentinel.client.answers import (
        ApprovalDecision,
        ApprovalView,
        CheckAnswer,
        GuardAnswer,
        HaltInForce,
        Headroom,
        KeyHolder,
        ReportReceipt,
        StartReceipt,
        Switches,
        SwitchState,
    )
    from sentinel.client.async_client import AsyncClient

__all__ = [
    "ActionDenied",
    "ActionExpired",
    "AlreadyStarted",
    "ApprovalDecision",
    "ApprovalPending",
    "ApprovalView",
    "AsyncClient",
    "AsyncGuarded",
    "CheckAnswer",
    "CheckQuestion",
    "Client",
    "ClientError",
    "GuardAnswer",
    "GuardQuestion",
    "Guarded",
    "HaltInForce",
    "Headroom",
    "KeyConflict",
    "KeyHolder",
    "NoAnswerKind",
    "Outcome",
    "Rejected",
    "ReportReceipt",
    "StartReceipt",
    "StartedTooLate",
    "SwitchState",
    "Switches",
    "Unreachable",
    "guarded",
]


def __getattr__(name: str) -> Any:
    """Load `AsyncClient` and the answers' types on first use: they would take most of this package's import time."""
    if name == "AsyncClient":
        from sentinel.client.async_client import AsyncClient

        return AsyncClient
    if name in __all__:
        from sentinel.client import answers

        return getattr(answers, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
