"""The state machine of an order review: the one table of lanes, states and events.

The database holds the same table (`orders.transitions`) and refuses every other transition; tests keep both tables and
the committed drawing equal. From the high lane, and from a denial in any lane, nothing leads to FULFILLED.
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
    """Band, signals and the question to the authority are stored, and never change."""
    ALLOWED = "allowed"
    NEEDS_ANALYST = "needs_analyst"
    DENIED = "denied"
    STARTED = "started"
    """The authority has the operation as started, and the intended fulfilment is stored; from here the shop may be asked."""
    START_REFUSED = "start_refused"
    """The authority does not have the operation as started: nothing has happened in the shop, and the authority is asked again."""
    FULFILLED = "fulfilled"
    SHOP_REFUSED = "shop_refused"
    """The shop refused, or the operation was started elsewhere: the order goes to a person."""
    RETRIED = "retried"
    """A person decided that the shop is asked again, under the same operation and start."""
    QUEUED = "queued"
    HELD = "held"
    """The order was denied, or an analyst decided to hold it."""
    REJECTED = "rejected"
    """The approval was rejected or expired."""
    REFUND_FILED = "refund_filed"
    REFUND_REFUSED = "refund_refused"
    """The refund that was filed was denied or failed: the order goes back to a person."""


class LaneState(NamedTuple):
    """The state of a review: lane and status; the lane is None until the authority has decided."""

    lane: Lane | None
    status: ReviewStatus


_S, _E, _L = ReviewStatus, LaneEvent, Lane

TRANSITIONS: Mapping[tuple[LaneState, LaneEvent], LaneState] = MappingProxyType(
    {
        (LaneState(None, _S.RECEIVED), _E.SCORED): LaneState(None, _S.SCORED),
        (LaneState(None, _S.SCORED), _E.ALLOWED): LaneState(_L.LOW, _S.DECIDED),
        (LaneState(None, _S.SCORED), _E.NEEDS_ANALYST): LaneState(_L.MEDIUM, _S.DECIDED),
        (LaneState(None, _S.SCORED), _E.DENIED): LaneState(_L.HIGH, _S.DECIDED),
        # After a permit expired unused the authority is asked again, and may have become stricter.
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
        # A filed refund is not paid yet: whether the order needs a person again depends on the refund's ledger row.
        (LaneState(_L.LOW, _S.REFUND_FILED), _E.REFUND_REFUSED): LaneState(_L.LOW, _S.REFUND_REFUSED),
        (LaneState(_L.LOW, _S.REFUND_REFUSED), _E.REFUND_FILED): LaneState(_L.LOW, _S.REFUND_FILED),
        (LaneState(_L.LOW, _S.REFUND_REFUSED), _E.HELD): LaneState(_L.LOW, _S.HELD),
        (LaneState(_L.MEDIUM, _S.REFUND_FILED), _E.REFUND_REFUSED): LaneState(_L.MEDIUM, _S.REFUND_REFUSED),
        (LaneState(_L.MEDIUM, _S.REFUND_REFUSED), _E.REFUND_FILED): LaneState(_L.MEDIUM, _S.REFUND_FILED),
        (LaneState(_L.MEDIUM, _S.REFUND_REFUSED), _E.HELD): LaneState(_L.MEDIUM, _S.HELD),
    }
)
FINAL = frozenset({_S.FULFILLED, _S.HELD})
"""Statuses without a transition out of them."""
WAITING = frozenset({_S.QUEUED, _S.SHOP_REFUSED, _S.REFUND_REFUSED})
"""Statuses in which the order waits for a person."""
