"""A ledger row's states and events, and the values that the worker's parts exchange: rows, facts, changes.

The states and events are one table (`docs/CONTRACT.md` §6). The database holds the same (`refunds.transitions`) and refuses
everything else; tests keep the two and the committed drawing equal. Nothing leads out of ALLOWED into NEW except through a
start that was surely refused.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import orjson
from msgspec import Struct

from sentinel.core.money import Money

# States and events.


class LedgerState(StrEnum):
    """The state of a row."""

    NEW = "NEW"
    GUARDING = "GUARDING"
    ALLOWED = "ALLOWED"
    APPROVAL_REQUIRED = "APPROVAL_REQUIRED"
    DENIED = "DENIED"
    EXECUTED = "EXECUTED"
    ERROR = "ERROR"


class LedgerEvent(StrEnum):
    """What happened to a row."""

    CLAIMED = "claimed"
    """A worker took a free row: new epoch, new lease."""
    RECLAIMED = "reclaimed"
    """A worker claimed a row whose lease had expired: the former holder's epoch is void."""
    ALLOWED = "allowed"
    """The authority gave a permit; permit and start id are stored before the start is asked for."""
    APPROVAL_REQUIRED = "approval_required"
    """A person must decide first."""
    DENIED = "denied"
    """Refused for good."""
    PUT_BACK = "put_back"
    """No answer, or not possible now: back to NEW, due again after a pause."""
    GAVE_UP = "gave_up"
    """No answer after all attempts, or an answer that only a person can sort out."""
    EXECUTED = "executed"
    """Execution row, state and report were written in one transaction."""
    START_REFUSED = "start_refused"
    """The start was refused, or not asked for because nothing could settle: surely nothing has happened."""
    SETTLEMENT_REFUSED = "settlement_refused"
    """The settlement system refused a started refund for good: surely nothing has happened. The report that leaves the
    operation in doubt, for a person to resolve, was written in the same transaction."""
    NOT_EXECUTED = "not_executed"
    """The start was refused for good, because a person resolved the operation as not executed: surely no money was paid."""
    AWAITING_CUSTOMER = "awaiting_customer"
    """The customer must confirm first."""
    CUSTOMER_ENDED = "customer_ended"
    """The customer declined, or let the time run out."""
    RETRIED = "retried"
    """A person put the row back to NEW, with a reason; refused if it may have been paid or never can be (`refunds.may_have_been_paid`)."""


_S, _E = LedgerState, LedgerEvent

TRANSITIONS: Mapping[tuple[LedgerState, LedgerEvent], LedgerState] = MappingProxyType(
    {
        (_S.NEW, _E.CLAIMED): _S.GUARDING,
        (_S.APPROVAL_REQUIRED, _E.CLAIMED): _S.GUARDING,
        (_S.GUARDING, _E.RECLAIMED): _S.GUARDING,
        (_S.ALLOWED, _E.RECLAIMED): _S.GUARDING,
        (_S.GUARDING, _E.ALLOWED): _S.ALLOWED,
        (_S.GUARDING, _E.APPROVAL_REQUIRED): _S.APPROVAL_REQUIRED,
        (_S.GUARDING, _E.DENIED): _S.DENIED,
        (_S.GUARDING, _E.PUT_BACK): _S.NEW,
        (_S.GUARDING, _E.GAVE_UP): _S.ERROR,
        (_S.GUARDING, _E.AWAITING_CUSTOMER): _S.APPROVAL_REQUIRED,
        (_S.GUARDING, _E.CUSTOMER_ENDED): _S.DENIED,
        (_S.ALLOWED, _E.EXECUTED): _S.EXECUTED,
        (_S.ALLOWED, _E.START_REFUSED): _S.GUARDING,
        (_S.ALLOWED, _E.SETTLEMENT_REFUSED): _S.ERROR,
        (_S.ERROR, _E.RETRIED): _S.NEW,
        (_S.ALLOWED, _E.NOT_EXECUTED): _S.ERROR,
    }
)
TERMINAL = frozenset({_S.EXECUTED, _S.DENIED})
"""Final states: nothing happens to a row in these any more."""
FAILED = frozenset({_S.ERROR})
"""A row in these stays until a person acts."""
WAITING = frozenset({_S.APPROVAL_REQUIRED})
"""These wait for a person or a customer."""
CLAIMED = frozenset({_S.GUARDING, _S.ALLOWED})
"""A worker holds these, by lease and epoch."""


class NoSuchTransition(Exception):
    """This event cannot happen in this state."""


