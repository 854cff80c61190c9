"""Pure functions from a row and an answer of the authority to the event that changes the row.

Not a decision on money: only a well-formed permission leads to ALLOWED; every doubt leads back to NEW or to a person. A
failure outside costs a row only time: it is retried without limit and without counting an attempt. Only a failure that is
surely about the row may end it; a failure that the table `STATUSES` does not name counts as outside.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from random import Random
from types import MappingProxyType
from typing import TypeGuard

from msgspec.structs import replace

from sentinel.client import GuardAnswer, KeyConflict, Rejected, Unreachable
from sentinel.core.wording import counted
from sentinel.platform.backoff import Backoff
from worker.outbound.effects import NoAnswer, Settled
from worker.outbound.guard_answers import RESOLVED, key_conflict_text
from worker.refunds.rows import Change, LedgerEvent, LedgerRow, LedgerState, ReleaseLease, ResolvedDoubt, report_body


class FailureScope(StrEnum):
    """What a failure is about."""

    ROW = "row"
    OUTSIDE = "outside"


STATUSES: Mapping[int, FailureScope] = MappingProxyType(
    {
        400: FailureScope.ROW,  # the question itself is malformed, and a retry asks the same question
        409: FailureScope.ROW,  # the operation's state is not what the row assumes; still-deciding is no answer
        410: FailureScope.ROW,  # its permit expired before the start
        413: FailureScope.ROW,  # its own question is too large
        422: FailureScope.ROW,  # its key belongs to another operation
        401: FailureScope.OUTSIDE,  # the key is refused: replaced, expired or mistyped
        403: FailureScope.OUTSIDE,  # the key may not do this: scope, tenant, agent
        404: FailureScope.OUTSIDE,  # not the authority's answer to a business call: another server listens there
        405: FailureScope.OUTSIDE,
        429: FailureScope.OUTSIDE,  # too many calls
        503: FailureScope.OUTSIDE,  # the authority cannot record a decision now
    }
)
"""HTTP status of an answer → what the failure is about. Any status that is not listed is OUTSIDE."""

CODES: Mapping[str, FailureScope] = MappingProxyType({"permit-refused": FailureScope.ROW})
"""Problem code → what the failure is about, ahead of the status: a 403 that is about one permit and not about the key."""


def failure_scope(failure: Unreachable | Rejected) -> FailureScope:
    """What a failed call was about; no answer at all is never about the row."""
    if isinstance(failure, Unreachable):
        return FailureScope.OUTSIDE
    return CODES.get(failure.code) or STATUSES.get(failure.status, FailureScope.OUTSIDE)


FAILURES = (Unreachable, Rejected)
"""What a failed call gives. For checks of each row: `Unreachable | Rejected` would be made anew in each of them."""


def is_outside(answer: object) -> TypeGuard[Unreachable | Rejected]:
    """Whether this is a failure that says nothing about the row; False for a real answer."""
    return isinstance(answer, FAILURES) and failure_scope(answer) is FailureScope.OUTSIDE


_KEY_IS_FULL = ("too-many-open-permits", "too-many-open-questions")
"""Codes of a 429 for a key with too much open: calls that need no further permit or approval are still answered."""


def is_refused_alone(answer: Unreachable | Rejected) -> bool:
    """Whether the authority is reachable and only refuses this call to this key: other rows may still get an answer."""
    if isinstance(answer, Unreachable):
        return answer.code in _KEY_IS_FULL
    return answer.status == 403


_GUARDING, _ALLOWED = LedgerState.GUARDING, LedgerState.ALLOWED
_OVER_BY = timedelta(seconds=1)
"""A pending approval is asked about again this long after it expired."""

ENDED = "the worker ended"
"""The error text of a row that is put back because the worker is stopping; nothing was wrong with the row."""

COUNTED_FIRST = "another refund of its order was counted first"
"""The error text of a row that is put back because its permission was not recorded, although nothing blocks it any more."""

HALTED = "halted"
"""The error text of a row that is put back because a halt covers what was permitted before it."""

HARMLESS = frozenset({ENDED, COUNTED_FIRST, HALTED})
"""The error texts of rows that were put back although nothing went wrong with them."""

REFUSED = "settlement_refused"
"""The reason code of a row whose settlement was refused for good."""

STARTED_ELSEWHERE = "started_elsewhere"
"""The reason code of a row whose operation was started under a start id that is not the row's: it may have been paid."""
START_FORGOTTEN = "start_forgotten"
"""The reason code of a row with an effect begun in an outside system, of which the authority knows no start: may have been paid."""
START_UNCONFIRMED = "start_unconfirmed"
"""The reason code of a row whose own start is on record but is refused when it is asked for again: it may have been paid."""
EXECUTED_ELSEWHERE = "executed_elsewhere"
"""The reason code of a row that the authority has as executed, mostly resolved so by a person, but without an execution here."""
NOT_EXECUTED = "not_executed"
"""The reason code of a row that a person resolved as not executed; also the value of an answer's `resolution`."""
HANDLED = "handled_by_person"
"""The reason code of a row that a person handled elsewhere."""
_NEVER_PAID = "a person said that this refund was not executed, before it was; nothing was paid. To pay it, enter it again under another id"

