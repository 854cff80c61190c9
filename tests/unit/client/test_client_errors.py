"""What the client raises goes from process to process as it is: a refusal in one process of a pool ends no other."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest

import sentinel.client
from sentinel.client import (
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
from sentinel.tools import ToolRefused

PROBLEM = {"type": "https://sentinel.test/problems/permit-refused", "title": "Refused", "detail": "halted"}
RAISED: dict[type[ClientError], Callable[[], ClientError]] = {
    ClientError: lambda: ClientError("no"),
    Unreachable: lambda: Unreachable(NoAnswerKind.BUSY, "status 429", retry_after_seconds=1.5, code="rate-limited"),
    Rejected: lambda: Rejected(status=403, **PROBLEM),
    KeyConflict: lambda: KeyConflict(status=422, **PROBLEM),
    ActionDenied: lambda: ActionDenied("halted", "A halt covers this action.", is_final=False),
    ToolRefused: lambda: ToolRefused("unmapped_tool", "other: the table does not name it"),
    ApprovalPending: lambda: ApprovalPending("a-1", "large"),
    ActionExpired: lambda: ActionExpired("nobody decided in time"),
    AlreadyStarted: lambda: AlreadyStarted("k", "error", "not_executed"),
    StartedTooLate: lambda: StartedTooLate("too late"),
}
WAYS: dict[str, Callable[[ClientError], ClientError]] = {
    "pickled": lambda error: pickle.loads(pickle.dumps(error)), "copied": copy.copy, "copied deep": copy.deepcopy,
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", RAISED)
def test_an_error_is_the_same_in_another_process(kind: type[ClientError], way: str) -> None:
    error = RAISED[kind]()
    error.is_of_tool = True
    if isinstance(error, Unreachable | Rejected):
        error.may_have_arrived = True
    found = WAYS[way](error)
    assert type(found) is kind
    assert (str(found), found.args, vars(found)) == (str(error), error.args, vars(error))


def test_every_error_of_the_client_is_tried() -> None:
    exported = [getattr(sentinel.client, name) for name in sentinel.client.__all__]
    assert {one for one in exported if isinstance(one, type) and issubclass(one, ClientError)} == set(RAISED) - {
        ToolRefused
    }
