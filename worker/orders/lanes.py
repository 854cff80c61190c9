"""The state machine of an order review: the one table of lanes, states and events.

The database holds the same table (`orders.transitions`) and refuses everything else; tests keep the two and the committed
drawing equal. From the high lane, and from a denial in any lane, nothing leads to FULFILLED.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from worker.orders.order import Lane, ReviewStatus


class LaneEvent(StrEnum):
    """What happened to a review."""

    SCORED = "scored"
    """Band, signals and what will be asked are stored, once and for all."""
    ALLOWED = "allowed"
    NEEDS_ANALYST = "needs_analyst"
    DENIED = "denied"
    STARTED = "started"
    """The authority has it as started, and the intended fulfilment is stored; from here the shop may be asked."""
    START_REFUSED = "start_refused"
    """The authority does not have it as started: surely nothing has happened, and it is asked again."""
    FULFILLED = "fulfilled"
    SHOP_REFUSED = "shop_refused"
    """The shop refused, or the operation was started elsewhere: back to a person."""
    RETRIED = "retried"
    """A person has the shop asked again, under the same operation and start."""
    QUEUED = "queued"
    HELD = "held"
    """A denied order, or an analyst's decision."""
    REJECTED = "rejected"
    """The approval was rejected or expired."""
    REFUND_FILED = "refund_filed"
    REFUND_REFUSED = "refund_refused"
    """The row that was filed was denied, or failed: back to a person."""


class LaneState(NamedTuple):
    """Where a review stands; the lane is None until the authority has decided."""

    lane: Lane | None
    status: ReviewStatus


_S, _E, _L = ReviewStatus, LaneEvent, Lane

TRANSITIONS: Mapping[tuple[LaneState, LaneEvent], LaneState] = MappingProxyType(
    {
        (LaneState(None, _S.RECEIVED), _E.SCORED): LaneState(None, _S.SCORED),
        (LaneState(None, _S.SCORED), _E.ALLOWED): LaneState(_L.LOW, _S.DECIDED),
        (LaneState(None, _S.SCORED), _E.NEEDS_ANALYST): LaneState(_L.MEDIUM, _S.DECIDED),
        (LaneState(None, _S.SCORED), _E.DENIED): LaneState(_L.HIGH, _S.DECIDED),
        # A permit that was not used in time is asked for again, and the authority may have become stricter.
        (LaneState(_L.LOW, _S.DECIDED), _E.NEEDS_ANALYST): LaneState(_L.MEDIUM, _S.DECIDED),
        (LaneState(_L.LOW, _S.DECIDED), _E.DENIED): LaneState(_L.HIGH, _S.DECIDED),
        (LaneState(_L.LOW, _S.DECIDED), _E.STARTED): LaneState(_L.LOW, _S.STARTED),
        (LaneState(_L.LOW, _S.STARTED), _E.START_REFUSED): LaneState(_L.LOW, _S.DECIDED),
        (LaneState(_L.LOW, _S.STARTED), _E.FULFILLED): LaneState(_L.LOW, _S.FULFILLED),
        (LaneState(_L.LOW, _S.STARTED), _E.SHOP_REFUSED): LaneState(_L.LOW, _S.SHOP_REFUSED),
        (LaneState(_L.LOW, _S.SHOP_REFUSED), _E.RETRIED): LaneState(_L.LOW, _S.STARTED),
        (LaneState(_L.LOW, _S.SHOP_REFUSED), _E.HELD): LaneState(_L.LOW, _S.HELD),
        (LaneState(_L.LOW, _S.SHOP_REFUSED), _E.REFUND_FILED): LaneState(_L.LOW, _S.REFUND_FILED),
        (LaneState(_L.MEDIUM, _S.DECIDED), _E.QUEUED): LaneState(_L.MEDIUM, _S.QUEUED),
        (LaneState(_L.MEDIUM, _S.QUEUED), _E.STARTED): LaneState(_L.MEDIUM, _S.STARTED),
        (LaneState(_L.MEDIUM, _S.STARTED), _E.START_REFUSED): LaneState(_L.MEDIUM, _S.QUEUED),
        (LaneState(_L.MEDIUM, _S.STARTED), _E.FULFILLED): LaneState(_L.MEDIUM, _S.FULFILLED),
        (LaneState(_L.MEDIUM, _S.STARTED), _E.SHOP_REFUSED): LaneState(_L.MEDIUM, _S.SHOP_REFUSED),
        (LaneState(_L.MEDIUM, _S.SHOP_REFUSED), _E.RETRIED): LaneState(_L.MEDIUM, _S.STARTED),
        (LaneState(_L.MEDIUM, _S.SHOP_REFUSED), _E.HELD): LaneState(_L.MEDIUM, _S.HELD),
        (LaneState(_L.MEDIUM, _S.SHOP_REFUSED), _E.REFUND_FILED): LaneState(_L.MEDIUM, _S.REFUND_FILED),
        (LaneState(_L.MEDIUM, _S.QUEUED), _E.HELD): LaneState(_L.MEDIUM, _S.HELD),
        (LaneState(_L.MEDIUM, _S.QUEUED), _E.REJECTED): LaneState(_L.MEDIUM, _S.HELD),
        (LaneState(_L.MEDIUM, _S.QUEUED), _E.REFUND_FILED): LaneState(_L.MEDIUM, _S.REFUND_FILED),
        (LaneState(_L.HIGH, _S.DECIDED), _E.HELD): LaneState(_L.HIGH, _S.HELD),
        # A refund is filed, not paid: what becomes of its row decides whether the order's way is over.
        (LaneState(_L.LOW, _S.REFUND_FILED), _E.REFUND_REFUSED): LaneState(_L.LOW, _S.REFUND_REFUSED),
        (LaneState(_L.LOW, _S.REFUND_REFUSED), _E.REFUND_FILED): LaneState(_L.LOW, _S.REFUND_FILED),
        (LaneState(_L.LOW, _S.REFUND_REFUSED), _E.HELD): LaneState(_L.LOW, _S.HELD),
        (LaneState(_L.MEDIUM, _S.REFUND_FILED), _E.REFUND_REFUSED): LaneState(_L.MEDIUM, _S.REFUND_REFUSED),
        (LaneState(_L.MEDIUM, _S.REFUND_REFUSED), _E.REFUND_FILED): LaneState(_L.MEDIUM, _S.REFUND_FILED),
        (LaneState(_L.MEDIUM, _S.REFUND_REFUSED), _E.HELD): LaneState(_L.MEDIUM, _S.HELD),
    }
)
FINAL = frozenset({_S.FULFILLED, _S.HELD})
"""Nothing leads out of these."""
WAITING = frozenset({_S.QUEUED, _S.SHOP_REFUSED, _S.REFUND_REFUSED})
"""These wait for a person."""
DENIALS = frozenset({_E.DENIED, _E.REJECTED, _E.HELD, _E.REFUND_FILED, _E.REFUND_REFUSED})
"""After one of these an order is never fulfilled."""


class NoSuchLaneTransition(Exception):
    """This event cannot happen there."""


def after(standing: LaneState, event: LaneEvent) -> LaneState:
    """Where `event` leads. Raises `NoSuchLaneTransition`."""
    try:
        return TRANSITIONS[standing, event]
    except KeyError:
        raise NoSuchLaneTransition(f"nothing leads from {standing.lane}/{standing.status} by {event}") from None