_EXECUTED = "it was executed, according to the authority: a person resolved it so, or a report did that this ledger does not have. It is not tried again"
_ENTER_ANEW = "to pay this refund, enter it under another ledger entry id"
_IN_DOUBT = "; it may have been started: see `sentinel in-doubt list`"
_NEVER_STARTED = (LedgerEvent.APPROVAL_REQUIRED, LedgerEvent.DENIED)
_FORGOTTEN = (
    "it was started in an outside system, and the authority has no start on record, as after a restore: it may have been paid."
    " Check the outcome in that system"
)
_SAY_SO = "; an administrator says so: "


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often to retry, and how long to pause: exponential backoff from `first_seconds` to `longest_seconds`, with jitter."""

    max_attempts: int
    first_seconds: float
    longest_seconds: float
    random: Random

    def pause_seconds(self, failures: int, at_least: float = 0.0) -> float:
        """The pause after failure number `failures` (0 is the first), between half and the whole of its nominal length.

        At least `at_least`, but never more than `longest_seconds`.
        """
        nominal = Backoff(self.first_seconds, self.longest_seconds).pause_seconds(failures)
        return max(nominal * self.random.uniform(0.5, 1.0), min(at_least, self.longest_seconds))


def was_started_before(answer: GuardAnswer) -> bool:
    """Whether the authority says that the operation was started, or resolved as not executed, before this answer.

    The worker then still asks for a start under the row's own start id: the receipt shows whether the start was this
    row's.
    """
    return answer.status == "already_started" or was_not_executed(answer)


def was_not_executed(answer: GuardAnswer) -> bool:
    """Whether a person's resolution "not executed" is in force. Not if a success was reported after it: that contradiction is undecided."""
    return answer.resolution == NOT_EXECUTED and answer.outcome != "success"


def after_guard(row: LedgerRow, answer: GuardAnswer, retry_policy: RetryPolicy) -> Change:
    """Return the event that a guard's answer leads to for its row."""
    change = _meaning(row, answer, retry_policy)
    if row.is_begun_outside and change.event in _NEVER_STARTED and change.reason_code != HANDLED:
        return give_up(row, _FORGOTTEN, reason=START_FORGOTTEN, in_doubt=True)
    if change.event is LedgerEvent.ALLOWED or answer.status in ("already_started", "completed"):
        return change
    # An operation with any other status was never started, and a former holder's effect would be on record.
    return replace(change, not_started=not row.is_begun_outside)