def after(state: LedgerState, event: LedgerEvent) -> LedgerState:
    """The state that `event` leads to. Raises `NoSuchTransition`."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise NoSuchTransition(f"nothing leads from {state} by {event}") from None


# Rows.

RISK_CLASS = "standard"

DEFAULT_AGENT = "retail-refund-agent"
"""The agent of a row that names none."""

_START_IDS = uuid.UUID("5f3f6a0e-9d0b-5c43-8a52-6d1f4f0c7b29")
"""The UUID namespace of start ids. Never change it: settlement systems know every effect by an id derived from it."""


class FixedQuestion(Struct, frozen=True):
    """The question about a row, the same from its first guard to its last report: with other params or another action
    it would be another operation. `action` is None if the question was stored by a release that kept only the
    params."""

    params: Mapping[str, Any]
    action: str | None = None

    @classmethod
    def read(cls, text: str) -> FixedQuestion:
        """Parse `guard_request`: {action, params}, or the params alone."""
        found: Mapping[str, Any] = orjson.loads(text)
        # Params always have an amount, {action, params} has none.
        return cls(found) if "amount" in found else cls(found["params"], found["action"])

    def as_json(self) -> dict[str, Any]:
        """The form in which it is stored in `guard_request`."""
        return {"action": self.action, "params": self.params}


class LedgerRow(Struct, frozen=True, gc=False):
    """A ledger row as its holder sees it; `claim_epoch` is the holder's fencing token. The customer's text is not in it."""

    tenant_id: uuid.UUID
    ledger_entry_id: str
    refund_id: str
    agent_id: str
    action: str
    amount_minor: int
    currency: str
    idempotency_key: str
    channel: str
    scenario: str
    mode: str | None
    account_ref: str | None
    order_ref: str | None
    claim_epoch: int
    attempts: int
    guard_request: str | None
    operation_id: uuid.UUID | None
    decision_event_id: uuid.UUID | None
    decision: str | None
    reason_code: str | None
    permit_token: str | None
    start_id: uuid.UUID | None
    last_error: str | None
    source: str = ""
    """The shop that `order_ref` is an order of; "" where none is named."""
    waits: int = 0
    """Consecutive attempts that failed because of something outside; `attempts` counts those that failed because of the row."""
    may_be_started: bool = False
    """Whether a start may be on record under `start_id`."""
    is_begun_outside: bool = False
    """Whether an effect was begun for it in an outside system and is not known to be refused or compensated."""

    @property
    def own_start_id(self) -> uuid.UUID:
        """The row's only start id: stored, or to be stored and derived from the tenant and the idempotency key.

        Settlement systems know the row's effect by it. Because it is derived, it is the same after the database was
        restored from a backup older than the start.
        """
        return self.start_id or uuid.uuid5(_START_IDS, f"{self.tenant_id}/{self.idempotency_key}")

    @property
    def failed_before(self) -> bool:
        """Whether an earlier attempt failed or was put off."""
        return self.attempts > 0 or self.waits > 0

    @property
    def money(self) -> Money:
        """The amount asked for."""
        return Money(self.amount_minor, self.currency)

    @property
    def resource(self) -> str:
        """What the operation is about, as the authority names it."""
        return f"refund/{self.refund_id}"

    @property
    def asked(self) -> FixedQuestion | None:
        """The question as it was fixed before it was first asked; None until then."""
        return None if self.guard_request is None else FixedQuestion.read(self.guard_request)


class KnownFacts(Struct, frozen=True, gc=False):
    """What the ledger and the orders say about a row; None where they cannot know. `risk` is JSON text as handed in.

    `order_budget` says whether the order's budget has room for the row's amount, None if the row names no order. It is
    an early check only: the amount is taken from the budget when the permission is recorded. `order` is the order as
    JSON text, or None when the ledger has none; `request_age_seconds` is from its delivery (or purchase) to the
    request. `reason` and `contact` are the customer's: they leave this process only where the customer sent them.
    """

    ledger_entry_id: str
    risk: str
    reason: str | None
    account_ref: str | None
    refund_seen: bool
    order_budget: Literal["enough", "exceeded", "unknown", "other_currency"] | None
    same_text_accounts: int
    open_complaint: bool = False
    delayed_shipment: bool = False
    account_mismatch: bool = False
    blacklisted: bool = False
    refunded_before: bool = False
    order: str | None = None
    request_age_seconds: float | None = None
    images: int = 0
    language: str | None = None
    contact: str | None = None
    escalation: str | None = None
    """Why the row was filed for a person."""
    derived: str = "{}"
    """JSON text of the risk facts that the query computes from the ledger (`risk_facts.RISK_FACTS`); null where it cannot know."""
    refunded_under_another_budget: bool = False
    """Whether an analyst filed the row, and an order of the same id was, or may yet be, refunded without a source or in another channel."""


class Change(Struct, frozen=True):
    """One event on one row, applied only in `from_state` and in this epoch. None leaves a column as it is.

    `due_at` is RFC 3339 text or "infinity"; `due_in_seconds` counts from the database's now.
    """

    row: LedgerRow
    from_state: LedgerState
    event: LedgerEvent
    decision: str | None = None
    reason_code: str | None = None
    operation_id: str | None = None
    decision_event_id: str | None = None
    proof_id: str | None = None
    approval_id: str | None = None
    permit_token: str | None = None
    start_id: str | None = None
    takes_order: bool = False
    """Applied only if no other row has taken the order; this row then has it, unless it ends without a payment."""
    unknown_lifted: bool = False
    """A person approved it although what was paid for the order is unknown."""
    in_doubt: bool = False
    """The event ends the row, and the amount may have been paid."""
    not_started: bool = False
    """Nothing is started under the row's start id; the row's time to act is cleared."""
    last_error: str | None = None
    failures: int = 0
    outside: bool = False
    """Whether the row waits for something outside, which says nothing about the row: counted in `waits`, and never ends the row."""
    due_at: str | None = None
    due_in_seconds: float | None = None
    waiting_for: str | None = None
    report_id: uuid.UUID | None = None
    report: Mapping[str, Any] | None = None
    """The report to the authority, put into the outbox by the same statement."""
    steps: Sequence[Mapping[str, Any]] | None = None

    @property
    def to_state(self) -> LedgerState:
        """The state that the event leads to. Raises `NoSuchTransition` if it cannot happen in `from_state`, which is a defect."""
        return after(self.from_state, self.event)

    def as_json(self) -> dict[str, Any]:
        """One element of APPLY_CHANGES' batch."""
        return {
            "ledger_entry_id": self.row.ledger_entry_id, "epoch": self.row.claim_epoch, "from_status": self.from_state,
            "event": self.event, "to_status": self.to_state, "decision": self.decision, "reason_code": self.reason_code,
            "operation_id": self.operation_id, "decision_event_id": self.decision_event_id, "proof_id": self.proof_id,
            "approval_id": self.approval_id, "permit_token": self.permit_token, "start_id": self.start_id,
            "takes_order": self.takes_order, "unknown_lifted": self.unknown_lifted, "in_doubt": self.in_doubt,
            "not_started": self.not_started,
            "last_error": self.last_error, "failures": self.failures, "outside": self.outside, "due_at": self.due_at,
            "due_in_seconds": self.due_in_seconds, "waiting_for": self.waiting_for, "report_id": self.report_id,
            "report": self.report, "steps": self.steps,
        }  # fmt: skip


