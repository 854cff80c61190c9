"""Changes of who may do what: people, their roles and passwords, keys, and receivers of events.

Every page and command makes such a change by `request_change`. A change that gives somebody power waits for a second
administrator once the tenant has two, as an approval in the queue. A password or key that results from it is made when
the requester collects it. The database has the rules (`schema/authority/protected_changes.sql`), and the console's role
cannot write people and keys in any other way.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from sentinel.authority.actor import Actor
from sentinel.core.canonical import canonical_json
from sentinel.core.errors import Conflict, Forbidden, NotFound, SentinelError
from sentinel.core.wording import counted
from sentinel.store.database import Pool
from sentinel.store.ids import new_id
from sentinel.store.queries import act_once, one_row, scalar

WAITS = "waits"
CREATE_OPERATOR, SET_ROLE, DEACTIVATE, REACTIVATE = (
    "operator.create", "operator.set_role", "operator.deactivate", "operator.reactivate",
)  # fmt: skip
RESET_PASSWORD, RESET_SECOND_FACTOR = "operator.reset_password", "operator.reset_second_factor"
END_ACCESS, CONFIRM = "operator.end_access", "operator.confirm"
ISSUE_KEY, ROTATE_KEY, REVOKE_KEY = "key.issue", "key.rotate", "key.revoke"
ADD_WEBHOOK, ENABLE_WEBHOOK = "webhook.add", "webhook.enable"
DISABLE_WEBHOOK, ROTATE_WEBHOOK = "webhook.disable", "webhook.rotate"
LASTS_SECONDS = 3 * 86400
"""How long a second administrator has to approve a change: long enough for a weekend."""


class WaitsForAdministrator(Conflict):
    """Raised if a change is not made yet: a second administrator has to approve it, in the approval `approval_id`."""

    code = "waits-for-administrator"

    def __init__(self, approval_id: uuid.UUID) -> None:
        super().__init__(
            f"nothing is changed yet: this waits for a second administrator, as approval {approval_id}; the requester collects"
            " a new password or key there"
        )
        self.approval_id = approval_id


REFUSALS: dict[str, SentinelError] = {
    "unknown": NotFound("there is nothing with this id"),
    "role": Forbidden("this needs the role admin"),
    "not_yours": Forbidden("only the person who requested this can collect it"),
    "not_approved": Conflict("this is not approved"),
    "too_late": Conflict("this change was approved more than a day ago; request it again"),
    "collected": Conflict("this was collected before; it is shown only once"),
    "taken": Conflict("another operator has that address now"),
    "repeated": Conflict("this operator was added before"),
    "changed": Conflict("this operator has another role by now; look again"),
    "made_before": Conflict("a key with this id was already made"),
    "endpoint_known": Conflict("a webhook with this id was already added"),
    "same": Conflict("it is already so; nothing was changed"),
    "over": Conflict("the key is revoked or expired; make a new one"),
}


@dataclass(frozen=True, slots=True)
class Asked:
    """The database's answer to a requested change: `waits_for` is the approval's id if the result is "waits"."""

    result: str
    waits_for: uuid.UUID | None


@dataclass(frozen=True, slots=True)
class _Made:
    result: str


@dataclass(frozen=True, slots=True)
class ProtectedChange:
    """A change that needs or needed a second administrator; `request` is canonical JSON.

    `asked_by` is its requester, None for the local administrator. `collectable` means that it is approved, and its
    password or key can be made now.
    """

    request: str
    action: str
    asked_by: uuid.UUID | None
    outcome: str | None
    collectable: bool


REQUEST_CHANGE = """
select result, waits_for from sentinel.request_change(%(tenant_id)s, %(by_id)s, %(by)s, %(via)s, %(request)s, %(given)s::jsonb,
  %(approval_id)s, %(event_id)s, %(lasts_seconds)s)
"""
MAKE_APPROVED = """
select sentinel.make_approved_change(%(tenant_id)s, %(approval_id)s, %(by_id)s, %(by)s, %(given)s::jsonb, %(event_id)s) as result
"""
FIND_CHANGE = """
select c.request, a.action, c.asked_by, c.outcome,
  c.done_at is null and sentinel.makes_secret(a.action) and sentinel.is_collectable(a) as collectable
