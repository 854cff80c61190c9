"""The declared graph: which step may follow which, and why a row goes to a person. The runner refuses every other transition."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class StepName(StrEnum):
    """Every step, in the order in which a row passes them."""

    KILL_SWITCH = "kill_switch"
    CHECK_PARAMS = "check_params"
    GATE_COMMON = "gate_common"
    QUERY_ORDER = "query_order"
    CHECK_ORDER = "check_order"
    ROUTE_MODE_SCENARIO = "route_mode_scenario"
    COLLECT_IMAGE = "collect_image"
    RECOGNISE_IMAGE = "recognise_image"
    SCENARIO_VALIDATE = "scenario_validate"
    LIMIT_CHECK = "limit_check"
    CRITIC_CHECK = "critic_check"
    CONFIRM_CARD = "confirm_card"
    TRANSFER_TO_HUMAN = "transfer_to_human"
    ASK_AUTHORITY = "ask_authority"
    EXECUTE_BY_SYSTEM = "execute_by_system"
    CONFIRM = "confirm"


_S = StepName
FIRST = _S.KILL_SWITCH

_CHAIN: Mapping[StepName, tuple[StepName, ...]] = {
    _S.KILL_SWITCH: (_S.CHECK_PARAMS,),
    _S.CHECK_PARAMS: (_S.GATE_COMMON,),
    _S.GATE_COMMON: (_S.QUERY_ORDER,),
    _S.QUERY_ORDER: (_S.CHECK_ORDER,),
    _S.CHECK_ORDER: (_S.ROUTE_MODE_SCENARIO,),
    _S.ROUTE_MODE_SCENARIO: (_S.COLLECT_IMAGE, _S.SCENARIO_VALIDATE),
    _S.COLLECT_IMAGE: (_S.RECOGNISE_IMAGE, _S.SCENARIO_VALIDATE),
    _S.RECOGNISE_IMAGE: (_S.SCENARIO_VALIDATE,),
    _S.SCENARIO_VALIDATE: (_S.LIMIT_CHECK,),
    _S.LIMIT_CHECK: (_S.CRITIC_CHECK,),
    _S.CRITIC_CHECK: (_S.CONFIRM_CARD, _S.ASK_AUTHORITY),
    _S.CONFIRM_CARD: (_S.ASK_AUTHORITY,),
    # A person approved one reason: the run begins again with that reason lifted, and every other step decides again.
    _S.ASK_AUTHORITY: (_S.EXECUTE_BY_SYSTEM, FIRST),
    _S.EXECUTE_BY_SYSTEM: (_S.CONFIRM,),
    _S.CONFIRM: (),
}
_ALSO_TO_A_PERSON = frozenset(_CHAIN) - {_S.CONFIRM}

SUCCESSORS: Mapping[StepName, frozenset[StepName]] = MappingProxyType(
    {
        step: frozenset(following) | ({_S.TRANSFER_TO_HUMAN} if step in _ALSO_TO_A_PERSON else frozenset())
        for step, following in _CHAIN.items()
    }
    | {_S.TRANSFER_TO_HUMAN: frozenset({_S.ASK_AUTHORITY})}
)
"""Step → the steps that may follow. A step may also end the run for now."""


def next_step(step: StepName) -> StepName:
    """Return the only successor besides TRANSFER_TO_HUMAN. Steps use it, so that a step inserted between is named here alone."""
    (following,) = SUCCESSORS[step] - {_S.TRANSFER_TO_HUMAN}
    return following


# Why a row goes to a person: the escalation codes that the authority's policies declare. They are sent as data (`escalation`); no
# text of a customer or a model ever becomes one.


class Escalation(StrEnum):
    """Why a row goes to a person, in the order of the graph."""

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
