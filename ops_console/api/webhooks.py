"""The API of receivers and dead letters: their state, disabling a receiver, sending dead letters again."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

from flask import Blueprint, Response

from ops_console.api.control_schemas import (
    DeadLetterPageSchema,
    EndpointDisabledSchema,
    EndpointListSchema,
    ResendAskedSchema,
)
from ops_console.api.rendering import (
    LIMIT,
    OPERATOR,
    READING,
    WRITING,
    cursor_in,
    cursor_out,
    in_query,
    json_response,
    limit,
    next_page,
    path_id,
    present,
)
from ops_console.api.request_schemas import ResendSchema
from ops_console.context import ConsoleContext
from ops_console.identity import actor, must_have_proved
from sentinel.authority.actor import Actor
from sentinel.authority.webhooks import (
    DeadLetter,
    EventEndpoint,
    disable_webhook,
    list_dead_letters,
    list_endpoints,
    resend,
)
from sentinel.core.errors import InvalidInput
from sentinel.platform.http.bodies import json_body, load, without_nulls
from sentinel.platform.http.openapi import documented
from sentinel.store.ids import uuid_or_none

_RESEND = ResendSchema()


def endpoint_view(row: EventEndpoint) -> dict[str, Any]:
    """A receiver as administrators see it, without any secret."""
    return present({
        "endpoint_id": row.endpoint_id, "kind": row.kind, "url": row.url, "event_types": row.event_types, "behind": row.behind,
        "attempts": row.attempts, "failing_since": row.failing_since, "next_attempt_at": row.next_attempt_at if row.attempts else None,
        "last_error": row.last_error, "delivered_at": row.delivered_at, "disabled_at": row.disabled_at,
        "disabled_reason": row.disabled_reason, "dead_letters": row.dead_letters, "created_at": row.created_at,
    })  # fmt: skip


def dead_letter_view(row: DeadLetter) -> dict[str, Any]:
    """A dead letter as administrators see it."""
    return present({
        "endpoint_id": row.endpoint_id, "url": row.url, "event_id": row.event_id, "event": row.event, "operation_id": row.operation_id,
        "position": row.position, "attempts": row.attempts, "last_error": row.last_error, "died_at": row.died_at,
        "resend_asked_at": row.resend_asked_at,
    })  # fmt: skip


def routes(blueprint: Blueprint, context: ConsoleContext) -> None:
    """Add the routes of webhooks; all of them are the administrators'."""

    @blueprint.get("/webhooks")
    @documented("Receivers of events, and the position of each", responses={200: ("Oldest first.", EndpointListSchema)}, problems=READING,
                security=OPERATOR)  # fmt: skip
    def show_webhooks() -> Response:
        rows = list_endpoints(context.pool, _administrator().tenant_id)
        return json_response({"webhooks": [endpoint_view(row) for row in rows]})

    @blueprint.get("/webhooks/dead-letters")
    @documented("Events that receivers did not accept in time", responses={200: ("Oldest first.", DeadLetterPageSchema)}, problems=READING, security=OPERATOR,
                parameters=(in_query("cursor"), in_query("limit", **LIMIT, maximum=200, default=200)))  # fmt: skip
    def show_dead_letters() -> Response:
        person, most = _administrator(), limit(200, 200)
        rows = list_dead_letters(context.pool, person.tenant_id, limit=most, after=_after())
        following = next_page(rows, most, _place_of)
        return json_response({"dead_letters": [dead_letter_view(row) for row in rows], **following})

    @blueprint.post("/webhooks/<endpoint_id>/disable")
    @documented(
        "Disable a webhook: nothing more is sent to it",
        responses={200: ("Disabled.", EndpointDisabledSchema)},
        problems=WRITING,
        security=OPERATOR,
    )
    def disable(endpoint_id: str) -> Response:
        person = _administrator()
        must_have_proved()
        disable_webhook(context.pool, person, path_id(endpoint_id, "webhook"))
        return json_response({"endpoint_id": endpoint_id, "disabled": True})

    @blueprint.post("/webhooks/<endpoint_id>/resend")
    @documented("Resend dead letters", request=_RESEND, responses={202: ("How many are resent.", ResendAskedSchema)},
                problems=WRITING, security=OPERATOR)  # fmt: skip
    def resend_dead_letters(endpoint_id: str) -> Response:
        person = _administrator()
        must_have_proved()
        given = load(_RESEND, without_nulls(json_body()))
        about = path_id(given["event_id"], "event") if "event_id" in given else None
        return json_response({"asked": resend(context.pool, person, path_id(endpoint_id, "webhook"), about)}, 202)


def _place_of(row: DeadLetter) -> str:
    """The cursor after this dead letter; it has the receiver's id too, because an event can be a dead letter of several."""
    return cursor_out(row.died_at, f"{row.event_id}.{row.endpoint_id}")


def _after() -> tuple[datetime, uuid.UUID, uuid.UUID] | None:
    """Return `?cursor=` as `_place_of` wrote it, or None. Raises `InvalidInput`."""
    found = cursor_in()
    if found is None:
        return None
    event_id, _, endpoint_id = found[1].partition(".")
    event, endpoint = uuid_or_none(event_id), uuid_or_none(endpoint_id)
    if event is None or endpoint is None:
        raise InvalidInput.of("cursor", "is not a valid cursor")
    return found[0], event, endpoint


def _administrator() -> Actor:
    person = actor()
    person.must_be("admin")
    return person
