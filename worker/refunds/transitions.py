"""The event that an answer of the authority leads to: pure functions from a row and an answer to a change of the row.

Not a decision on money: only a well-formed permission leads to ALLOWED; every doubt leads back to NEW or to a person. A
failure outside costs a row only time: it is retried without limit and without counting an attempt. Only a failure that is
surely about the row may end it; what the table does not name is outside.
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
from worker.outbound.effects import NoAnswer, Settled
from worker.outbound.guard_answers import key_conflict_text
from worker.refunds.rows import Change, LedgerEvent, LedgerRow, LedgerState, ReleaseLease, ResolvedDoubt, report_body


class FailureScope(StrEnum):
    """What a failure is about."""

    ROW = "row"
    OUTSIDE = "outside"


STATUSES: Mapping[int, FailureScope] = MappingProxyType(
    {
        400: FailureScope.ROW,  # the question itself is malformed, and asked again it is the same question
        409: FailureScope.ROW,  # the operation stands otherwise than the row assumes; still being decided comes as no answer
        410: FailureScope.ROW,  # its permit ran out before the start
        413: FailureScope.ROW,  # its own question is too large
        422: FailureScope.ROW,  # its key belongs to another operation
        401: FailureScope.OUTSIDE,  # the key is refused: replaced, over, or mistyped
        403: FailureScope.OUTSIDE,  # the key may not do this: scope, tenant, agent
        404: FailureScope.OUTSIDE,  # not the authority's answer to a business call: another server listens there
        405: FailureScope.OUTSIDE,
        429: FailureScope.OUTSIDE,  # too many calls
        503: FailureScope.OUTSIDE,  # the authority cannot record a decision now
    }
)
"""By status of an answer. What is not here, of any class, is about the outside."""

CODES: Mapping[str, FailureScope] = MappingProxyType({"permit-refused": FailureScope.ROW})
"""By the problem's code, before its status: a 403 that is about one permit and not about the key."""


def failure_scope(failure: Unreachable | Rejected) -> FailureScope:
    """What a failed call was about; no answer at all is never about the row."""
    if isinstance(failure, Unreachable):
        return FailureScope.OUTSIDE
    return CODES.get(failure.code) or STATUSES.get(failure.status, FailureScope.OUTSIDE)


def is_outside(answer: object) -> TypeGuard[Unreachable | Rejected]:
    """Whether this is a failure that says nothing about the row; a real answer is none."""
    return isinstance(answer, Unreachable | Rejected) and failure_scope(answer) is FailureScope.OUTSIDE


_KEY_IS_FULL = ("too-many-open-permits", "too-many-open-questions")
"""Codes of a 429 that leaves what needs no further permit, or no further person, its answer."""


def is_refused_alone(answer: Unreachable | Rejected) -> bool:
    """Whether the authority answered, and refuses just this to this key: it says nothing about whether others get an answer."""
    if isinstance(answer, Unreachable):
        return answer.code in _KEY_IS_FULL
    return answer.status == 403


_GUARDING, _ALLOWED = LedgerState.GUARDING, LedgerState.ALLOWED
_OVER_BY = timedelta(seconds=1)
"""A pending approval is asked about again this long after it ran out."""

ENDED = "the worker ended"
"""Why a row was let go although nothing was wrong with it."""

COUNTED_FIRST = "another refund of its order was counted first"
"""Why a row is put back whose permission was not taken, where nothing stands in its way by now."""
HARMLESS = frozenset({ENDED, COUNTED_FIRST})
"""Why a row was put back with which nothing went wrong."""

REFUSED = "settlement_refused"
"""The reason of a row whose settlement was refused for good."""

