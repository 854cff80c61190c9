"""Record a person's word on an approval. The rules are checked in the transaction that records it, and only there."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from sentinel.authority import approvals
from sentinel.authority.actor import Actor
from sentinel.core.errors import Conflict, Forbidden, InvalidInput, NotFound, SentinelError
from sentinel.core.operation import check_text
from sentinel.store.database import Pool
from sentinel.store.ids import new_id

APPROVE, REJECT, HANDLED = "approve", "reject", "handled"
MAX_REFERENCE = 200

PERSON_REFUSALS: dict[str, SentinelError] = {
    "requester": Forbidden("who owns, made or rotated the asking key cannot decide what it asks"),
    "too_new": Forbidden(
        "this was asked before your account was made, or before somebody else last changed its role, password or second factor;"
        " another person has to decide it"
    ),
    "same_hands": Forbidden(
        "your account is in the hands of somebody who has given their word already; a second administrator has to confirm it first"
    ),
}
"""Why this person may not decide that question, whatever their role."""

_REFUSALS: dict[str, SentinelError] = {
    "unknown": NotFound("there is no approval of that id"),
    "not_pending": Conflict("this approval was decided before"),
    "expired": Conflict("this approval expired; the agent has to ask again"),
    "already_voted": Conflict("you have given your word on this approval; another person has to give theirs"),
    "changed": Conflict("the digest is not the one of this approval; look at it again"),
    "not_offered": Conflict("this cannot be approved; reject it, or record that it was handled by hand"),
    "role": Forbidden("this approval needs a higher role"),
    **PERSON_REFUSALS,
}


@dataclass(frozen=True, slots=True)
class Resolved:
    """`result` is "approved", "rejected", "handled", or "recorded" while more people have to approve."""

    result: str
    approvals_given: int
    people_required: int


def resolve_approval(
    pool: Pool,
    actor: Actor,
    approval_id: uuid.UUID,
    *,
    verdict: str,
    reason: str,
    digest: str,
    reference: str | None = None,
) -> Resolved:
    """Give `actor`'s word. `digest` is what was shown, and must be the approval's.

    One "reject" decides, and so does one "handled": a person did it elsewhere, under `reference` (1 to 200 characters),
    and the machine is denied it. "approve" decides when enough people gave it. Raises `NotFound`, `InvalidInput`
    (reference), `Conflict` (decided, expired, spoken before, changed, approving not offered) or `Forbidden` (role,
    requester, account newer than the question).
    """
    actor.must_be("approver")
    _check_reference(verdict, reference)
    if actor.operator_id is None:
        raise Forbidden("an approval needs a person's account")
    # The word comes before what it decides, also among ids made in one millisecond.
    event_id, second_event_id = sorted((new_id(), new_id()))
    answer = approvals.resolve(
        pool, tenant_id=actor.tenant_id, approval_id=approval_id, operator_id=actor.operator_id, verdict=verdict,
        reason=reason, digest=digest, via=actor.via, event_id=event_id, second_event_id=second_event_id,
        reference=reference,
    )  # fmt: skip
    refusal = _REFUSALS.get(answer.result)
    if refusal is not None:
        raise type(refusal)(refusal.detail)
    assert answer.people_required is not None
    return Resolved(answer.result, answer.approvals_given or 0, answer.people_required)


def _check_reference(verdict: str, reference: str | None) -> None:
    if (verdict == HANDLED) != (reference is not None):
        raise InvalidInput.of("reference", "belongs to what was handled by hand, and only to that")
    if reference is not None and not check_text(reference, "reference", MAX_REFERENCE).strip():
        raise InvalidInput.of("reference", f"must have 1 to {MAX_REFERENCE} characters")
