"""One effect in the shop, tried so that it happens once: after an unsure try the shop is looked at before it is asked again.

The caller records the effect before calling this (operation, kind, tries, when it was last tried), and the result after.
Nothing raises.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from worker.orders.order import Review
from worker.orders.shop import Shop, ShopStatus
from worker.outbound.effects import EffectResult, NoAnswer, Refused, Settled

UNDER_WAY_SECONDS = 10.0
"""For so long after a try without an answer, "not there" proves nothing: the shop may still be at it."""

Value = TypeVar("Value")

_log = logging.getLogger("worker.orders")


class EffectKind(StrEnum):
    """What can be done to an order in the shop."""

    FULFIL = "fulfil"
    HOLD = "hold"


@dataclass(frozen=True, slots=True)
class Attempts:
    """How often an effect was tried before, and how many seconds ago the last time."""

    times: int = 0
    seconds_ago: float = 0.0


_DONE_STATUS = {EffectKind.FULFIL: "fulfilled", EffectKind.HOLD: "held"}


def perform(
    shop: Shop, review: Review, kind: EffectKind, operation_id: uuid.UUID, tried: Attempts = Attempts(), *,
    under_way_seconds: float = UNDER_WAY_SECONDS,
) -> EffectResult:  # fmt: skip
    """Have the effect done once: `Settled` it is there, `Refused` it is not and the shop will not, `NoAnswer` ask again later.

    A first try asks the shop, and looks unless it said done. A later one looks first, and asks the shop again only
    when the effect is not there and the try before is long enough ago to be over.
    """
    if tried.times > 0:
        found = look(shop, review, kind, operation_id)
        if found is not NOT_THERE:
            return found
        if tried.seconds_ago < under_way_seconds:
            return NoAnswer("not there yet; the try before may still be under way")
    return _ask(shop, review, kind, operation_id)


NOT_THERE = Refused("not there")
"""Looked at, and surely not done so far."""
SHIPPED_BEFORE = Refused("it was fulfilled before it could be held")
"""Nothing is left to hold: the one no to a hold that another try cannot change."""


def look(shop: Shop, review: Review, kind: EffectKind, operation_id: uuid.UUID) -> EffectResult:
    """Whether the effect is there: `Settled`, `NOT_THERE`, `Refused` (the order went another way, `SHIPPED_BEFORE` for a hold), or `NoAnswer`."""
    found = _guarded(shop, lambda: shop.look(review))
    if not isinstance(found, ShopStatus):
        return found
    return _read(found, kind, operation_id)


def _read(standing: ShopStatus, kind: EffectKind, operation_id: uuid.UUID) -> EffectResult:
    if standing.status == _DONE_STATUS[kind]:
        whose = standing.operation_id
        if kind is EffectKind.FULFIL and whose not in (None, str(operation_id)):
            return Refused("it was fulfilled under another operation")
        return Settled(standing.reference or str(operation_id))
    if kind is EffectKind.HOLD and standing.status == "fulfilled":
        return SHIPPED_BEFORE
    return NOT_THERE


def _ask(shop: Shop, review: Review, kind: EffectKind, operation_id: uuid.UUID) -> EffectResult:
    verb = shop.fulfil if kind is EffectKind.FULFIL else shop.hold
    answer = _guarded(shop, lambda: verb(review, operation_id))
    if isinstance(answer, Settled):
        return answer
    found = look(shop, review, kind, operation_id)
    if found is NOT_THERE:
        # A refusal is taken as it is; without an answer, "not there" right after is no proof.
        return answer
    # "Already done" is a refusal too; and while the look says nothing, a refusal is not sure either.
    return answer if isinstance(answer, NoAnswer) and isinstance(found, NoAnswer) else found


def _guarded(shop: Shop, call: Callable[[], Value]) -> Value | NoAnswer:
    try:
        return call()
    except Exception as error:
        # Its text may quote what was sent; the kind is enough to find it.
        _log.error("the shop %s failed: %s", shop.name, type(error).__name__)
        return NoAnswer(f"its adapter failed: {type(error).__name__}")
