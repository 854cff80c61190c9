"""The failpoints of the intake, in the order in which an order passes them; see `worker/failpoints.py`."""

from __future__ import annotations

from enum import StrEnum


class OrderFailpoint(StrEnum):
    """Every place."""

    AFTER_TAKE = "after_take"
    AFTER_SCORE = "after_score"
    BEFORE_GUARD = "before_guard"
    AFTER_GUARD = "after_guard"
    AFTER_DECIDED = "after_decided"
    BEFORE_SHOP = "before_shop"
    AFTER_SHOP = "after_shop"
    AFTER_SETTLED = "after_settled"
    BEFORE_REPORT = "before_report"
    AFTER_REPORT = "after_report"
    AFTER_ACK = "after_ack"
