"""Approvals: listing pending and decided ones, and recording a person's vote.

Agents (their own) and operators read approvals. The SQL function `sentinel.resolve_approval` checks every rule of a
vote: the right role, not the requester, in time, one vote per person, one transition.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime

from sentinel.authority.actor import Actor
from sentinel.core.errors import Conflict, Forbidden, InvalidInput, NotFound, SentinelError
from sentinel.core.operation import check_text
from sentinel.store.database import Pool
from sentinel.store.ids import new_id
from sentinel.store.queries import act_once, all_rows, one_row
from sentinel.store.sql_template import SqlTemplate


@dataclass(frozen=True, slots=True)
class ApprovalRow:
    """An approval with the votes given so far; amounts in minor units, times timezone-aware UTC.

    `status` is the current one: a pending approval past `expires_at` reads "expired" before housekeeping expires it.
    `offers` are the votes that a person may give now ("approve", "reject", "handled"); empty once it is decided.
    `handled_reference` says where a person handled the operation by hand; its `status` is then "rejected". `follows` is
    the earlier approval of the same operation, whose terms became insufficient; `approvals_given` includes its votes
    that still count. `change` is the requested change of people, keys or receivers as canonical JSON, None for an
    agent's operation. `requested_by` is the address of the operator who requested the change, or who is responsible for
    the requesting key. `outcome` is the result of an approved change (see `protected_changes.outcome_text`), or None.
    """

    tenant_id: uuid.UUID
    approval_id: uuid.UUID
    operation_id: uuid.UUID
    principal_id: uuid.UUID
    agent_id: str
    action: str
    resource: str
    amount_minor: int | None
    currency: str | None
    digest: str
    reasons: list[str]
    required_role: str
    required_people: int
    approvals_given: int
    status: str
    created_at: datetime
    expires_at: datetime
    decided_at: datetime | None
    decided_by: str | None
    reason: str | None
    offers: list[str]
    handled_reference: str | None
    follows: uuid.UUID | None
    requested_by: str | None
    change: str | None
    outcome: str | None

    @property
    def shown_status(self) -> str:
        """The status as shown to people: "handled" where a person handled it, although `status` is "rejected" then."""
        return "handled" if self.handled_reference else self.status


@dataclass(frozen=True, slots=True)
class DecidedApproval:
    """A decided approval, as the approvals stream sends it; `request_id` is the approval's id."""

    request_id: uuid.UUID
    status: str
    approver: str | None
    reason: str | None
    agent_id: str
    action: str
    decided_at: datetime


@dataclass(frozen=True, slots=True)
class Vote:
    """One person's vote. `via` is "console" or "local_administrator".

    `counts` is False for an approving vote on a pending approval if its person could no longer give it: deactivated,
    without the role, the requester, or with an account that another person changed since.
    """

    operator: str
    verdict: str
    reason: str
    via: str
    voted_at: datetime
    counts: bool


@dataclass(frozen=True, slots=True)
class EarlierVote(Vote):
    """A vote on an earlier approval of the same operation, which required `required_role` and `required_people`.

    `counts` says whether it also counts on the later approval: its person has the role required now, and the earlier
    approval named every reason that the later one names.
    """

    approval_id: uuid.UUID
    required_role: str
    required_people: int


@dataclass(frozen=True, slots=True)
class VoteResult:
    """The result of recording a vote; the SQL function `sentinel.resolve_approval` lists the values of `result`."""

    result: str
    approvals_given: int | None
    people_required: int | None
    outcome: str | None


