"""The API of halts (list, set, lift) and of operations in doubt (list, resolve)."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response, request

from ops_console.api.control_schemas import (
    HaltLiftedSchema,
    HaltListSchema,
    HaltSetSchema,
    InDoubtPageSchema,
    InDoubtResolvedSchema,
)
from ops_console.api.rendering import (
    LIMIT,
    OPERATOR,
    READING,
    WRITING,
    amount,
    cursor_out,
    id_cursor_in,
    in_query,
    json_response,
    limit,
    next_page,
    path_id,
    present,
)
from ops_console.api.request_schemas import LiftHaltSchema, ResolveInDoubtSchema, SetHaltSchema
from ops_console.context import ConsoleContext
from ops_console.identity import actor, must_have_proved
from sentinel.authority.halts import MOST_LIFTED, HaltRow, lift_halt, list_halts, list_lifted_too, set_halt
from sentinel.authority.in_doubt import InDoubtRow, list_in_doubt, resolve_in_doubt
from sentinel.authority.reasons import reason_text
from sentinel.platform.http.bodies import json_body, load, without_nulls
from sentinel.platform.http.openapi import documented

_SET, _LIFT, _RESOLVE = SetHaltSchema(), LiftHaltSchema(), ResolveInDoubtSchema()
_LISTED = f"The tenant's halts and global ones; with lifted=true also the newest {MOST_LIFTED} lifted ones, and left_out says whether there are more."


def halt_view(row: HaltRow) -> dict[str, Any]:
    """A halt as operators see it; `target` is left out if the scope has none."""
    return present({
        "halt_id": row.halt_id, "scope": row.scope, "target": row.target or None, "level": row.level,
        "reason": row.reason, "set_by": row.set_by, "set_at": row.set_at, "lifted_by": row.lifted_by,
        "lifted_at": row.lifted_at,
    })  # fmt: skip


def in_doubt_view(row: InDoubtRow) -> dict[str, Any]:
    """An operation in doubt as operators see it."""
    return present({
        "operation_id": row.operation_id, "idempotency_key": row.idempotency_key, "agent_id": row.agent_id,
        "action": row.action, "resource": row.resource, "amount": amount(row.amount_minor, row.currency),
        "why": reason_text(row.in_doubt_reason), "started_at": row.started_at, "in_doubt_since": row.in_doubt_since,
        "in_doubt_reason": row.in_doubt_reason, "act_until": row.act_until,
    })  # fmt: skip


def routes(blueprint: Blueprint, context: ConsoleContext) -> None:
    """Add the halt and in-doubt routes."""

    @blueprint.get("/halts")
    @documented("Halts in force, newest first", responses={200: (_LISTED, HaltListSchema)}, problems=READING,
                security=OPERATOR, parameters=(in_query("lifted", enum=["true"]),))  # fmt: skip
    def show_halts() -> Response:
        if request.args.get("lifted") != "true":
            return json_response({"halts": [halt_view(row) for row in list_halts(context.pool, actor().tenant_id)]})
        rows, left_out = list_lifted_too(context.pool, actor().tenant_id)
        return json_response({"halts": [halt_view(row) for row in rows], "left_out": left_out})

    @blueprint.post("/halts")
    @documented("Set a halt", request=_SET, responses={200: ("It was already in force.", HaltSetSchema), 201: ("In force.", HaltSetSchema)},
                problems=WRITING, security=OPERATOR)  # fmt: skip
    def create_halt() -> Response:
        person = actor()
        person.must_be("approver")
        given = load(_SET, without_nulls(json_body()))
        done = set_halt(
            context.pool, person, scope=given["scope"], target=given.get("target", ""), level=given.get("level", "kill"),
            reason=given["reason"],
        )  # fmt: skip
        return json_response({"halt_id": done.halt_id, "already": done.already}, 200 if done.already else 201)

    @blueprint.post("/halts/<halt_id>/lift")
    @documented(
        "Lift a halt",
        request=_LIFT,
        responses={200: ("Lifted.", HaltLiftedSchema)},
        problems=WRITING,
        security=OPERATOR,
    )
    def lift(halt_id: str) -> Response:
        person = actor()
        person.must_be("admin")
        must_have_proved()
        given = load(_LIFT, without_nulls(json_body()))
        lift_halt(context.pool, person, path_id(halt_id, "halt"), reason=given["reason"])
        return json_response({"halt_id": halt_id, "lifted": True})

    @blueprint.get("/in-doubt")
    @documented("Started operations whose outcome is unknown", responses={200: ("Longest in doubt first.", InDoubtPageSchema)},
                problems=READING, security=OPERATOR,
                parameters=(in_query("cursor"), in_query("limit", **LIMIT, maximum=200, default=200)))  # fmt: skip
    def show_in_doubt() -> Response:
        most = limit(200, 200)
        rows = list_in_doubt(context.pool, actor().tenant_id, limit=most, after=id_cursor_in())
        following = next_page(rows, most, lambda row: cursor_out(row.in_doubt_since, str(row.operation_id)))
        return json_response({"in_doubt": [in_doubt_view(row) for row in rows], **following})

    @blueprint.post("/in-doubt/<operation_id>/resolve")
    @documented("Resolve it as executed or not executed", request=_RESOLVE, responses={200: ("Recorded.", InDoubtResolvedSchema)}, problems=WRITING,
                security=OPERATOR)  # fmt: skip
    def resolve(operation_id: str) -> Response:
        person = actor()
        person.must_be("admin")
        must_have_proved()
        given = load(_RESOLVE, without_nulls(json_body()))
        resolve_in_doubt(
            context.pool, person, path_id(operation_id, "operation"), executed=given["executed"], evidence=given["evidence"],
            in_doubt_since=given.get("in_doubt_since"),
        )  # fmt: skip
        return json_response({"operation_id": operation_id, "executed": given["executed"]})