class ReleaseLease(Struct, frozen=True):
    """Release a row's lease without an event: it is claimed again after `due_in_seconds`, and asked about again."""

    row: LedgerRow
    last_error: str
    due_in_seconds: float
    outside: bool = False
    steps: Sequence[Mapping[str, Any]] | None = None

    def as_json(self) -> dict[str, Any]:
        """One element of RELEASE_LEASES' batch."""
        return {
            "ledger_entry_id": self.row.ledger_entry_id, "epoch": self.row.claim_epoch, "last_error": self.last_error,
            "due_in_seconds": self.due_in_seconds, "outside": self.outside, "steps": self.steps,
        }  # fmt: skip


class ResolvedDoubt(Struct, frozen=True):
    """How the authority's answer resolves a row that ended in doubt.

    `executed`: the amount counts against the row's order, if it names one, as handled by somebody else.
    """

    executed: bool
    last_error: str
    """The row's error text from then on."""
    never_started: bool = False
    """No person resolved it; the authority has no start on record. An authority that lost its records says the same."""

    def as_json(self, row_id: str) -> dict[str, Any]:
        """One element of the batch for `refunds.resolve_budget_doubts`."""
        return {
            "ledger_entry_id": row_id, "executed": self.executed, "never_started": self.never_started, "last_error": self.last_error,
        }  # fmt: skip


def report_body(
    row: LedgerRow, report_id: uuid.UUID, outcome: Literal["success", "error"], **told: Any
) -> dict[str, Any]:
    """The body of a report to the authority; `told` is `result` or `error`.

    It names the guarded operation, so that no other can match. The authority recognises a repeated report by its
    content; people recognise it by its id.
    """
    return {
        "idempotency_key": row.idempotency_key, "action": row.action, "agent_id": row.agent_id, "outcome": outcome, **told,
        "resource": row.resource, "risk_class": RISK_CLASS, "report_id": str(report_id),
    }  # fmt: skip


class Report(Struct, frozen=True):
    """One report to the authority, from the outbox; the same at every try."""

    outbox_id: uuid.UUID
    ledger_entry_id: str
    payload: Mapping[str, Any]
    attempts: int

    @classmethod
    def just_written(cls, row: LedgerRow, report_id: uuid.UUID, body: Mapping[str, Any]) -> Report:
        """A report that was written into the outbox just now, to be sent at once."""
        return cls(report_id, row.ledger_entry_id, body, 1)