# Counts approving votes by the rules of `sentinel.counted_votes`: it includes votes on the approval that this one
# follows, and leaves out votes whose person could no longer give them. An approved approval had as many as it required,
# whatever happened to its people since.
APPROVALS_GIVEN = """
case when a.status = 'approved' then a.required_people
     when a.follows is not null or a.status = 'pending' and a.required_people > 1
       then (select count(*) from sentinel.counted_votes(a, a.required_role))
     else (select count(*) from sentinel.approval_votes v
           where v.tenant_id = a.tenant_id and v.approval_id = a.approval_id and v.verdict = 'approve') end::integer
  as approvals_given
"""
COLUMNS = SqlTemplate("""
a.tenant_id, a.approval_id, a.operation_id, a.principal_id, a.agent_id, a.action, a.resource, a.amount_minor, a.currency,
a.digest, a.reasons, a.required_role, a.required_people,
{approvals_given},
case when a.status = 'pending' and a.expires_at <= statement_timestamp() then 'expired' else a.status end as status,
a.created_at, a.expires_at, a.decided_at, a.decided_by, a.reason,
case when a.status <> 'pending' or a.expires_at <= statement_timestamp() then '{{}}'::text[]
     else case when a.offers_approve then array['approve', 'reject'] else array['reject'] end
       || case when sentinel.may_be_handled(a) then array['handled'] else '{{}}'::text[] end end as offers,
a.handled_reference, a.follows,
(select o.email from sentinel.operators o where o.tenant_id = a.tenant_id and o.operator_id = a.requester_operator_id) as requested_by,
(select c.request from sentinel.protected_changes c where c.tenant_id = a.tenant_id and c.approval_id = a.approval_id) as change,
(select c.outcome from sentinel.protected_changes c where c.tenant_id = a.tenant_id and c.approval_id = a.approval_id) as outcome
""").fill(approvals_given=APPROVALS_GIVEN)
FIND_APPROVAL = SqlTemplate("""
select {columns} from sentinel.approvals a where a.tenant_id = %(tenant_id)s and a.approval_id = %(approval_id)s
""").fill(columns=COLUMNS)
FIND_APPROVAL_OF = SqlTemplate("""
select {columns} from sentinel.operation_states s
join sentinel.approvals a on a.tenant_id = s.tenant_id and a.approval_id = s.approval_id
where s.tenant_id = %(tenant_id)s and s.operation_id = %(operation_id)s
""").fill(columns=COLUMNS)
# "with ties" keeps rows decided in the same instant together: a reader that continues after the last row misses none.
DECIDED_SINCE = """
select a.approval_id as request_id, a.status, a.decided_by as approver, a.reason, a.agent_id, a.action, a.decided_at
from sentinel.approvals a
where a.tenant_id = %(tenant_id)s and a.decided_at > %(since)s and not sentinel.is_protected_change(a)
order by a.decided_at fetch first %(limit)s rows with ties
"""
# Each half of the union must use its own index (approvals_decided_of_principal, approvals_decided_of_agent), so the
# columns are compared and ordered as rows. With an equality on the principal, approvals_decided would give the same
# order, and the planner might scan it past the decisions of all other principals. `any(array(...))` makes the planner
# look up each approval by its primary key.
DECIDED_SINCE_OF = """
select a.approval_id as request_id, a.status, a.decided_by as approver, a.reason, a.agent_id, a.action, a.decided_at
from sentinel.approvals a
where a.tenant_id = %(tenant_id)s and a.approval_id = any(array(
  (select p.approval_id from sentinel.approvals p
   where p.tenant_id = %(tenant_id)s and p.decided_at is not null and (p.principal_id, p.decided_at) > (%(principal_id)s, %(since)s)
     and p.principal_id <= %(principal_id)s and not sentinel.is_protected_change(p)
   order by p.principal_id, p.decided_at fetch first %(limit)s rows with ties)
  union
  (select p.approval_id from sentinel.approvals p
   where p.tenant_id = %(tenant_id)s and p.decided_at is not null and (p.agent_id, p.decided_at) > (%(agent_id)s, %(since)s)
     and p.agent_id <= %(agent_id)s and not sentinel.is_protected_change(p)
   order by p.agent_id, p.decided_at fetch first %(limit)s rows with ties)))
order by a.decided_at fetch first %(limit)s rows with ties
"""
VOTES = """
select o.email as operator, v.verdict, v.reason, v.via, v.voted_at, a.status <> 'pending' or v.verdict <> 'approve' or exists (
    select from sentinel.counted_votes(a, a.required_role) c where c.operator_id = v.operator_id) as counts
from sentinel.approval_votes v join sentinel.operators o using (tenant_id, operator_id)
join sentinel.approvals a using (tenant_id, approval_id)
where v.tenant_id = %(tenant_id)s and v.approval_id = %(approval_id)s order by v.voted_at
"""
EARLIER_VOTES = """
with recursive chain as (
  select a.approval_id, a.follows from sentinel.approvals a
  where a.tenant_id = %(tenant_id)s and a.approval_id = %(approval_id)s
  union
  select b.approval_id, b.follows from chain c
  join sentinel.approvals b on b.tenant_id = %(tenant_id)s and b.approval_id = c.follows)
select o.email as operator, v.verdict, v.reason, v.via, v.voted_at, b.approval_id, b.required_role, b.required_people,
  v.verdict = 'approve' and asked.reasons <@ b.reasons and exists (
    select from sentinel.counted_votes(asked, asked.required_role) fits where fits.operator_id = v.operator_id) as counts
from sentinel.approvals asked
cross join chain c
join sentinel.approvals b on b.tenant_id = asked.tenant_id and b.approval_id = c.approval_id and b.approval_id <> asked.approval_id
join sentinel.approval_votes v on v.tenant_id = b.tenant_id and v.approval_id = b.approval_id
join sentinel.operators o on o.tenant_id = v.tenant_id and o.operator_id = v.operator_id
where asked.tenant_id = %(tenant_id)s and asked.approval_id = %(approval_id)s order by v.voted_at
"""
RESOLVE = """
select result, approvals_given, people_required, outcome from sentinel.resolve_approval(%(tenant_id)s, %(approval_id)s,
  %(operator_id)s, %(verdict)s, %(reason)s, %(digest)s, %(via)s, %(event_id)s, %(second_event_id)s, %(reference)s, %(third_event_id)s)
"""