STARTED_ELSEWHERE = "started_elsewhere"
"""The reason of a row whose operation was started, and not under its own start id: it may have been paid."""
START_FORGOTTEN = "start_forgotten"
"""The reason of a row that was begun outside, and of which the authority knows no start: it may have been paid."""
START_UNCONFIRMED = "start_unconfirmed"
"""The reason of a row whose own start is on record, and refused when it is asked for again: it may have been paid."""
EXECUTED_ELSEWHERE = "executed_elsewhere"
"""The reason of a row whose start is on record as executed, mostly by a person's decision, and that has no execution here."""
RESOLVED = "resolved-not-executed"
"""The code of a start that is refused because a person said that it was not executed."""

NOT_EXECUTED = "not_executed"
"""The reason of a row about which a person said so, before it was."""
HANDLED = "handled_by_person"
"""The reason of a row that a person handled elsewhere."""
_NEVER_PAID = (
    "a person said that this refund was not executed, before it was; nothing was paid. To pay it, enter it anew"
)

_EXECUTED = "it was executed, says the authority: a person said so, or a report that this ledger does not have. Nothing more of it is tried"
_ENTER_ANEW = "to pay this refund, enter it under another ledger entry id"
_IN_DOUBT = "; it may have been started: see `sentinel in-doubt list`"
_NEVER_STARTED = (LedgerEvent.APPROVAL_REQUIRED, LedgerEvent.DENIED)
_FORGOTTEN = (
    "it was begun in an outside system, and the authority knows of no start of it, as after a restore: it may have been paid."
    " Look there what came of it"
)
_SAY_SO = "; an administrator says so: "


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long and how often to try: pauses double from the first to the longest, each with jitter."""

    max_attempts: int
    first_seconds: float
    longest_seconds: float
    random: Random

    def pause_seconds(self, failures: int, at_least: float = 0.0) -> float:
        """The pause after so many failures (0 is the first), between half and the whole of its nominal length."""
        nominal = min(self.longest_seconds, self.first_seconds * 2.0 ** min(failures, 30))
        return max(nominal * self.random.uniform(0.5, 1.0), min(at_least, self.longest_seconds))


def was_started_before(answer: GuardAnswer) -> bool:
    """Whether the authority says that the operation was started, or resolved as not executed, before this answer.

    Then a start under the row's own start id is asked for all the same: its receipt tells whether the start was this row's.
    """
    return answer.status == "already_started" or was_not_executed(answer)


def was_not_executed(answer: GuardAnswer) -> bool:
    """Whether a person's "not executed" is what was said last. Beside a success that was reported after it, nobody has decided yet."""
    return answer.resolution == NOT_EXECUTED and answer.outcome != "success"


def after_guard(row: LedgerRow, answer: GuardAnswer, retry_policy: RetryPolicy) -> Change:
    """The event that a guard's answer means for its row."""
    change = _meaning(row, answer, retry_policy)
    if row.is_begun_outside and change.event in _NEVER_STARTED and change.reason_code != HANDLED:
        return give_up(row, _FORGOTTEN, reason=START_FORGOTTEN, in_doubt=True)
    if change.event is LedgerEvent.ALLOWED or answer.status in ("already_started", "completed"):
        return change
    # What is recorded so was never started.
    return replace(change, not_started=row.permit_token is None)


def _meaning(row: LedgerRow, answer: GuardAnswer, retry_policy: RetryPolicy) -> Change:
    match answer.status:
        case "allowed" | "approved":
            return _allowed(row, answer, answer.permit_token)
        case "already_started" | "completed" if was_started_before(answer) and _is_own_start(row, answer):
            # Our own start, whose receipt was lost with its holder: the stored start id gets the recorded receipt, or the
            # refusal after which nothing may happen any more.
            return _allowed(row, answer, row.permit_token)
        case "already_started" | "completed" if was_not_executed(answer):
            # Without a permission on record nothing was settled for it here, whoever started it; and a person says the same.
            return replace(give_up(row, _NEVER_PAID, reason=NOT_EXECUTED), not_started=True)
        case "completed" if _is_own_start(row, answer) and (answer.outcome, answer.resolution) == ("success", None):
            # Its success is reported once its execution is written, and there is none: somebody else said so, and it is known to be paid.
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
            # Decided before the halt: refused now, not for ever. The authority's record says so, for the answer may have been lost.
            return put_back(row, "halted", retry_policy.longest_seconds, failures=0)
        case _:
            return Change(
                row, _GUARDING, LedgerEvent.DENIED, decision=answer.decision, reason_code=_final_reason(answer),
                operation_id=answer.operation_id, decision_event_id=answer.decision_event_id, proof_id=answer.proof_id,
                approval_id=answer.approval_id,
            )  # fmt: skip