def _meaning(row: LedgerRow, answer: GuardAnswer, retry_policy: RetryPolicy) -> Change:
    match answer.status:
        case "allowed" | "approved":
            return _allowed(row, answer, answer.permit_token)
        case "already_started" | "completed" if was_started_before(answer) and _is_own_start(row, answer):
            # Our own start, whose receipt was lost with its holder: asking again with the stored start id returns the
            # recorded receipt, or a refusal after which nothing may happen any more.
            return _allowed(row, answer, row.permit_token)
        case "already_started" | "completed" if was_not_executed(answer):
            # No permission is on record here, so nothing was settled here, whoever started it; and a person says the
            # same.
            return replace(give_up(row, _NEVER_PAID, reason=NOT_EXECUTED), not_started=True)
        case "completed" if _is_own_start(row, answer) and (answer.outcome, answer.resolution) == ("success", None):
            # This worker reports success only after writing the execution, and there is none: the success comes from
            # somebody else, so the refund is known to be paid.
            counts = ", and it counts against its order" if row.order_ref else ""
            return give_up(row, _EXECUTED + counts, reason=EXECUTED_ELSEWHERE)
        case "already_started" | "completed":
            outcome = f", outcome {answer.outcome}" if answer.outcome else ""
            return give_up(
                row,
                f"{STARTED_ELSEWHERE}: the operation is {answer.status}{outcome}",
                reason=STARTED_ELSEWHERE,
                in_doubt=True,
            )
        case "pending":
            return _waiting(row, answer)
        case "denied" if answer.is_halted_for_now:
            # Decided before the halt: refused now, not for good. The authority's record counts, as the first answer may
            # be lost.
            return put_back(row, HALTED, retry_policy.longest_seconds, failures=0)
        case _:
            return Change(
                row, _GUARDING, LedgerEvent.DENIED, decision=answer.decision, reason_code=_final_reason(answer),
                operation_id=answer.operation_id, decision_event_id=answer.decision_event_id, proof_id=answer.proof_id,
                approval_id=answer.approval_id,
            )  # fmt: skip


def _is_own_start(row: LedgerRow, answer: GuardAnswer) -> bool:
    """Whether the start on record may be the row's own: its permission is recorded here, or the answer has its start's receipt."""
    return row.start_id is not None and (row.permit_token is not None or answer.start is not None)


def after_no_answer(row: LedgerRow, error: Unreachable | Rejected, retry_policy: RetryPolicy) -> Change | ReleaseLease:
    """The event for a guard without a usable answer: a failure outside postpones the row, one about the row is for a person."""
    # Nothing may be paid anew that was begun, however the authority refuses the question now.
    is_begun = row.may_be_started or row.is_begun_outside
    if isinstance(error, KeyConflict):
        then = _IN_DOUBT.removeprefix("; ") if is_begun else _ENTER_ANEW
        return give_up(row, f"key_conflict: {key_conflict_text(error, then)}")
    if isinstance(error, Rejected) and error.code == RESOLVED:
        return replace(give_up(row, _NEVER_PAID, reason=NOT_EXECUTED), not_started=True)
    if failure_scope(error) is FailureScope.ROW:
        return give_up(row, f"rejected_by_authority: {error.detail[:300]}{_IN_DOUBT if is_begun else ''}")
    wait = (error.retry_after_seconds if isinstance(error, Unreachable) else None) or 0.0
    return postpone(row, error.detail, retry_policy, at_least=wait)


def nothing_started(row: LedgerRow, event: Change | ReleaseLease) -> Change | ReleaseLease:
    """Return the event, marked `not_started` if nothing can have been started under the row's start id."""
    if isinstance(event, ReleaseLease) or row.may_be_started:
        return event
    return replace(event, not_started=True)


def postpone(row: LedgerRow, why: str, retry_policy: RetryPolicy, *, at_least: float = 0.0) -> Change | ReleaseLease:
    """Retry later without counting an attempt; the pause grows with the number of consecutive waits."""
    pause = retry_policy.pause_seconds(row.waits, at_least)
    if row.may_be_started:
        # It keeps its state and is claimed again when its lease ends; it must not become NEW, as its start may be on
        # record.
        return ReleaseLease(row, why, pause, outside=True)
    return replace(put_back(row, why, pause, failures=0), outside=True)


