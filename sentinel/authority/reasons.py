"""Every reason code with its sentence for people: those of the decision core, escalations, and states of operations."""

from __future__ import annotations

from sentinel.core.decision import REASONS as DECISION_REASONS

ESCALATIONS: dict[str, str] = {
    # Why a workflow hands a row to a person → sentence. Policies use these codes as the reason of a decision
    # (`reason_from`), so each of them is public and stable.
    "halted": "A halt covers this action.",
    "switch_off": "This scenario is switched off.",
    "outside_canary": "This account is outside the canary for which the scenario is switched on.",
    "system_not_proven": "The launch gate of this scenario did not test the settlement system that would be used.",
    "open_complaint": "The order has an open complaint.",
    "delayed_shipment": "The shipment is delayed; a delay is compensated, not refunded.",
    "account_mismatch": "The refund is for another account than the one that ordered.",
    "blacklisted": "The account is on the blacklist.",
    "refunded_before": "This order was refunded before, or another refund of it waits for a person.",
    "order_overdrawn": "More would be paid back for this order than was paid for it.",
    "order_other_currency": "The order was paid in another currency.",
    "order_paid_unknown": "The amount that was paid for this order is not known.",
    "analyst_refund": "An analyst filed this refund of an order under review; that analyst's decision counts as an approval.",
    "order_missing": "The ledger row names no order.",
    "order_unknown": "The order is not known.",
    "order_directory_unavailable": "The order could not be looked up.",
    "no_route": "There is no route for this channel, scenario and mode.",
    "image_missing": "The proof image is missing.",
    "image_unrecognised": "The proof image could not be recognised.",
    "image_mismatch": "The proof image shows something else than what is claimed.",
    "recogniser_unavailable": "The proof image could not be checked.",
    "outside_window": "The time allowed for this scenario is over.",
    "fee_not_charged": "The fee was not charged.",
    "price_not_dropped": "The price did not drop.",
    "not_in_scenario": "The case does not fit its scenario.",
    "mode_needs_person": "This mode is always handled by a person.",
    "over_limit_early": "An early check found a limit that would be exceeded.",
    "critic_amount": "The amount does not fit the case.",
    "critic_scenario": "The customer's text describes another scenario.",
    "critic_instructions": "The customer's text contains instructions to the system.",
    "critic_encoded_text": "The customer's text is encoded or disguised.",
    "critic_repeated_text": "Several accounts use the same text.",
    "critic_long_text": "The text is longer than a customer would write.",
    "critic_markup": "The customer's text contains tags, code or a role header.",
    "critic_language": "The customer's text is in a script or language that the rules cannot read.",
    "critic_rejected": "The model critic did not agree.",
    "critic_timeout": "The model critic took too long.",
    "critic_error": "The critic failed.",
    "critic_malformed": "The model critic gave no usable answer.",
    "system_not_ready": "No settlement system can settle this automatically now.",
    "step_refused": "The workflow reached a step that is not declared.",
    "unknown_escalation": "The row was sent to a person for an unknown reason.",
}

STANDINGS: dict[str, str] = {
    # States of an operation or its ledger row that do not come from a policy's rule → sentence.
    "awaiting_customer": "The customer was asked and has not answered yet.",
    "no_report": "It was started, and no outcome was reported in time.",
    "error_reported": "An error was reported after the start: the money may have moved all the same.",
    "contradiction": "A success was reported after a person had said that it was not executed: it may have been done twice. "
    "This action of this agent is halted.",
    "started_elsewhere": "It was started, but not by this ledger row: it may have been paid.",
    "start_unconfirmed": "It was started, and a repeat of the start is refused: it may have been paid.",
    "start_forgotten": "It was begun in an outside system, but the authority has no record of a start: it may have been paid.",
    "executed_elsewhere": "It was executed, according to a person or a report, but this ledger has no execution of it.",
    "question_refused": "The authority refused the request about it, and a person had the order held.",
    "settlement_refused": "The settlement system refused it permanently.",
    "not_executed": "A person said that it was not executed.",
}

REASONS: dict[str, str] = {**DECISION_REASONS, **ESCALATIONS, **STANDINGS}


def reason_text(code: str) -> str:
    """Return the sentence for a reason code; a policy's own code becomes its words, e.g. "Large amount."."""
    return REASONS.get(code) or code.replace("_", " ").capitalize() + "."


def started_before_text(outcome: str | None) -> str:
    """Return the sentence for an operation that is refused because it was started before; `outcome` is the reported one or None."""
    return "It was done before." if outcome == "success" else "It was started before and may have happened."


_REFUND_ENDS = {"refund_denied": "denied", "refund_failed": "failed", "refund_unpaid": "failed"}


def trouble_text(last_error: str) -> str:
    """Return why an order stopped, for people: "refund_denied: stale_window" becomes words, other texts are returned as they are."""
    kind, _, why = last_error.partition(": ")
    if kind not in _REFUND_ENDS:
        return last_error
    return f"{_REFUND_ENDS[kind]}: {reason_text(why).rstrip('.') if why in REASONS else why}"