from sentinel.protected_changes c join sentinel.approvals a using (tenant_id, approval_id)
where c.tenant_id = %(tenant_id)s and c.approval_id = %(approval_id)s
"""
CHANGE_WAITS = "select sentinel.is_change_pending(%(tenant_id)s, %(by_id)s)"


def request_change(
    pool: Pool,
    actor: Actor,
    action: str,
    resource: str,
    params: Mapping[str, Any],
    given: Mapping[str, Any] | None = None,
) -> str:
    """Make a change, one of the actions above, and return the database's answer: "done", or why it was not done.

    `params` define the change exactly and are shown to the approving administrator; `given` is what is stored of a
    password or key, e.g. its hash. Raises `WaitsForAdministrator`, `Forbidden` for an actor that is not an
    administrator, and `MayBeRecorded` if the connection was lost and the change may have been made.
    """
    actor.must_be("admin")
    asked = {
        "action": action, "resource": resource, "requested_by": actor.name,
        "params": {name: _plain(value) for name, value in params.items() if value is not None},
    }  # fmt: skip
    answer = _ask(
        pool, tenant_id=actor.tenant_id, by_id=actor.operator_id, by=actor.name, via=actor.via, request=canonical_json(asked),
        given=given or {}, approval_id=new_id(), event_id=new_id(), lasts_seconds=LASTS_SECONDS,
    )  # fmt: skip
    if answer.result == WAITS:
        assert answer.waits_for is not None
        raise WaitsForAdministrator(answer.waits_for)
    if answer.result == "role":
        raise Forbidden("this needs the role admin")
    return answer.result


def _plain(value: Any) -> Any:
    if isinstance(value, uuid.UUID):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def _ask(
    pool: Pool,
    *,
    tenant_id: uuid.UUID,
    by_id: uuid.UUID | None,
    by: str,
    via: str,
    request: str,
    given: Mapping[str, Any],
    approval_id: uuid.UUID,
    event_id: uuid.UUID,
    lasts_seconds: int,
) -> Asked:
    """Make the change `request` (canonical JSON), or let it wait for a second administrator as `approval_id`.

    `given` is what is stored of a secret; it is never shown.
    """
    return act_once(pool, Asked, REQUEST_CHANGE, {
        "tenant_id": tenant_id, "by_id": by_id, "by": by, "via": via, "request": request, "given": orjson.dumps(given).decode(),
        "approval_id": approval_id, "event_id": event_id, "lasts_seconds": lasts_seconds,
    }, is_taken=lambda found: found.result in ("done", WAITS, "repeated"))  # fmt: skip


def make_approved(
    pool: Pool,
    *,
    tenant_id: uuid.UUID,
    approval_id: uuid.UUID,
    by_id: uuid.UUID | None,
    by: str,
    given: Mapping[str, Any],
    event_id: uuid.UUID,
) -> str:
    """Make an approved change whose password or key its requester collects now.

    `given` is what is stored of the secret. Returns the answer of the SQL function `sentinel.make_approved_change`.
    Raises `MayBeRecorded` as `act_once`.
    """
    return act_once(pool, _Made, MAKE_APPROVED, {
        "tenant_id": tenant_id, "approval_id": approval_id, "by_id": by_id, "by": by, "given": orjson.dumps(given).decode(),
        "event_id": event_id,
    }, is_taken=lambda found: found.result == "done").result  # fmt: skip


def find_change(pool: Pool, tenant_id: uuid.UUID, approval_id: uuid.UUID) -> ProtectedChange | None:
    """Return the change that the approval is about, or None if it is about an agent's operation."""
    return one_row(pool, ProtectedChange, FIND_CHANGE, {"tenant_id": tenant_id, "approval_id": approval_id})


def is_change_pending(pool: Pool, tenant_id: uuid.UUID, by_id: uuid.UUID | None) -> bool:
    """Return whether a change that gives somebody power would now wait, if this operator (None: nobody's account) requested it."""
    return bool(scalar(pool, CHANGE_WAITS, {"tenant_id": tenant_id, "by_id": by_id}))


ADDRESS_OF = "select email from sentinel.operators where tenant_id = %(tenant_id)s and operator_id = %(operator_id)s"


def address_of(pool: Pool, tenant_id: uuid.UUID, operator_id: uuid.UUID) -> str | None:
    """Return an operator's address, for showing a change to people, or None."""
    found: str | None = scalar(pool, ADDRESS_OF, {"tenant_id": tenant_id, "operator_id": operator_id})
    return found


def outcome_text(outcome: str) -> str:
    """Return the outcome of an approved change as a clause, without a period."""
    if outcome == "done":
        return "it was done"
    if outcome == "role":
        return "the requester is no longer an administrator"
    refusal = REFUSALS.get(outcome)
    return refusal.detail if refusal else f"it could not be done: {outcome.replace('_', ' ')}"


def approved_text(outcome: str | None) -> str:
    """Return the outcome of a change as a sentence for its approver; `outcome` is that of `ApprovalResolution`."""
    if outcome is None:
        return "It is done when the requester collects the password or key."
    return "It is done." if outcome == "done" else f"Nothing was changed: {outcome_text(outcome)}."


_ROLES = {"viewer": "a viewer", "approver": "an approver", "admin": "an administrator"}


def change_text(request: str) -> str:
    """Return a requested change (canonical JSON) as a phrase, e.g. "Make operator ann@shop.example an approver"."""
    asked = json.loads(request)
    action, params = asked["action"], asked["params"]
    if action.startswith("key."):
        return _of_key(action, params)
    if action.startswith("webhook."):
        return _of_webhook(action, params)
    email = params["email"]
    return {
        "operator.create": f"Make operator {email} {_ROLES.get(params.get('role'), '')}",
        "operator.set_role": f"Make operator {email}, until now {_ROLES.get(params.get('seen'), 'of another role')},"
        f" {_ROLES.get(params.get('role'), '')}",
        "operator.reactivate": f"Let operator {email} sign in again",
        "operator.reset_password": f"Reset the password of operator {email}",
        "operator.reset_second_factor": f"Remove the second factor of operator {email}",
    }[action]


def _of_webhook(action: str, params: Mapping[str, Any]) -> str:
    if action == "webhook.enable":
        return f"Send events to {params['url']} again"
    types = ", ".join(params["event_types"]) or "every type"
    return f"Send events ({types}) to {params['url']}"


def _of_key(action: str, params: Mapping[str, Any]) -> str:
    whose = f"agent {params['agent_id']}" if params.get("agent_id") else "any agent"
    days = params["expires_seconds"] // 86400 if params.get("expires_seconds") else None
    ends = ", without expiry" if days is None else f", for {counted(days, 'day')}"
    scopes = f"{'scopes' if len(params['scopes']) > 1 else 'scope'} {', '.join(params['scopes'])}"
    if action == "key.rotate":
        overlap = counted(params["overlap_seconds"] // 3600, "hour")
        return f"Successor of key {params['old_key_id']}, for {whose} with the {scopes}{ends}; the old one expires after {overlap}"
    owner = f", owned by {params['owner']}" if params.get("owner") else ""
    return f"New key for {whose} with the {scopes}{owner}{ends}"
