"""Every reason code with its sentence for people: those of the decision core, escalations, and states of operations."""

from __future__ import annotations

from sentinel.core.decision import REASONS as DECISION_REASONS

ESCALATIONS: dict[str, str] = {
    # Why a workflow hands a row to a person → sentence. Policies use these codes as the reason of a decision
    # (`reason_from`), so each of them is public and stable.
    "halted": "A halt covers this action.",
    "switch_off": "This scenario is switched off.",
    "outside_canary": "This account is not in the share for which the scenario is switched on.",
    "system_not_proven": "The launch gate of this scenario did not try the system that would settle it.",
    "open_complaint": "The order has an open complaint.",
    "delayed_shipment": "The shipment is delayed; that is compensated, not refunded.",
    "account_mismatch": "Another account than the ordering one asks.",
    "blacklisted": "The account is on the blacklist.",
    "refunded_before": "This order was refunded before, or another refund of it waits for a person.",
    "order_overdrawn": "More would be paid back for this order than was paid for it.",
    "order_other_currency": "The order was paid in another currency.",
    "order_paid_unknown": "What was paid for this order is not known.",
    "analyst_refund": "An analyst filed this refund of an order under review; their decision lifts it.",
    "order_missing": "The row names no order.",
    "order_unknown": "The order is not known.",
    "order_directory_unavailable": "The order could not be looked up.",
    "no_route": "There is no route for this channel, scenario and mode.",
    "image_missing": "The proof image is missing.",
    "image_unrecognised": "The proof image could not be recognised.",
    "image_mismatch": "The proof image shows something else than what is claimed.",
    "recogniser_unavailable": "The proof image could not be looked at.",
    "outside_window": "The time for this scenario is over.",
    "fee_not_charged": "The fee was not charged.",
    "price_not_dropped": "The price did not drop.",
    "not_in_scenario": "The case does not fit its scenario.",
    "mode_needs_person": "This mode is always handled by a person.",
    "over_limit_early": "An early look found a limit that would be exceeded.",
    "critic_amount": "The amount does not fit the case.",
    "critic_scenario": "The text tells of another scenario.",
    "critic_instructions": "The text gives instructions to the machine.",
    "critic_encoded_text": "The text is encoded or disguised.",
    "critic_repeated_text": "Several accounts use the same text.",
    "critic_long_text": "The text is longer than a customer would write.",
    "critic_markup": "The text has tags, code or a header of a role in it.",
    "critic_language": "The text is in a script or language that the rules cannot read.",
    "critic_rejected": "The second look did not agree.",
    "critic_timeout": "The second look took too long.",
    "critic_error": "The second look failed.",
    "critic_malformed": "The second look gave no usable answer.",
    "system_not_ready": "There is no automatic way to settle this now.",
    "step_refused": "The workflow came to a step that is not declared.",
    "unknown_escalation": "A person is asked for a reason that is not known.",
}

STANDINGS: dict[str, str] = {
    # States of an operation or its ledger row that do not come from a policy's rule → sentence.
    "awaiting_customer": "The customer was asked and has not answered yet.",
    "no_report": "It was started, and then nobody reported an outcome in time.",
    "error_reported": "An error was reported after the start: the money may have moved all the same.",
    "contradiction": "A success was reported after a person had said that it was not executed: it may have been done twice. "
    "This action of this agent is halted.",
    "started_elsewhere": "It was started, and not by this row: it may have been paid.",
    "start_unconfirmed": "It was started, and the start is refused when it is asked for again: it may have been paid.",
    "start_forgotten": "It was begun outside, and the authority knows of no start: it may have been paid.",
    "executed_elsewhere": "It was executed, as a person said or was reported; this ledger has no execution of it.",
    "question_refused": "The authority could not be asked about it, and a person had it held.",
    "settlement_refused": "The settlement system refused it for good.",
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
