"""Why a row goes to a person: the escalation codes that the authority's policies declare.

They are sent as data (`escalation`); no text of a customer or a model ever becomes one.
"""

from __future__ import annotations

from enum import StrEnum


class Escalation(StrEnum):
    """In the order of the graph."""

    HALTED = "halted"
    SWITCH_OFF = "switch_off"
    OUTSIDE_CANARY = "outside_canary"
    SYSTEM_NOT_PROVEN = "system_not_proven"
    OPEN_COMPLAINT = "open_complaint"
    DELAYED_SHIPMENT = "delayed_shipment"
    ACCOUNT_MISMATCH = "account_mismatch"
    BLACKLISTED = "blacklisted"
    REFUNDED_BEFORE = "refunded_before"
    ORDER_OVERDRAWN = "order_overdrawn"
    ORDER_OTHER_CURRENCY = "order_other_currency"
    ORDER_PAID_UNKNOWN = "order_paid_unknown"
    ANALYST_REFUND = "analyst_refund"
    ORDER_MISSING = "order_missing"
    ORDER_UNKNOWN = "order_unknown"
    ORDER_DIRECTORY_UNAVAILABLE = "order_directory_unavailable"
    NO_ROUTE = "no_route"
    MODE_NEEDS_PERSON = "mode_needs_person"
    IMAGE_MISSING = "image_missing"
    IMAGE_UNRECOGNISED = "image_unrecognised"
    IMAGE_MISMATCH = "image_mismatch"
    RECOGNISER_UNAVAILABLE = "recogniser_unavailable"
    OUTSIDE_WINDOW = "outside_window"
    FEE_NOT_CHARGED = "fee_not_charged"
    PRICE_NOT_DROPPED = "price_not_dropped"
    NOT_IN_SCENARIO = "not_in_scenario"
    OVER_LIMIT_EARLY = "over_limit_early"
    CRITIC_AMOUNT = "critic_amount"
    CRITIC_SCENARIO = "critic_scenario"
    CRITIC_INSTRUCTIONS = "critic_instructions"
    CRITIC_ENCODED_TEXT = "critic_encoded_text"
    CRITIC_REPEATED_TEXT = "critic_repeated_text"
    CRITIC_LONG_TEXT = "critic_long_text"
    CRITIC_MARKUP = "critic_markup"
    CRITIC_LANGUAGE = "critic_language"
    CRITIC_REJECTED = "critic_rejected"
    CRITIC_TIMEOUT = "critic_timeout"
    CRITIC_ERROR = "critic_error"
    CRITIC_MALFORMED = "critic_malformed"
    SYSTEM_NOT_READY = "system_not_ready"
    STEP_REFUSED = "step_refused"
    UNKNOWN = "unknown_escalation"