def _is_own_start(row: LedgerRow, answer: GuardAnswer) -> bool:
    """Whether the start on record may be the row's own: its permission is on record here, or its start id got the receipt."""
    return row.start_id is not None and (row.permit_token is not None or answer.start is not None)


def after_no_answer(row: LedgerRow, error: Unreachable | Rejected, retry_policy: RetryPolicy) -> Change | ReleaseLease:
    """No usable answer to a guard. What says nothing about the row costs it only time; else a person must look."""
    if isinstance(error, KeyConflict):
        return give_up(row, f"key_conflict: {key_conflict_text(error, _ENTER_ANEW)}")
    if isinstance(error, Rejected) and error.code == RESOLVED:
        return replace(give_up(row, _NEVER_PAID, reason=NOT_EXECUTED), not_started=True)
    if failure_scope(error) is FailureScope.ROW:
        return give_up(row, f"rejected_by_authority: {error.detail}")
    wait = (error.retry_after_seconds if isinstance(error, Unreachable) else None) or 0.0
    return postpone(row, error.detail, retry_policy, at_least=wait)


def nothing_started(row: LedgerRow, event: Change | ReleaseLease) -> Change | ReleaseLease:
    """The event, marked as not started where it is known that nothing was started under the row's start id."""
    if isinstance(event, ReleaseLease) or row.may_be_started:
        return event
    return replace(event, not_started=True)


def surely_not_started(error: Unreachable | Rejected) -> bool:
    """Whether a question that enclosed its start, and failed so, surely started nothing: each try was refused, or not received."""
    return not error.may_have_arrived


def postpone(row: LedgerRow, why: str, retry_policy: RetryPolicy, *, at_least: float = 0.0) -> Change | ReleaseLease:
    """Retry later without counting an attempt; pauses grow with the waits in a row."""
    pause = retry_policy.pause_seconds(row.waits, at_least)
    if row.may_be_started:
        # It stays held, and is taken again, but it does not become NEW.
        return ReleaseLease(row, why, pause, outside=True)
    return replace(put_back(row, why, pause, failures=0), outside=True)


def after_start_refused(
    row: LedgerRow, refused: Rejected, retry_policy: RetryPolicy, *, was_started: bool
) -> tuple[Change, Change]:
    """The authority refused this start itself, so surely nothing happened under its id: back, or to a person.

    With `was_started` its record has the row's own start, and refuses it for what it is asked with, as a permit that a secret of before
    signed: then it may have been paid, as what was begun outside. A start that was refused for something outside (`failure_scope`) is
    `after_unknown_outcome`: an earlier one may have begun.
    """
    back = start_refused(row, refused.detail)
    if refused.code == "already-started":
        return back, give_up(row, f"{STARTED_ELSEWHERE}: {refused.detail}", reason=STARTED_ELSEWHERE, in_doubt=True)
    if was_started or row.is_begun_outside:
        why = f"{START_UNCONFIRMED}: it was started, and the start is refused when it is asked for again: {refused.detail}"
        return back, give_up(row, why, reason=START_UNCONFIRMED, in_doubt=True)
    if refused.status in (400, 422):
        return back, give_up(row, f"rejected_by_authority: {refused.detail}")
    if row.attempts + 1 >= retry_policy.max_attempts:
        return back, give_up(row, f"start refused {row.attempts + 1} times: {refused.detail}")
    return back, put_back(row, refused.detail, retry_policy.pause_seconds(row.attempts), failures=1)


