"""The one table of a ledger row's states and events (`docs/CONTRACT.md` §6).

The database holds the same table (`refunds.transitions`) and refuses everything else; tests keep the two and the
committed drawing equal. Nothing leads out of ALLOWED into NEW except through a start that was surely refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class LedgerState(StrEnum):
    """Where a row stands."""

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
    """The authority gave a permit; permit and start id are stored before the start is asked."""
    APPROVAL_REQUIRED = "approval_required"
    """A person must decide first."""
    DENIED = "denied"
    """Refused for good."""
    PUT_BACK = "put_back"
    """No answer, or not now: back to waiting, until after a pause."""
    GAVE_UP = "gave_up"
    """No answer after all attempts, or an answer that only a person can sort out."""
    EXECUTED = "executed"
    """Execution row, state and report were written in one transaction."""
    START_REFUSED = "start_refused"
    """The start was refused, or not asked for because nothing could settle: surely nothing has happened."""
    SETTLEMENT_REFUSED = "settlement_refused"
    """The settlement system refused a started refund for good: surely nothing has happened, and the report that leaves it in
    doubt, for a person to say so, was written in the same transaction."""
    NOT_EXECUTED = "not_executed"
    """The start was refused for ever, because a person had said that it was not executed: surely nothing has happened."""
    AWAITING_CUSTOMER = "awaiting_customer"
    """The customer must confirm first."""
    CUSTOMER_ENDED = "customer_ended"
    """The customer declined, or let the time run out."""
    RETRIED = "retried"
    """A person had it tried again, with a reason; never where it may have been paid (`refunds.may_have_been_paid`)."""


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
"""Nothing happens to these any more."""
FAILED = frozenset({_S.ERROR})
"""Nothing happens to these by itself: a person reads why."""
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
