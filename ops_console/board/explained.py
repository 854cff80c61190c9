"""What the board says in words: the outcomes, what is hidden and why, and what each field of a proof pack means."""

from __future__ import annotations

OUTCOME_WORDS = {"ALLOW": "Allowed", "APPROVAL_REQUIRED": "A person decides", "DENY": "Denied"}

HIDDEN = (
    ("Who the customer is", "Names, mail and postal addresses, phone numbers, card and account numbers: nobody needs them to judge a decision."),
    ("What was ordered and written", "Raw orders, notes, reasons in free text and prompts: anything a person typed may name a person."),
    ("What things are called inside", "Refunds, ledger entries and agents have public names, minted here and always the same: what an agent calls something may name a person."),
    ("The facts behind a rule", "A proof carries a salted commitment to them: it fixes them without telling them, and nobody can guess an account or an amount from it."),
    ("How to get in", "Tenant and policy ids, approval ids, permits and keys: they would help to attack, not to check."),
)  # fmt: skip

MEANINGS = {
    "proof_id": "the name of this proof",
    "ledger_entry_id": "the public name of the refund's row in the ledger",
    "refund_id": "the public name of the refund",
    "agent_id": "the agent that asked: its name where its key is bound to it, else its public name",
    "action": "what it wanted to do; an action that no policy names has a public name",
    "amount": "how much money would move",
    "decision": "what the policy answered, before anything was done",
    "policy_label": "the policy that answered",
    "policy_version": "its version",
    "policy_digest": "the hash of its exact text",
    "reason_code": "the rule that settled it",
    "operation_digest": "a salted commitment to the whole request",
    "facts_commitment": "a salted commitment to the facts that were weighed, and to the rules and limits that fired",
    "decided_at": "when, by the database's clock",
    "latency_ms": "milliseconds until the decision stood",
    "proof_status": "what kind of proof this is",
    "signature_status": "whether it is signed",
    "redaction_status": "what was left out",
    "hash": "SHA-256 over the canonical JSON of everything above",
}