def start_refused(row: LedgerRow, why: str) -> Change:
    """The event of a start that the authority refused: nothing happened under it."""
    return Change(row, _ALLOWED, LedgerEvent.START_REFUSED, last_error=why[:500])


def after_not_executed(row: LedgerRow) -> Change:
    """A person said "not executed", and nothing was: the row ends, and its budget is free."""
    return Change(row, _ALLOWED, LedgerEvent.NOT_EXECUTED, last_error=_NEVER_PAID, failures=1, reason_code=NOT_EXECUTED)


def after_not_executed_left(row: LedgerRow, what: str) -> Change:
    """A person said "not executed", and no money was paid; what else was done of it stays, for a person. The budget is free."""
    why = f"a person said that this refund was not executed: no money was paid, but {what}. Take it back there by hand"
    return replace(after_not_executed(row), last_error=why[:500])


def after_not_executed_but(row: LedgerRow, found: Settled, *, system: str) -> Change:
    """A person said "not executed", but the settlement system did it: for a person, and nothing is freed.

    That it was done is reported: the authority then has it in doubt again and halts this action of this agent.
    """
    report = uuid.uuid4()
    why = f"resolved as not executed, but {system} did it: {found.reference}. The authority is told"
    return replace(
        give_up(row, why, reason=NOT_EXECUTED, in_doubt=True), report_id=report,
        report=report_body(row, report, "success", result={"system": system, "reference": found.reference}),
    )  # fmt: skip


def without_name(detail: str, system: str) -> str:
    """What a settlement system answered, without its name: where a row has several effects each answer begins with it."""
    return detail.removeprefix(f"{system}: ")


def after_not_executed_unseen(
    row: LedgerRow, found: NoAnswer, retry_policy: RetryPolicy, *, system: str
) -> ReleaseLease:
    """A person said "not executed", and the settlement system does not say: nothing is freed, and it is looked at again until it does."""
    why = f"resolved as not executed, but {system} may have done it: {without_name(found.detail, system)}"
    return after_unknown_outcome(row, why, retry_policy)


def after_unknown_outcome(row: LedgerRow, detail: str, retry_policy: RetryPolicy) -> ReleaseLease:
    """A start or settlement whose outcome is unknown: release the lease, and find out with the same ids."""
    return ReleaseLease(row, detail, retry_policy.pause_seconds(row.waits), outside=True)


