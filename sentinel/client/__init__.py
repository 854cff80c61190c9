"""The agents' library: a client of the authority, and `guarded()` around an action with a side effect.

Needs nothing of the rest of sentinel. Only a well-formed ALLOW or approved answer with a permit counts as permission;
everything else is a refusal, a wait or no answer at all.
"""

from sentinel.client.answers import (
    ApprovalDecision,
    ApprovalView,
    CheckAnswer,
    GuardAnswer,
    KeyHolder,
    ReportReceipt,
    StartReceipt,
)
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
    Unreachable,
)
from sentinel.client.guarded import Guarded, guarded
from sentinel.client.questions import CheckQuestion, GuardQuestion, Outcome
from sentinel.client.switches import HaltInForce, Switches, SwitchState

__all__ = [
    "ActionDenied",
    "ActionExpired",
    "AlreadyStarted",
    "ApprovalDecision",
    "ApprovalPending",
    "ApprovalView",
    "CheckAnswer",
    "CheckQuestion",
    "Client",
    "ClientError",
    "GuardAnswer",
    "GuardQuestion",
    "Guarded",
    "HaltInForce",
    "KeyConflict",
    "KeyHolder",
    "NoAnswerKind",
    "Outcome",
    "Rejected",
    "ReportReceipt",
    "StartReceipt",
    "SwitchState",
    "Switches",
    "Unreachable",
    "guarded",
]
