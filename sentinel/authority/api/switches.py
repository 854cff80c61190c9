"""What is switched on and what is halted, for agents that look before they ask; and the one flip an agent may make: off."""

from __future__ import annotations

import orjson
from flask import Blueprint, Response, request

from sentinel.authority.api.context import Context
from sentinel.authority.api.guard import SECURITY
from sentinel.authority.api.schemas import SwitchesSchema, SwitchOffReceiptSchema, SwitchOffRequestSchema
from sentinel.authority.switches import switch_states, switches_and_halts, turn_switch_off_by_agent
from sentinel.platform.http.bodies import json_body, json_response, load, without_nulls
from sentinel.platform.http.openapi import documented

_OFF = SwitchOffRequestSchema()
_PROBLEMS = (400, 401, 403, 429, 503)


def routes(blueprint: Blueprint, context: Context) -> None:
    """Add the switches to a blueprint."""

    @blueprint.get("/switches")
    @documented(
        "What is switched on, what is halted, which policies decide",
        description="For looking before asking; guard and start refuse what is halted by themselves. A switch that is not"
        " listed is off.",
        responses={200: ("How everything stands.", SwitchesSchema())}, problems=_PROBLEMS, security=SECURITY,
    )  # fmt: skip
    def show_switches() -> Response:
        caller = context.identity.caller("heartbeat", request.environ)
        found = switches_and_halts(context.authority.pool, caller.tenant_id)
        return json_response(orjson.dumps({
            "switches": {
                name: {"on": is_on, "canary_percent": percent, **({"simulated": list(simulated)} if simulated else {})}
                for name, (is_on, percent, simulated) in switch_states(context.switches.declared, found).items()
            },
            "halts": [{"scope": one.name, "target": one.target, "level": one.level} for one in found if one.kind == "halt"],
            "policies": {one.policy.policy_id: one.digest for one in context.authority.policies.library.policies},
        }))  # fmt: skip

    @blueprint.post("/switches/off")
    @documented(
        "Turn a switch off", description="An agent can only tighten: turning on is a person's. Again is the same answer.",
        request=_OFF, responses={200: ("It is off.", SwitchOffReceiptSchema())}, problems=(*_PROBLEMS, 411, 413, 415),
        security=SECURITY,
    )  # fmt: skip
    def switch_off() -> Response:
        caller = context.identity.caller("guard", request.environ)
        given = load(_OFF, without_nulls(json_body()))
        done = turn_switch_off_by_agent(
            context.authority.pool, caller, context.switches.declared, given["switch"], reason=given["reason"]
        )
        return json_response(orjson.dumps({"switch": done.name, "on": False, "already": done.already}))