def after_start_refused(
    row: LedgerRow, refused: Rejected, retry_policy: RetryPolicy, *, was_started: bool
) -> tuple[Change, Change]:
    """Return the two events for a start that the authority refused: START_REFUSED, then put back or give up.

    Surely nothing happened under a refused start: the row is no longer one that may be started. With `was_started` the
    authority has the row's own start on record and refuses only what it is asked with now, e.g. a permit signed with a
    replaced secret: then the refund may have been paid, and so may one that was begun outside. A start refused for
    something outside (`failure_scope`) is a case for `after_unknown_outcome`: an earlier attempt may have started.
    """
    back = start_refused(row, refused.detail)
    if refused.code == "already-started":
        return back, give_up(row, f"{STARTED_ELSEWHERE}: {refused.detail}", reason=STARTED_ELSEWHERE, in_doubt=True)
    if was_started or row.is_begun_outside:
        why = f"{START_UNCONFIRMED}: it was started, but the start was refused when it was requested again: {refused.detail}"
        return back, give_up(row, why, reason=START_UNCONFIRMED, in_doubt=True)
    back = replace(back, not_started=True)
    if refused.status in (400, 422):
        return back, give_up(row, f"rejected_by_authority: {refused.detail}")
    if row.attempts + 1 >= retry_policy.max_attempts:
        return back, give_up(row, f"start refused {counted(row.attempts + 1, 'time')}: {refused.detail}")
    return back, put_back(row, refused.detail, retry_policy.pause_seconds(row.attempts), failures=1)


def start_refused(row: LedgerRow, why: str) -> Change:
    """The event of a start that the authority refused: nothing happened under it."""
    return Change(row, _ALLOWED, LedgerEvent.START_REFUSED, last_error=why[:500])


def after_not_executed(row: LedgerRow) -> Change:
    """The event of a row that a person resolved as not executed, and of which nothing was: ERROR, its budget is released."""
    return Change(row, _ALLOWED, LedgerEvent.NOT_EXECUTED, last_error=_NEVER_PAID, failures=1, reason_code=NOT_EXECUTED)


def after_not_executed_left(row: LedgerRow, what: str) -> Change:
    """As `after_not_executed`, for a row that paid no money but left something else done (`what`), for a person to take back."""
    why = f"a person said that this refund was not executed: no money was paid, but {what}. Undo it there by hand"
    return replace(after_not_executed(row), last_error=why[:500])


def after_not_executed_but(row: LedgerRow, found: Settled, *, system: str) -> Change:
    """The event of a row that a person resolved as not executed but that `system` executed: ERROR, no budget released.

    The success is reported: the authority then has the operation in doubt again and halts this action of this agent.
    """
    report = uuid.uuid4()
    why = f"resolved as not executed, but {system} did it: {found.reference}. This is reported to the authority"
    return replace(
        give_up(row, why, reason=NOT_EXECUTED, in_doubt=True), report_id=report,
        report=report_body(row, report, "success", result={"system": system, "reference": found.reference}),
    )  # fmt: skip


def without_name(detail: str, system: str) -> str:
    """A settlement system's answer without its name in front; for a row with several effects each answer begins with the name."""
    return detail.removeprefix(f"{system}: ")


def after_not_executed_unseen(
    row: LedgerRow, found: NoAnswer, retry_policy: RetryPolicy, *, system: str
) -> ReleaseLease:
    """Release the lease of a row resolved as not executed while `system` cannot tell; it is checked again until it can.

    No budget is released meanwhile.
    """
    why = f"resolved as not executed, but {system} may have done it: {without_name(found.detail, system)}"
    return after_unknown_outcome(row, why, retry_policy)


