"""What can go wrong between an agent and the authority, one class per thing an agent handles differently.

`Unreachable` means that nothing is known: not yes, not no. `Rejected` means that the authority answered and refused
the request itself. The `Action…` family is for `guarded()`, where a refusal must stop the block.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any


class NoAnswerKind(str, Enum):  # noqa: UP042 - the client runs on Python 3.10, which has no StrEnum
    """Why there is no answer."""

    REFUSED = "connection_refused"
    TIMEOUT = "timeout"
    BROKEN = "connection_broken"
    SERVER = "server_error"
    BUSY = "busy"
    MALFORMED = "malformed_answer"
    CLOSED = "client_closed"

    def __str__(self) -> str:
        return self.value


class ClientError(Exception):
    """Base of everything this client raises; `detail` is one line without secrets.

    `is_of_tool`: it was raised by a tool that ran, e.g. about a call that the tool made itself, so it does not refuse
    that tool. `is_final`: the same call will not be permitted under its key; if False, the block was not entered and
    the call may be made again later. An `Unreachable` from `start` or `report` says nothing about what was done. Errors
    can be pickled and copied, so they cross the boundary of a process pool unchanged.
    """

    is_of_tool = False
    is_final = True

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail

    def __reduce__(self) -> tuple[Any, ...]:
        # Python's default would call `__init__` with the message alone, which fails for the subclasses' other
        # parameters: the process that unpickles it fails, and a process pool then ends all its workers, in the midst of
        # their side effects.
        return _rebuilt, (type(self), self.args), self.__dict__


def _rebuilt(kind: type[ClientError], args: tuple[Any, ...]) -> ClientError:
    """Return the error without its attributes; unpickling sets them afterwards."""
    return kind.__new__(kind, *args)


_KEY_REFUSED = 401
_NOTHING_DONE = (NoAnswerKind.REFUSED, NoAnswerKind.BUSY)


class Unreachable(ClientError):
    """No usable answer. The same call with the same key may be repeated; nothing may be executed on it.

    `may_have_arrived`: whether the authority may have done what was asked all the same. False if no attempt of this
    call was received, or each was answered "busy". `code`: that of the problem document of a busy answer, e.g.
    "too-many-open-questions"; None without one.
    """

    is_final = False

    def __init__(
        self, kind: NoAnswerKind, detail: str, *, retry_after_seconds: float | None = None, code: str | None = None
    ) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.code = code
        self.may_have_arrived = kind not in _NOTHING_DONE
        self.retry_after_seconds = retry_after_seconds


def code_of(problem_type: str) -> str:
    """Return the last part of a problem document's type, e.g. "permit-expired"; "" where it has none."""
    return problem_type.rstrip("/").replace("#", "/").replace(":", "/").rsplit("/", 1)[-1]


class Rejected(ClientError):
    """The authority refused the request (a 4xx problem document, RFC 9457). Repeating it unchanged is no use.

    `code` is the last part of the problem's type, e.g. "permit-expired". `may_have_arrived`: whether an earlier attempt
    of the same call, which got no answer, may have been processed. Not final with the status 401: the client's key is
    refused, e.g. expired, and nothing is said about the call.
    """

    def __init__(self, *, status: int, type: str, title: str, detail: str) -> None:
        super().__init__(f"{status} {title}: {detail}" if title else f"{status} {detail}")
        self.may_have_arrived = False
        self.is_final = status != _KEY_REFUSED
        self.status = status
        self.type = type
        self.title = title
        self.code = code_of(type)


class KeyConflict(Rejected):
    """422 idempotency-key-reused: the key belongs to another operation.

    `recorded_params` are those that the key was first used with, if this requester used it; else None. `tightened` says
    why the policy is stricter about the params sent now ("decision", "reason_code", "reason"), or is None.
    """

    recorded_params: Mapping[str, Any] | None = None
    tightened: Mapping[str, str] | None = None


class ActionDenied(ClientError):
    """The action is not allowed. `reason_code` is the authority's, `reason` its sentence.

    Not final where a halt covers what was permitted before it, or where something that the call needs is unavailable
    for now.
    """

    def __init__(self, reason_code: str, reason: str, *, is_final: bool = True) -> None:
        super().__init__(f"{reason_code}: {reason}")
        self.reason_code, self.reason, self.is_final = reason_code, reason, is_final


class ApprovalPending(ClientError):
    """A person must decide first; ask again with the same key once `approval_id` is decided."""

    is_final = False

    def __init__(self, approval_id: str, detail: str) -> None:
        super().__init__(f"approval {approval_id} is pending: {detail}")
        self.approval_id, self.reason = approval_id, detail


class ActionExpired(ClientError):
    """Nobody decided in time; or the permit expired before the start, which is not final: the same call gets a new permit."""

    def __init__(self, detail: str, *, is_final: bool = True) -> None:
        super().__init__(detail)
        self.is_final = is_final


class AlreadyStarted(ClientError):
    """The operation was started before, so the block is not entered again.

    `outcome` is what was reported of it: "success" means that it was done, "error" and None that it may have happened.
    `resolution` is "not_executed" once a person has found that it was not.
    """

    def __init__(self, idempotency_key: str, outcome: str | None = None, resolution: str | None = None) -> None:
        super().__init__(f"{idempotency_key} was {'done' if outcome == 'success' else 'started'} before")
        self.outcome, self.resolution = outcome, resolution


class StartedTooLate(ClientError):
    """The start is recorded, but its answer was read so late (this process was suspended) that the block was not
    entered.

    An error is reported, so the operation is in doubt until a person says that it was not executed.
    """
