"""Routes for an agent's status: its key, the halts that cover it, the switches; and turning a switch off."""

from __future__ import annotations

import orjson
from flask import Blueprint, Response, request

from sentinel.authority.api.context import Context
from sentinel.authority.api.guard import SECURITY
from sentinel.authority.api.identity import require_own
from sentinel.authority.api.schemas import (
    HeartbeatSchema,
    KeySchema,
    SwitchesSchema,
    SwitchOffReceiptSchema,
    SwitchOffRequestSchema,
)
from sentinel.authority.halts import heartbeat_status
from sentinel.authority.switches import switch_states, switches_and_halts, turn_switch_off_by_agent
from sentinel.authority.tenants import tenant_label_of
from sentinel.core.errors import InvalidInput
from sentinel.core.operation import check_identifier
from sentinel.platform.http.bodies import json_body, json_response, load, without_nulls
from sentinel.platform.http.openapi import documented

_OFF = SwitchOffRequestSchema()
_PROBLEMS = (400, 401, 403, 429, 503)


def routes(blueprint: Blueprint, context: Context) -> None:
    """Add the routes to a blueprint."""
    _heartbeat_route(blueprint, context)
    _key_route(blueprint, context)
    _switch_routes(blueprint, context)


def _heartbeat_route(blueprint: Blueprint, context: Context) -> None:
    @blueprint.get("/heartbeat")
    @documented(
        "The strictest halt that covers an agent", responses={200: ("OK (no halt), PAUSE or KILL.", HeartbeatSchema)},
        problems=_PROBLEMS, security=SECURITY,
        parameters=({
            "name": "agent_id", "in": "query", "schema": {"type": "string", "maxLength": 128},
            "description": "Required for a key that is bound to no agent.",
        },),
    )  # fmt: skip
    def heartbeat() -> Response:
        caller = context.identity.caller("heartbeat", request.environ)
        agent_id = request.args.get("agent_id") or caller.agent_id
        if agent_id is None:
            raise InvalidInput.of("agent_id", "is required for a key that is bound to no agent")
        require_own(caller, None, check_identifier(agent_id, "agent_id", 128))
        return json_response(
            orjson.dumps({"status": heartbeat_status(context.authority.pool, caller.tenant_id, agent_id)})
        )


def _key_route(blueprint: Blueprint, context: Context) -> None:
    @blueprint.get("/key")
    @documented(
        "The key of the request", description="Returns the tenant, agent and scopes of the key that sends the request. The key needs no scope for it.",
        responses={200: ("The key's tenant, the agent that it is bound to (if any), and its scopes.", KeySchema)}, problems=(401, 403, 429, 503),
        security=SECURITY,
    )  # fmt: skip
    def key() -> Response:
        caller = context.identity.caller(None, request.environ)
        found = {
            "tenant_id": str(caller.tenant_id),
            "tenant": tenant_label_of(context.authority.pool, caller.tenant_id),
            "agent_id": caller.agent_id,
            "scopes": sorted(caller.scopes),
        }
        return json_response(orjson.dumps({name: value for name, value in found.items() if value is not None}))


def _switch_routes(blueprint: Blueprint, context: Context) -> None:
    @blueprint.get("/switches")
    @documented(
        "The switches, the halts in force and the policies in force",
        description="For information before a request; guard and start refuse halted actions by themselves. A switch that is not"
        " listed is off. For a key that is bound to an agent, without the halts of other agents.",
        responses={200: ("The switches, halts and policies.", SwitchesSchema)}, problems=_PROBLEMS, security=SECURITY,
    )  # fmt: skip
    def show_switches() -> Response:
        caller = context.identity.caller("heartbeat", request.environ)
        declared = context.switches.declared
        found = switches_and_halts(context.authority.pool, caller.tenant_id, declared, caller.agent_id)
        return json_response(orjson.dumps({
            "switches": {
                name: {"on": is_on, "canary_percent": percent, **({"unproven": list(unproven)} if unproven else {})}
                for name, (is_on, percent, unproven) in switch_states(declared, found).items()
            },
            "halts": [{"scope": one.name, "target": one.target, "level": one.level} for one in found if one.kind == "halt"],
            "policies": {one.policy.policy_id: one.digest for one in context.authority.policies.library.policies},
        }))  # fmt: skip

    @blueprint.post("/switches/off")
    @documented(
        "Turn a switch off", description="An agent can only turn a switch off; only a person can turn it on. A repeat succeeds too, and each call is recorded as an event: launch-gate reports from before the latest call no longer count.",
        request=_OFF, responses={200: ("The switch is off.", SwitchOffReceiptSchema)}, problems=(*_PROBLEMS, 411, 413, 415),
        security=SECURITY,
    )  # fmt: skip
    def switch_off() -> Response:
        caller = context.identity.caller("guard", request.environ)
        given = load(_OFF, without_nulls(json_body()))
        done = turn_switch_off_by_agent(
            context.authority.pool, caller, context.switches.declared, given["switch"], reason=given["reason"]
        )
        return json_response(orjson.dumps({"switch": done.name, "on": False, "already": done.already}))