def after_settlement_refused(row: LedgerRow, operation_id: str | None, *, system: str, reason: str) -> Change:
    """Its settlement system refused a started refund for good: ERROR at once, and a report that leaves it in doubt.

    Nothing happened, but what an agent says frees no budget: a person reads the refusal here and says so to the authority.
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
    """The event of a row that a person handled elsewhere, as who says so: denied to the machine, and it counts against its order."""
    return Change(
        row, _GUARDING, LedgerEvent.DENIED, decision="DENY", reason_code=HANDLED,
        last_error=f"{who} handled it elsewhere, under {reference}: {why}"[:500],
    )  # fmt: skip


def await_customer(row: LedgerRow, expires_at: datetime) -> Change:
    """The event of waiting for the customer until a moment; an answer makes the row due earlier."""
    return Change(
        row, _GUARDING, LedgerEvent.AWAITING_CUSTOMER, reason_code="awaiting_customer",
        due_at=(expires_at + _OVER_BY).isoformat(), waiting_for="customer",
    )  # fmt: skip


def end_by_customer(row: LedgerRow, reason_code: str) -> Change:
    """The event of a row whose customer declined or never answered."""
    return Change(row, _GUARDING, LedgerEvent.CUSTOMER_ENDED, decision="DENY", reason_code=reason_code)


def after_defect(row: LedgerRow, why: str, retry_policy: RetryPolicy) -> Change | ReleaseLease:
    """A run failed for this row alone. It costs an attempt, and the last one ends it; what may be started is found out later instead."""
    if row.may_be_started:
        return after_unknown_outcome(row, why, retry_policy)
    if row.attempts + 1 >= retry_policy.max_attempts:
        return give_up(row, f"gave up after {row.attempts + 1} attempts, the last: {why}")
    return put_back(row, why, retry_policy.pause_seconds(row.attempts), failures=1)


def let_go(row: LedgerRow, why: str) -> Change | ReleaseLease:
    """Nothing is wrong with the row (`HARMLESS`): it is free at once and no attempt is counted. What may have started stays claimed."""
    return ReleaseLease(row, why, 0.0) if row.may_be_started else put_back(row, why, 0.0, failures=0)


def permit_instead_of_approval(row: LedgerRow, reason: str, retry_policy: RetryPolicy) -> Change:
    """Back to NEW: a person was asked for, and the authority gave a permit without one, which is not used."""
    return put_back(row, f"{reason}: the authority put nobody in charge", retry_policy.longest_seconds, failures=1)


def attempts_exhausted(row: LedgerRow) -> str:
    """The error text of a row that has no attempts left."""
    doubt = _IN_DOUBT if row.may_be_started else ""
    return f"gave up after {row.attempts} attempts, the last: {row.last_error or 'its worker ended'}{doubt}"


def after_doubt(row: LedgerRow, answer: GuardAnswer) -> ResolvedDoubt | None:
    """What the answer to a row's own question says of it, where the row ended in doubt; None where it stays there.

    Where a success contradicts a person's decision, a person says. What was never started, and which no person is asked about, nothing can
    start any more: the row is in ERROR, and whoever held it before may write down no effect and no execution. Only the operation that the
    row knows says so: one that is decided anew was forgotten, and the start with it. A row that never got an answer knows none: its question
    enclosed the start, which is settled in the ledger, by its execution alone.
    """
    if was_not_executed(answer):
        said = f"a person said that it was not executed{_freed(row)}. To pay it, enter it anew"
        return ResolvedDoubt(False, _no_doubt(row, said))
    if (answer.status, answer.outcome, answer.resolution) == ("completed", "success", None):
        counts = " and counts against its order" if row.order_ref else ""
        return ResolvedDoubt(True, _no_doubt(row, f"it was executed, says the authority{counts}"))
    if answer.status not in _UNSTARTED or not answer.replayed:
        return None
    if row.operation_id is not None and answer.operation_id != str(row.operation_id):
        return None
    if answer.reason_code == HANDLED:
        counts = ": it counts against its order" if row.order_ref else ""
        said = f"a person handled it elsewhere, and nothing was started here{counts}"
        return ResolvedDoubt(True, _no_doubt(row, said), never_started=True)
    return ResolvedDoubt(
        False, _no_doubt(row, f"nothing was ever started, says the authority{_freed(row)}"), never_started=True
    )


_UNSTARTED = ("allowed", "approved", "denied", "expired")


def _freed(row: LedgerRow) -> str:
    return ", and the order has its amount back" if row.order_ref else ""


def _no_doubt(row: LedgerRow, said: str) -> str:
    """What was said before, without the doubt and what to do about it."""
    before = (row.last_error or "").partition(_IN_DOUBT)[0].partition(_SAY_SO)[0]
    return f"{said}; it had ended with: {before}"[:500]


def put_back(row: LedgerRow, why: str, seconds: float, *, failures: int) -> Change:
    """The event that puts a row back to NEW, due after `seconds`."""
    return Change(row, _GUARDING, LedgerEvent.PUT_BACK, last_error=why[:500], failures=failures, due_in_seconds=seconds)


def give_up(row: LedgerRow, why: str, *, reason: str | None = None, in_doubt: bool = False) -> Change:
    """ERROR, for a person; `why` says what to look for. `in_doubt`: it may have been paid elsewhere."""
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
