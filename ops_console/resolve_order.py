"""Record an analyst's decision on a pending order. The rules are checked in the transaction that records it, and only there."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from ops_console.read_models import order_views
from sentinel.authority.actor import Actor
from sentinel.authority.approvals import PERSON_REFUSALS
from sentinel.authority.policy_inspector import PoliciesInForce, PolicyInspector
from sentinel.authority.reasons import reason_text
from sentinel.core.errors import Conflict, Forbidden, InvalidInput, NotFound, SentinelError
from sentinel.core.money import Money, money_out
from sentinel.store.database import Pool
from sentinel.store.ids import new_id

FULFIL, REFUND, HOLD = DECISIONS = ("fulfil", "refund", "hold")
REFUND_ACTION = "refund.create"
RETRY = "retry"
"""A decision whose meaning depends on the order's status: ask the shop again to fulfil or to hold it, or retry its refund."""

_REFUSALS: dict[str, SentinelError] = {
    "unknown": NotFound("there is no order with this id"),
    "not_queued": Conflict("this order is not pending; check its status"),
    "status_changed": Conflict("this order's status has changed since it was shown; look at it again"),
    "under_way": Conflict("the authority is deciding on this order now; try again in a moment"),
    "nothing_to_retry": Conflict(
        "the shop has accepted this hold, or fulfilled the order before it; there is nothing to retry"
    ),
    "halted": Conflict("fulfilment is halted; lift the halt first"),
    "refund_exists": Conflict("a refund of this order is already in the ledger"),
    "refund_undecided": Conflict(
        "the outcome of the filed refund is not known yet: look at its ledger entry, or hold the order"
    ),
    "nothing_paid": Conflict("nothing was paid for this order; fulfil or hold it"),
    "not_pending": Conflict("its approval was decided before; the order follows that decision"),
    "expired": Conflict("the approval has expired; the order will be held"),
    "already_voted": Conflict("you have voted on this order; another person has to decide"),
    "changed": Conflict("the digest is not that of this order's approval; look at it again"),
    "approval_changed": Conflict("a new approval was requested since this was shown; look at it again"),
    "not_offered": Conflict("this order cannot be fulfilled; hold it, or refund it"),
    "role": Forbidden("deciding this order needs a higher role"),
    **PERSON_REFUSALS,
}


def refund_refusal(policies: PoliciesInForce, amount_minor: int, currency: str) -> str | None:
    """Return the reason code with which a refund of this amount would be denied in any case; None if a person may file
    it.

    Checked before a refund is offered and before it is filed. The authority still decides on the ledger entry itself.
    """
    if amount_minor <= 0:
        return None
    return policies.refusal(REFUND_ACTION, {
        "amount": money_out(Money(amount_minor, currency)), "channel": "retail", "scenario": "standard", "escalation": "analyst_refund",
    })  # fmt: skip


@dataclass(frozen=True, slots=True)
class OrderResolved:
    """`result` is the decision that is now in force, or "recorded" while more people have to approve.

    `ledger_entry_id` is the refund's ledger entry, new or retried; the refund worker guards it like any other.
    """

    result: str
    approvals_given: int | None
    people_required: int | None
    ledger_entry_id: str | None


def resolve_order(
    pool: Pool, actor: Actor, source: str, order_id: str, *, decision: str, reason: str, digest: str | None = None,
    status: str | None = None, approval_id: uuid.UUID | None = None, inspector: PolicyInspector | None = None,
) -> OrderResolved:  # fmt: skip
    """Record `actor`'s decision: "fulfil" approves, "refund" rejects and files a refund, "hold" rejects and has it
    held. An order that came back from the shop can be retried, refunded or held, but not retried once a person has
    resolved its fulfilment as not executed; one about which the authority refuses the question can be held; a hold that
    the shop has not accepted can be retried.

    With `inspector`, a refund that its policy would deny is refused here. `digest`, `approval_id` and `status` are what
    the person was shown. `digest` is required while an approval is pending, and must be that approval's. `approval_id`,
    if given, must be the pending approval: a newer one about the same operation has the same digest. `status`, if
    given, must still be the order's; "retry" requires it. Raises `InvalidInput` (decision, digest, status), `NotFound`,
    `Conflict` (decided, expired, already voted, changed) or `Forbidden` (role, requester).
    """
    actor.must_be("approver")
    if decision not in (*DECISIONS, RETRY):
        raise InvalidInput.of("decision", f"must be one of {', '.join((*DECISIONS, RETRY))}")
    if decision == RETRY and status is None:
        raise InvalidInput.of("status", "is missing: name the order's status that was shown")
    if actor.operator_id is None:
        raise Forbidden("an order can be decided only with a person's account")
    if inspector is not None and (decision == REFUND or (decision == RETRY and status == "REFUND_REFUSED")):
        _must_be_refundable(pool, actor, source, order_id, inspector)
    if decision == RETRY and status == "SHOP_REFUSED":
        _must_not_be_ruled_out(pool, actor, source, order_id)
    # Sorted, so that the decision's event precedes the event of what it decides, even with both ids of one millisecond.
    event_id, second_event_id = sorted((new_id(), new_id()))
    answer = order_views.resolve(
        pool, tenant_id=actor.tenant_id, source=source, order_id=order_id, operator_id=actor.operator_id, decision=decision,
        reason=reason, digest=digest, status=status, approval_id=approval_id, via=actor.via, event_id=event_id, second_event_id=second_event_id,
    )  # fmt: skip
    if answer.result == "changed" and digest is None:
        raise InvalidInput.of("digest", "is missing: name the digest of the approval that was shown")
    refusal = _REFUSALS.get(answer.result)
    if refusal is not None:
        raise type(refusal)(refusal.detail)
    return OrderResolved(answer.result, answer.approvals_given, answer.people_required, answer.ledger_entry_id)


def _must_not_be_ruled_out(pool: Pool, actor: Actor, source: str, order_id: str) -> None:
    row = order_views.find_order(pool, actor.tenant_id, source, order_id)
    # "Not executed" is never taken back, so what is refused here would be refused at any later moment.
    if row is not None and row.is_ruled_out:
        raise Conflict(
            "a person resolved its fulfilment as not executed, which is final: the shop is not asked again; hold it, or refund it"
        )


def _must_be_refundable(pool: Pool, actor: Actor, source: str, order_id: str, inspector: PolicyInspector) -> None:
    row = order_views.find_order(pool, actor.tenant_id, source, order_id)
    if row is None:
        return
    reason = refund_refusal(inspector.in_force(pool), row.amount_minor, row.currency)
    if reason is not None:
        raise Conflict(
            f"a refund of this order would be denied ({reason}): {reason_text(reason)} Hold it, or handle it elsewhere."
        )