def find_approval(pool: Pool, tenant_id: uuid.UUID, approval_id: uuid.UUID) -> ApprovalRow | None:
    """Return the tenant's approval with that id, or None."""
    return one_row(pool, ApprovalRow, FIND_APPROVAL, {"tenant_id": tenant_id, "approval_id": approval_id})


def known_approval(pool: Pool, tenant_id: uuid.UUID, approval_id: uuid.UUID) -> ApprovalRow:
    """Return the tenant's approval with that id. Raises `NotFound`."""
    found = find_approval(pool, tenant_id, approval_id)
    if found is None:
        raise NotFound("there is no approval with this id")
    return found


def find_approval_of(pool: Pool, tenant_id: uuid.UUID, operation_id: uuid.UUID) -> ApprovalRow | None:
    """Return the latest approval of an operation of the tenant, or None."""
    return one_row(pool, ApprovalRow, FIND_APPROVAL_OF, {"tenant_id": tenant_id, "operation_id": operation_id})


def votes(pool: Pool, tenant_id: uuid.UUID, approval_id: uuid.UUID) -> list[Vote]:
    """Return the votes on an approval, oldest first."""
    return all_rows(pool, Vote, VOTES, {"tenant_id": tenant_id, "approval_id": approval_id})


def earlier_votes(pool: Pool, tenant_id: uuid.UUID, approval_id: uuid.UUID) -> list[EarlierVote]:
    """Return the votes on the approvals that this one follows, directly or over others, oldest first."""
    return all_rows(pool, EarlierVote, EARLIER_VOTES, {"tenant_id": tenant_id, "approval_id": approval_id})


def decided_since(
    pool: Pool,
    tenant_id: uuid.UUID,
    since: datetime,
    limit: int,
    *,
    principal_id: uuid.UUID | None = None,
    agent_id: str | None = None,
) -> list[DecidedApproval]:
    """Return agents' approvals that were approved, rejected or expired after `since`, oldest first.

    With a `principal_id`, only the approvals that it requested, and those that any key requested in the name of
    `agent_id`. Rows decided in the same instant as the last one are included, so there can be a few more than `limit`.
    """
    return all_rows(pool, DecidedApproval, DECIDED_SINCE if principal_id is None else DECIDED_SINCE_OF, {
        "tenant_id": tenant_id, "since": since, "limit": limit, "principal_id": principal_id, "agent_id": agent_id,
    })  # fmt: skip


