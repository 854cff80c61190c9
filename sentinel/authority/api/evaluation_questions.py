"""An access evaluation (AuthZEN Authorization API 1.0) → the operation to guard or check.

A tool is mapped by `tools.yaml`. Anything else is taken literally: the action's name is the action, and the properties
that a PEP sends are its params. In `context` a few names are ours; the rest is evidence, which can only tighten.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from marshmallow import EXCLUDE, Schema, fields
from marshmallow.validate import OneOf

from sentinel.authority.api.identity import require_own
from sentinel.authority.engine import Caller
from sentinel.core.errors import InvalidInput
from sentinel.core.operation import Operation, build_operation, check_identifier
from sentinel.platform.http.bodies import Identifier, JsonObject, StrictBoolean, load, without_nulls
from sentinel.store.ids import uuid_or_none
from sentinel.tools.mapping import ToolTable
from sentinel.tools.operations import operation_of

TOOL_TYPES = frozenset({"tool", "mcp_tool"})
"""Resource types whose id names a tool: "server/tool", or "tool" for a tool of the server `local`."""
LOCAL = "local"
MOST_EVALUATIONS = 64
SEMANTICS = ("execute_all", "deny_on_first_deny", "permit_on_first_permit")
_CHECKED = "evaluation"
"""The idempotency key of operations that are only checked; nothing is recorded under it."""
_AGENT_TYPES = frozenset({"agent", "ai_agent"})
_OWN = ("idempotency_key", "start_step", "start_id", "arguments", "facts", "approval")


class _Tolerant(Schema):
    """A schema that ignores unknown members, as the specification requires."""

    def __init__(self, **rest: Any) -> None:
        super().__init__(unknown=EXCLUDE, **rest)


class SubjectSchema(_Tolerant):
    """The subject: who acts."""

    type = Identifier(most=64, required=True)
    id = Identifier(most=128, required=True)
    properties = JsonObject()


class ActionSchema(_Tolerant):
    """The action to be done."""

    name = Identifier(most=128, required=True)
    properties = JsonObject()


class ResourceSchema(_Tolerant):
    """The resource that the action is done to."""

    type = Identifier(most=64, required=True)
    id = Identifier(most=255, required=True)
    properties = JsonObject()


CONTEXT_HELP = (
    "`idempotency_key`: guard the action; a repeat gets the recorded decision. `start_step`: true if the caller redeems a permit"
    " before it acts. `start_id`: the id of the start; a retry gets the same start. `arguments`, `facts`: those of a tool."
    " `approval`: the approval because of which it is evaluated again. Anything else is evidence that can only tighten the decision."
)


class EvaluationRequestSchema(_Tolerant):
    """One access evaluation."""

    subject = fields.Nested(SubjectSchema, required=True)
    action = fields.Nested(ActionSchema, required=True)
    resource = fields.Nested(ResourceSchema, required=True)
    context = JsonObject(metadata={"description": CONTEXT_HELP})


class EvaluationOptionsSchema(_Tolerant):
    """How several evaluations are executed, and when to stop."""

    evaluations_semantic = fields.String(validate=OneOf(SEMANTICS))


class EvaluationsRequestSchema(_Tolerant):
    """Several access evaluations and the members that they share; without `evaluations`, the shared members are the only one."""

    subject = JsonObject()
    action = JsonObject()
    resource = JsonObject()
    context = JsonObject()
    options = fields.Nested(EvaluationOptionsSchema)
    evaluations = fields.List(fields.Raw(allow_none=True), metadata={"maxItems": MOST_EVALUATIONS})


class _OwnContextSchema(_Tolerant):
    idempotency_key = Identifier(most=255)
    start_step = StrictBoolean()
    start_id = fields.UUID()
    arguments = JsonObject()
    facts = JsonObject()
    approval = JsonObject()


_evaluation, _own_context = EvaluationRequestSchema(), _OwnContextSchema()
_REQUIRED = {"subject": ("type", "id"), "action": ("name",), "resource": ("type", "id")}


@dataclass(frozen=True, slots=True)
class Question:
    """What one evaluation asks. `operation` is None for a tool that runs unguarded.

    Without `is_recorded` the operation is only checked.
    `has_start_step`: the PEP redeems a permit before it acts; otherwise the answer "true" is the start.
    """

    operation: Operation | None
    is_recorded: bool = False
    has_start_step: bool = False
    start_id: uuid.UUID | None = None
    approval_id: uuid.UUID | None = None


def merged(common: Mapping[str, Any], one: Any) -> dict[str, Any]:
    """Return one of several evaluations, completed with the shared members. Raises `InvalidInput`.

    An entity replaces the shared one as a whole, and takes only those required members from it that it lacks. A null
    counts as absent.
    """
    if not isinstance(one, dict):
        raise InvalidInput.of("evaluation", "must be an object")
    found: dict[str, Any] = {}
    for name, required in _REQUIRED.items():
        entity, shared = one.get(name), common.get(name)
        if isinstance(entity, dict) and isinstance(shared, dict):
            entity = {**{member: shared[member] for member in required if member in shared}, **entity}
        if (entity := shared if entity is None else entity) is not None:
            found[name] = entity
    own = one.get("context")
    context = common.get("context") if own is None else own
    return found if context is None else {**found, "context": context}


def question_of(caller: Caller, body: Mapping[str, Any], table: ToolTable) -> Question:
    """Read what an evaluation asks, for which agent. Raises `InvalidInput`, `Forbidden` (another agent) and `ToolRefused`."""
    asked = load(_evaluation, without_nulls(body))
    subject, action, resource = asked["subject"], asked["action"], asked["resource"]
    context = asked.get("context") or {}
    own = load(_own_context, {name: context[name] for name in _OWN if context.get(name) is not None})
    evidence = {name: value for name, value in context.items() if name not in _OWN}
    agent_id = _agent_of(caller, subject)
    terms: dict[str, Any] = {
        "has_start_step": own.get("start_step", False), "start_id": own.get("start_id"),
        "approval_id": uuid_or_none(str(own.get("approval", {}).get("id", ""))),
    }  # fmt: skip
    if resource["type"] in TOOL_TYPES:
        call = table.call(*_tool_of(resource["id"]), _arguments(resource, action, own), own.get("facts"))
        if call.question is None:
            return Question(None)
        operation = operation_of(call.question, agent_id, evidence)
        return Question(operation, is_recorded=True, **terms)
    key = own.get("idempotency_key")
    operation = build_operation(
        idempotency_key=key or _CHECKED, agent_id=agent_id, action=action["name"], resource=resource["id"],
        params=_params(subject, action, resource), evidence=evidence,
    )  # fmt: skip
    return Question(operation, is_recorded=key is not None, **terms)


def _agent_of(caller: Caller, subject: Mapping[str, Any]) -> str:
    """Return the operation's agent: the one that the key is bound to, else the subject.

    Raises `Forbidden` for a subject that is another agent than the key's, and `InvalidInput`.
    """
    if caller.agent_id is None or subject["type"] in _AGENT_TYPES:
        require_own(caller, None, subject["id"])
        return check_identifier(subject["id"], "subject.id", 128)
    return caller.agent_id


def _tool_of(resource_id: str) -> tuple[str, str]:
    server, slash, tool = resource_id.partition("/")
    return (server, tool) if slash else (LOCAL, server)


def _arguments(resource: Mapping[str, Any], action: Mapping[str, Any], own: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the tool call's arguments from the one place that has them. Raises `InvalidInput` if several do."""
    places = [entity.get("properties", {}).get("arguments") for entity in (resource, action)] + [own.get("arguments")]
    said = [place for place in places if place is not None]
    if len(said) > 1 or not all(isinstance(place, dict) for place in said):
        raise InvalidInput.of(
            "arguments", "must be one object, in only one of resource.properties, action.properties and context"
        )
    return said[0] if said else {}


def _params(subject: Mapping[str, Any], action: Mapping[str, Any], resource: Mapping[str, Any]) -> dict[str, Any]:
    """Return the params: the properties of action and resource, the subject, and the resource's type.

    Raises `InvalidInput` if properties conflict with each other or with the names `subject` and `resource_type`.
    """
    found = dict(action.get("properties", {}))
    for name, value in resource.get("properties", {}).items():
        if name in found and not _is_same(found[name], value):
            raise InvalidInput.of(
                f"resource.properties.{str(name)[:64]}", "has another value in the action's properties"
            )
        found[name] = value
    for name in ("subject", "resource_type"):
        if name in found:
            raise InvalidInput.of(f"properties.{name}", "is a reserved name; use another one")
    return {**found, "subject": dict(subject), "resource_type": resource["type"]}


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal; in Python true is equal to 1."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)