class ParkedReport(Struct, frozen=True):
    """A report that the authority refused for good, and that waits for a person. `status` is its row's, None where there is none."""

    outbox_id: uuid.UUID
    ledger_entry_id: str
    outcome: str
    attempts: int
    last_error: str | None
    created_at: datetime
    status: str | None


class Execution(Struct, frozen=True):
    """An execution to be written: the row, its start and the report to be sent."""

    row: LedgerRow
    execution_id: uuid.UUID
    start_event_id: str
    system: str
    report_id: uuid.UUID
    report: Mapping[str, Any]
    steps: Sequence[Mapping[str, Any]] | None = None
    permission: Change | None = None
    """The permission that came with its start and is recorded with the execution; None if ALLOWED was recorded before."""

    def as_json(self) -> dict[str, Any]:
        """One element of RECORD_EXECUTIONS' batch."""
        found: dict[str, Any] = {
            "ledger_entry_id": self.row.ledger_entry_id, "epoch": self.row.claim_epoch,
            "execution_id": self.execution_id, "start_event_id": self.start_event_id, "system": self.system,
            "report_id": self.report_id, "report": self.report, "steps": self.steps,
        }  # fmt: skip
        if (permission := self.permission) is not None:
            found |= {
                "start_id": self.row.start_id, "decision": permission.decision, "reason_code": permission.reason_code,
                "operation_id": permission.operation_id, "decision_event_id": permission.decision_event_id,
                "proof_id": permission.proof_id, "approval_id": permission.approval_id,
            }  # fmt: skip
        return found


@dataclass(frozen=True, slots=True)
class NewRow:
    """A refund request to be entered; amounts in minor units. `requested_at` None means now."""

    ledger_entry_id: str
    refund_id: str
    amount_minor: int
    currency: str
    agent_id: str = DEFAULT_AGENT
    action: str = "refund.create"
    channel: str = "retail"
    scenario: str = "standard"
    account_ref: str | None = None
    order_ref: str | None = None
    source: str = ""
    """The shop that `order_ref` is an order of; "" where none is named."""
    requested_at: datetime | None = None
    reason: str | None = None
    risk: Mapping[str, Any] | None = None
    mode: str | None = None
    language: str | None = None
    contact: str | None = None


class OrderKey(NamedTuple):
    """Which order, within a tenant; `source` is "" where no shop is named."""

    channel: str
    source: str
    order_ref: str

    def __str__(self) -> str:
        return "/".join(filter(None, self))


@dataclass(frozen=True, slots=True)
class OrderFacts:
    """What is known of an order; amounts in minor units of `currency`, None where the shop did not say.

    `item_paid_minor` and `price_now_minor` are about the item in question; `note` is free text.
    """

    order_ref: str
    ordered_at: datetime
    paid_minor: int
    currency: str
    account_ref: str | None = None
    channel: str = "retail"
    delivered_at: datetime | None = None
    shipping_fee_minor: int | None = None
    item_paid_minor: int | None = None
    price_now_minor: int | None = None
    note: str | None = None
    source: str = ""
    payment_ref: str | None = None
    """A settlement system's id of the payment with which the order was paid."""


@dataclass(frozen=True, slots=True)
class KeptImage:
    """A proof image as kept, without its bytes; `recognised` is JSON text of what was read in it, None until then."""

    ledger_entry_id: str
    sha256: str
    media_type: str
    recognised: str | None


@dataclass(frozen=True, slots=True)
class SummaryLine:
    """Count and sum of the entries with one status, decision, reason and currency."""

    status: str
    decision: str | None
    reason_code: str | None
    currency: str
    entries: int
    amount_minor: int


@dataclass(frozen=True, slots=True)
class UntakenRows:
    """The number of due rows of an agent that no worker takes."""

    agent_id: str
    entries: int


@dataclass(frozen=True, slots=True)
class WithoutAccount:
    """How many entries of one currency name no account, and how much they ask for."""

    currency: str
    entries: int
    amount_minor: int


@dataclass(frozen=True, slots=True)
class LedgerFigures:
    """The ledger's gauges at a scrape: counts, and in `lag_seconds` how long the longest due row has been due."""

    due: int
    lag_seconds: float
    waiting: int
    put_off: int
    held: int
    lapsed: int
    errors: int
    outbox_open: int
    outbox_parked: int
    settlement_findings: int
    """Of the last 24 hours (`settlement/stripe_events.py`)."""


@dataclass(frozen=True, slots=True)
class OpenCounts:
    """Counts of unfinished rows: due now, paused after a failure, waiting for a person, held by a claim; and of unacknowledged reports."""

    due: int
    paused: int
    waiting: int
    held: int
    unreported: int
    put_off: int
    """How many of these rows wait for something outside (`transitions.failure_scope`)."""