_TAKEN = ("approved", "rejected", "handled", "recorded")
APPROVE, REJECT, HANDLED = "approve", "reject", "handled"
MAX_REFERENCE = 200

PERSON_REFUSALS: dict[str, SentinelError] = {
    "requester": Forbidden(
        "you own, made or rotated the key that requested this, or requested it yourself; another person must decide it"
    ),
    "too_new": Forbidden(
        "this was requested before your account was created, or before somebody else last changed its role, password or second"
        " factor; another person must decide it"
    ),
    "same_hands": Forbidden(
        "a person who has already voted may control your account; a second administrator must confirm your account first"
    ),
}
"""Errors for a person who may not decide an approval, whatever their role, by result of the SQL function."""

_REFUSALS: dict[str, SentinelError] = {
    "unknown": NotFound("there is no approval with this id"),
    "not_pending": Conflict("this approval was decided before"),
    "expired": Conflict("this approval expired; the agent has to ask again"),
    # Not returned where votes count again since the last one and are enough: then approving again decides.
    "already_voted": Conflict("you have voted on this approval already; another person has to vote"),
    "changed": Conflict("the digest is not the one of this approval; look at it again"),
    "not_offered": Conflict("this cannot be approved; reject it, or record that it was handled by hand"),
    "not_handled": Conflict("this can only be approved or rejected, not handled by hand"),
    "role": Forbidden("this approval needs a higher role"),
    **PERSON_REFUSALS,
}


@dataclass(frozen=True, slots=True)
class ApprovalResolution:
    """`result` is "approved", "rejected", "handled", or "recorded" while more people have to approve.

    `outcome` is the result of a change of people, keys or receivers that this vote approved: "done", or why it was not
    done. It is None for everything else, and for a change that yields a password or key, which is made only when the
    requester collects it.
    """

    result: str
    approvals_given: int
    people_required: int
    outcome: str | None = None


def resolve_approval(
    pool: Pool,
    actor: Actor,
    approval_id: uuid.UUID,
    *,
    verdict: str,
    reason: str,
    digest: str,
    reference: str | None = None,
) -> ApprovalResolution:
    """Record `actor`'s vote. `digest` is the one that was shown to the person, and must be the approval's.

    One "reject" decides, and so does one "handled": a person did it elsewhere, under `reference` (1 to 200 characters),
    and the agent is denied it. "approve" decides once enough people have approved. Raises `NotFound`, `InvalidInput`
    (reference), `Conflict` (decided, expired, voted before, changed, approving or handling not offered), `Forbidden`
    (role, requester, account newer than the approval, same hands as another vote), or `MayBeRecorded` if the connection
    was lost and the vote may have been recorded.
    """
    actor.must_be("approver")
    _check_reference(verdict, reference)
    if actor.operator_id is None:
        raise Forbidden("only a person with an operator's account can decide an approval")
    # Sorted, because the vote's event must precede the event of the decision, and ids made in one millisecond are in
    # no particular order.
    event_id, second_event_id, third_event_id = sorted((new_id(), new_id(), new_id()))
    answer = act_once(pool, VoteResult, RESOLVE, {
        "tenant_id": actor.tenant_id, "approval_id": approval_id, "operator_id": actor.operator_id, "verdict": verdict,
        "reason": reason, "digest": digest, "via": actor.via, "event_id": event_id, "second_event_id": second_event_id,
        "reference": reference, "third_event_id": third_event_id,
    }, is_taken=lambda found: found.result in _TAKEN)  # fmt: skip
    refusal = _REFUSALS.get(answer.result)
    if refusal is not None:
        raise type(refusal)(refusal.detail)
    assert answer.people_required is not None
    return ApprovalResolution(answer.result, answer.approvals_given or 0, answer.people_required, answer.outcome)


def _check_reference(verdict: str, reference: str | None) -> None:
    if (verdict == HANDLED) != (reference is not None):
        raise InvalidInput.of("reference", "must be given for what was handled by hand, and only for that")
    if reference is not None and not check_text(reference, "reference", MAX_REFERENCE).strip():
        raise InvalidInput.of("reference", f"must have 1 to {MAX_REFERENCE} characters")
