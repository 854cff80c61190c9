"""The mirror of halts: what covers this agent. Guard and start refuse by themselves."""

from __future__ import annotations

import orjson
from flask import Blueprint, Response, request

from sentinel.authority.api.context import Context
from sentinel.authority.api.guard import SECURITY
from sentinel.authority.api.identity import require_own
from sentinel.authority.api.schemas import HeartbeatSchema
from sentinel.authority.halts import heartbeat_status
from sentinel.core.errors import InvalidInput
from sentinel.core.operation import check_identifier
from sentinel.platform.http.bodies import json_response
from sentinel.platform.http.openapi import documented


def routes(blueprint: Blueprint, context: Context) -> None:
    """Add the heartbeat to a blueprint."""

    @blueprint.get("/heartbeat")
    @documented(
        "What covers this agent", responses={200: ("OK, PAUSE or KILL.", HeartbeatSchema())},
        problems=(400, 401, 403, 429, 503), security=SECURITY,
        parameters=({"name": "agent_id", "in": "query", "schema": {"type": "string"}},),
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