def after_unknown_outcome(row: LedgerRow, detail: str, retry_policy: RetryPolicy) -> ReleaseLease:
    """Release the lease of a row whose start or settlement has an unknown outcome; the next claim finds it out with the same ids."""
    return ReleaseLease(row, detail, retry_policy.pause_seconds(row.waits), outside=True)


def after_settlement_refused(row: LedgerRow, operation_id: str | None, *, system: str, reason: str) -> Change:
    """The event of a started refund that its system refused for good: ERROR, and a report that leaves it in doubt.

    Nothing happened, but an agent's report releases no budget: a person reads the refusal here and resolves the
    operation.
    """
    report = uuid.uuid4()
    why = (
        f"{system} refused: {without_name(reason, system)[:300]}. Nothing was executed{_SAY_SO}"
        f"`sentinel in-doubt resolve {operation_id} --not-executed`"
    )
    return Change(
        row, _ALLOWED, LedgerEvent.SETTLEMENT_REFUSED, last_error=why, failures=1, reason_code=REFUSED, report_id=report,
        report=report_body(row, report, "error", error=f"{system} refused, nothing was executed"),
    )  # fmt: skip


def handled_elsewhere(row: LedgerRow, *, who: str, reference: str, why: str) -> Change:
    """The event of a row that `who` handled elsewhere, under `reference`: DENIED, and its amount counts against its order."""
    return Change(
        row, _GUARDING, LedgerEvent.DENIED, decision="DENY", reason_code=HANDLED,
        last_error=f"{who} handled it elsewhere, under {reference}: {why}"[:500],
    )  # fmt: skip


def await_customer(row: LedgerRow, expires_at: datetime) -> Change:
    """The event of waiting for the customer until `expires_at`; an answer makes the row due earlier."""
    return Change(
        row, _GUARDING, LedgerEvent.AWAITING_CUSTOMER, reason_code="awaiting_customer",
        due_at=(expires_at + _OVER_BY).isoformat(), waiting_for="customer",
    )  # fmt: skip


def end_by_customer(row: LedgerRow, reason_code: str) -> Change:
    """The event of a row whose customer declined or never answered."""
    return Change(row, _GUARDING, LedgerEvent.CUSTOMER_ENDED, decision="DENY", reason_code=reason_code)


def after_defect(row: LedgerRow, why: str, retry_policy: RetryPolicy) -> Change | ReleaseLease:
    """The event of a run that failed for this row alone: it costs an attempt, and the last one ends it in ERROR.

    A row that may be started only has its lease released; the next claim finds out its outcome.
    """
    if row.may_be_started:
        return after_unknown_outcome(row, why, retry_policy)
    if row.attempts + 1 >= retry_policy.max_attempts:
        return give_up(row, f"gave up after {counted(row.attempts + 1, 'attempt')}, the last: {why}")
    return put_back(row, why, retry_policy.pause_seconds(row.attempts), failures=1)


def let_go(row: LedgerRow, why: str) -> Change | ReleaseLease:
    """Free a row with which nothing is wrong (`HARMLESS`) at once, without counting an attempt.

    A row that may be started keeps its state; its lease is released.
    """
    return ReleaseLease(row, why, 0.0) if row.may_be_started else put_back(row, why, 0.0, failures=0)


def permit_instead_of_approval(row: LedgerRow, reason: str, retry_policy: RetryPolicy) -> Change:
    """Put the row back to NEW: the worker asked for an approval and got a permit without one, which is not used."""
    return put_back(
        row,
        f"{reason}: the authority allowed it without the approval that was requested",
        retry_policy.longest_seconds,
        failures=1,
    )


def attempts_exhausted(row: LedgerRow) -> str:
    """The error text of a row that has no attempts left."""
    doubt = _IN_DOUBT if row.may_be_started else ""
    return f"gave up after {counted(row.attempts, 'attempt')}, the last: {row.last_error or 'its worker ended'}{doubt}"


