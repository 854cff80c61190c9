"""Record an analyst's word on an order that waits for one. The rules are checked in the transaction that records it, and only there."""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.core.errors import Conflict, Forbidden, InvalidInput, NotFound, SentinelError
from sentinel.services.actor import Actor
from sentinel.store import order_views
from sentinel.store.database import Pool
from sentinel.store.ids import new_id

FULFIL, REFUND, HOLD = WORDS = ("fulfil", "refund", "hold")
RETRY = "retry"
"""Of an order that came back: have the shop, or the refund worker, asked once more."""

_REFUSALS: dict[str, SentinelError] = {
    "unknown": NotFound("there is no order of that id"),
    "not_queued": Conflict("this order does not wait for a word; look at where it stands"),
    "nothing_to_retry": Conflict("the shop has this hold; there is nothing to try again"),
    "halted": Conflict("fulfilment is halted; lift the halt first"),
    "refund_exists": Conflict("a refund of this order is in the ledger already"),
    "nothing_paid": Conflict("nothing was paid for this order; fulfil or hold it"),
    "not_pending": Conflict("its approval was decided before; the order follows that"),
    "expired": Conflict("the time for a word is over; the order will be held"),
    "already_voted": Conflict("you have given your word on this order; another person has to give theirs"),
    "changed": Conflict("the digest is not the one of this order; look at it again"),
    "not_offered": Conflict("this order cannot be fulfilled; hold it, or refund it"),
    "role": Forbidden("this order needs a higher role"),
    "requester": Forbidden("who answers for the asking key cannot decide what it asks"),
}


@dataclass(frozen=True, slots=True)
class OrderResolved:
    """`result` is the word that holds now, or "recorded" while more people have to approve.

    `ledger_entry_id` is the refund's row: new, and guarded by the refund worker like any other.
    """

    result: str
    approvals_given: int | None
    people_required: int | None
    ledger_entry_id: str | None


def resolve_order(
    pool: Pool, actor: Actor, source: str, order_id: str, *, word: str, reason: str, digest: str | None = None
) -> OrderResolved:
    """Give `actor`'s word: "fulfil" approves, "refund" rejects and files a refund, "hold" rejects and has it held. What came
    back from the shop is tried again, refunded or held; a hold that the shop has not taken is tried again.

    `digest` is the approval's as it was shown; given, it must be the approval's. Raises `InvalidInput` (word), `NotFound`,
    `Conflict` (decided, expired, spoken before, changed) or `Forbidden` (role, requester).
    """
    actor.must_be("approver")
    if word not in (*WORDS, RETRY):
        raise InvalidInput.of("word", f"must be one of {', '.join((*WORDS, RETRY))}")
    if actor.operator_id is None:
        raise Forbidden("an order needs a person's account")
    # The word comes before what it decides, also among ids made in one millisecond.
    event_id, second_event_id = sorted((new_id(), new_id()))
    answer = order_views.resolve(
        pool, tenant_id=actor.tenant_id, source=source, order_id=order_id, operator_id=actor.operator_id, word=word,
        reason=reason, digest=digest, via=actor.via, event_id=event_id, second_event_id=second_event_id,
    )  # fmt: skip
    refusal = _REFUSALS.get(answer.result)
    if refusal is not None:
        raise type(refusal)(refusal.detail)
    return OrderResolved(answer.result, answer.approvals_given, answer.people_required, answer.ledger_entry_id)
