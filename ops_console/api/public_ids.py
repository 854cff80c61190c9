"""What a public id stands for, for operators."""

from __future__ import annotations

import dataclasses

from flask import Blueprint, Response

from ops_console.api.case_schemas import PublicIdSchema
from ops_console.api.rendering import OPERATOR, READING, json_response, present
from ops_console.context import ConsoleContext
from ops_console.identity import actor
from sentinel.authority.public_ids import look_up_public_id
from sentinel.platform.http.openapi import documented


def routes(blueprint: Blueprint, context: ConsoleContext) -> None:
    """Add the route that looks up a public id."""

    @blueprint.get("/public-ids/<public_id>")
    @documented(
        "What an identifier on the public board or in a public proof stands for",
        responses={200: ("What it stands for, and the first decision in which it occurs.", PublicIdSchema)},
        problems=(*READING, 404), security=OPERATOR,
    )  # fmt: skip
    def public_id(public_id: str) -> Response:
        found = look_up_public_id(context.pool, actor().tenant_id, context.public_ids(), public_id)
        return json_response(present(dataclasses.asdict(found)))