def after_doubt(row: LedgerRow, answer: GuardAnswer) -> ResolvedDoubt | None:
    """How the authority's answer to its own question resolves a row that ended in doubt; None if it stays in doubt.

    A success that contradicts a person's resolution stays in doubt until a person decides. An operation that was never
    started, and that no person is being asked about, cannot be started any more: the row is in ERROR, so no former
    holder can write an effect or an execution. That is believed only of the operation that the row has on record: an
    authority that decides the question anew has forgotten the operation, and its start with it. A row that never got an
    answer has no operation on record: its question enclosed the start, and it settles in the ledger, by its execution
    alone.
    """
    if was_not_executed(answer):
        said = f"a person said that it was not executed{_freed(row)}. To pay it, enter it again under another id"
        return ResolvedDoubt(False, _no_doubt(row, said))
    if (answer.status, answer.outcome, answer.resolution) == ("completed", "success", None):
        counts = " and counts against its order" if row.order_ref else ""
        return ResolvedDoubt(True, _no_doubt(row, f"it was executed, according to the authority{counts}"))
    if answer.status not in _UNSTARTED or not answer.replayed:
        return None
    if row.operation_id is not None and answer.operation_id != str(row.operation_id):
        return None
    if answer.reason_code == HANDLED:
        counts = ": it counts against its order" if row.order_ref else ""
        said = f"a person handled it elsewhere, and nothing was started here{counts}"
        return ResolvedDoubt(True, _no_doubt(row, said), never_started=True)
    return ResolvedDoubt(
        False, _no_doubt(row, f"it was never started, according to the authority{_freed(row)}"), never_started=True
    )


_UNSTARTED = ("allowed", "approved", "denied", "expired")


def _freed(row: LedgerRow) -> str:
    return ", and its amount is released to the order" if row.order_ref else ""


def _no_doubt(row: LedgerRow, said: str) -> str:
    """Return `said` with the row's earlier error text, less the part about the doubt and what to do about it."""
    before = (row.last_error or "").partition(_IN_DOUBT)[0].partition(_SAY_SO)[0]
    return f"{said}; it had ended with: {before}"[:500]


def put_back(row: LedgerRow, why: str, seconds: float, *, failures: int) -> Change:
    """The event that puts a row back to NEW, due after `seconds`."""
    return Change(row, _GUARDING, LedgerEvent.PUT_BACK, last_error=why[:500], failures=failures, due_in_seconds=seconds)


def give_up(row: LedgerRow, why: str, *, reason: str | None = None, in_doubt: bool = False) -> Change:
    """The event that ends a row in ERROR, for a person; `why` says what to look for. `in_doubt`: it may have been paid elsewhere."""
    return Change(
        row, _GUARDING, LedgerEvent.GAVE_UP, last_error=why[:500], failures=1, reason_code=reason, in_doubt=in_doubt
    )


def _allowed(row: LedgerRow, answer: GuardAnswer, permit_token: str | None) -> Change:
    return Change(
        row, _GUARDING, LedgerEvent.ALLOWED, decision=answer.decision, reason_code=answer.reason_code,
        operation_id=answer.operation_id, decision_event_id=answer.decision_event_id, proof_id=answer.proof_id,
        approval_id=answer.approval_id, permit_token=permit_token, start_id=str(row.own_start_id),
    )  # fmt: skip


def _waiting(row: LedgerRow, answer: GuardAnswer) -> Change:
    due_at = (answer.expires_at + _OVER_BY).isoformat() if answer.expires_at else "infinity"
    return Change(
        row, _GUARDING, LedgerEvent.APPROVAL_REQUIRED, decision=answer.decision, reason_code=answer.reason_code,
        operation_id=answer.operation_id, decision_event_id=answer.decision_event_id, proof_id=answer.proof_id,
        approval_id=answer.approval_id, due_at=due_at,
    )  # fmt: skip


def _final_reason(answer: GuardAnswer) -> str:
    return "approval_expired" if answer.status == "expired" else answer.reason_code
