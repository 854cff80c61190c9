"""Whose key this is: its tenant and the agent it is bound to, for programs that check their configuration at start."""

from __future__ import annotations

import orjson
from flask import Blueprint, Response, request

from sentinel.authority.api.context import Context
from sentinel.authority.api.guard import SECURITY
from sentinel.authority.api.schemas import KeySchema
from sentinel.authority.tenants import tenant_label_of
from sentinel.platform.http.bodies import json_response
from sentinel.platform.http.openapi import documented


def routes(blueprint: Blueprint, context: Context) -> None:
    """Add the key's own page to a blueprint."""

    @blueprint.get("/key")
    @documented(
        "Whose key this is", description="Its own tenant and agent, for any key that is accepted; it needs no scope.",
        responses={200: ("The tenant, and the agent it is bound to if it is.", KeySchema())}, problems=(401, 403, 429, 503),
        security=SECURITY,
    )  # fmt: skip
    def key() -> Response:
        caller = context.identity.caller(None, request.environ)
        found = {
            "tenant_id": str(caller.tenant_id),
            "tenant": tenant_label_of(context.authority.pool, caller.tenant_id),
            "agent_id": caller.agent_id,
        }
        return json_response(orjson.dumps({name: value for name, value in found.items() if value is not None}))
