"""The expected errors that cross layers, each with a stable code.

One base with a stable `code`; one class per thing a caller handles differently. HTTP turns them
into problem documents in one table (`sentinel/platform/http/problems.py`); the command line prints one line.
This module is also in the client's wheel, which runs on Python 3.10.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from types import MappingProxyType
from typing import Any


class SentinelError(Exception):
    """Base of all expected refusals. `code` is stable and public; `detail` is for people."""

    code = "error"

    def __init__(self, detail: str, *, errors: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.errors = dict(errors or {})


class InvalidInput(SentinelError):
    """The input breaks a rule; `errors` maps the field's path to the rule it broke."""

    code = "invalid-request"

    @classmethod
    def of(cls, field: str, rule: str) -> InvalidInput:
        """Return the error for one field, e.g. `InvalidInput.of("params.amount", "must be positive")`."""
        return cls(f"{field}: {rule}", errors={field: rule})


class BodyTooLarge(SentinelError):
    """The body has more bytes than the limit."""

    code = "body-too-large"


class LengthRequired(SentinelError):
    """The body has no declared length (chunked): it could be cut short without anyone noticing."""

    code = "length-required"


class UnsupportedMediaType(SentinelError):
    """The body is not application/json."""

    code = "unsupported-media-type"


class Unauthenticated(SentinelError):
    """No credentials, or wrong ones. Never says which."""

    code = "unauthenticated"

    def __init__(self) -> None:
        super().__init__("Invalid or missing credentials")


class Forbidden(SentinelError):
    """The caller is known but not allowed: wrong tenant, agent, scope, role or separation of duties."""

    code = "forbidden"


class StepUpRequired(Forbidden):
    """A signed-in person must authenticate again before a sensitive action."""

    code = "step-up-required"


class PasswordChangeRequired(Forbidden):
    """Somebody else set this person's password; they must set their own first."""

    code = "password-change-required"


class SecondFactorRequired(Forbidden):
    """A second factor must be set up first."""

    code = "second-factor-required"


class NotFound(SentinelError):
    """Nothing with that name exists, or this caller may not see it."""

    code = "not-found"


class Conflict(SentinelError):
    """The current state of the thing does not allow this; nothing was changed."""

    code = "conflict"


class KeyReused(Conflict):
    """The idempotency key belongs to another operation. `field` is the first that differs.

    `taken` is a sentence that says which agent used it, where another API key did and the caller may know; else "".
    `first_asked` holds further members of the problem document, for the requester that asked first. `recorded_bytes` is
    the length of the recorded request.
    """

    code = "idempotency-key-reused"
    first_asked: Mapping[str, Any] = MappingProxyType({})
    recorded_bytes = 0

    def __init__(self, field: str, *, taken: str = "") -> None:
        super().__init__(
            f"{taken} This idempotency key belongs to another operation: {field} differs.".lstrip(),
            errors={field: "differs from the operation recorded under this key"},
        )
        self.field, self.taken = field, taken


class StillDeciding(Conflict):
    """A concurrent request held the idempotency key for longer than we wait; nothing of this request was done, or will be."""

    code = "still-deciding"


class PermitRedeemed(Conflict):
    """The permit was redeemed under another start id."""

    code = "already-started"


class ResolvedNotExecuted(Conflict):
    """A person resolved it as not executed: no start under this key is accepted any more."""

    code = "resolved-not-executed"

    def __init__(self) -> None:
        super().__init__(
            "a person resolved this operation as not executed; it can never be started again under this key"
        )


class StillActing(Conflict):
    """ "Not executed" cannot be recorded yet: the caller that started it may still act until `act_until`."""

    code = "still-acting"

    def __init__(self, act_until: datetime) -> None:
        utc = act_until.astimezone(timezone.utc)  # noqa: UP017 - Python 3.10 has no UTC
        moment = utc.isoformat(timespec="seconds").replace("+00:00", "Z")
        super().__init__(
            f"the caller that started it may still act until {moment}, unless it reports an error earlier; resolve it as not executed after that"
        )
        self.act_until = act_until


class ReportContradicts(Conflict):
    """An earlier report was received that says something else."""

    code = "report-contradicts"


class PermitRefused(SentinelError):
    """The permit cannot be redeemed now: halted, or a bound field differs."""

    code = "permit-refused"


class PermitExpired(SentinelError):
    """The permit has expired; guard again."""

    code = "permit-expired"


class RateLimited(SentinelError):
    """Too many requests for this key. After `retry_after_seconds` one will be accepted."""

    code = "rate-limited"

    def __init__(self, retry_after_seconds: int, detail: str = "Too many requests for this key.") -> None:
        super().__init__(detail)
        self.retry_after_seconds = retry_after_seconds


class TooManyOpenPermits(RateLimited):
    """The key has reached its limit of open (not started) permits."""

    code = "too-many-open-permits"

    def __init__(self, retry_after_seconds: int) -> None:
        super().__init__(
            retry_after_seconds,
            "This key has too many permits that were not started. Start them, or wait until they expire.",
        )


class TooManyOpenQuestions(RateLimited):
    """The key has reached its limit of open (pending) approvals, and this would ask for one more."""

    code = "too-many-open-questions"

    def __init__(self, retry_after_seconds: int) -> None:
        super().__init__(
            retry_after_seconds,
            "This key has too many pending approvals. Wait until they are decided or expire.",
        )


class EngineUnavailable(SentinelError):
    """Store, clock, policy or a needed fact is unavailable: the answer is a DENY that may be retried."""

    code = "engine-unavailable"


class MayBeRecorded(EngineUnavailable):
    """The connection was lost while a person's act was recorded, so it may be recorded: look first, for a repeat may be refused."""

    def __init__(self) -> None:
        super().__init__(
            "the database connection was lost, and the change may or may not be recorded: check before you send it again"
        )


class WorkerNotRunning(SentinelError):
    """No worker is running to do this; nothing was done."""

    code = "worker-not-running"


class TooManyStreams(SentinelError):
    """The limit of concurrent streams is reached."""

    code = "too-many-streams"


class TryLater(SentinelError):
    """A dependency does not answer. Nothing was recorded; the same request may be sent again."""

    code = "try-later"
