"""The public board's JSON: status, feed, stream and proof packs, all of it published documents (`core.publication`)."""

from __future__ import annotations

from flask import Blueprint, Response

from ops_console.api.case_schemas import LiveFeedSchema
from ops_console.api.control_schemas import LIVE_STATUS, PublicPackSchema
from ops_console.api.rendering import LIMIT, in_query, json_response, limit
from ops_console.board import pages
from ops_console.board.reader import MOST_SHOWN
from ops_console.board.stream import PATH, Stream
from ops_console.context import ConsoleContext
from ops_console.headers import HEADERS, PUBLIC_HEADERS
from sentinel.core.publication import PublicFields
from sentinel.platform.http.asgi import EVENT_STREAM
from sentinel.platform.http.openapi import Documentation, answered_on_the_loop, documented


def routes(blueprint: Blueprint, context: ConsoleContext) -> Stream:
    """Add the public JSON routes and the pages, and return the live stream, which the event loop serves."""
    board = context.board
    live = Stream(
        context.hub,
        headers={**HEADERS, **PUBLIC_HEADERS, **EVENT_STREAM},
        trusted_proxies=context.settings.trusted_proxies,
    )

    @blueprint.get("/ops/api/live/status")
    @documented(
        "The status of each public agent",
        responses={
            200: (
                "One object per agent; `status` is halted, degraded (a part of it is halted), active or idle.",
                LIVE_STATUS,
            )
        },
        problems=(503,),
    )
    def status() -> Response:
        return public_json(board.publisher.board(board.tenant()[1], board.statuses()))

    @blueprint.get("/ops/api/live/feed")
    @documented("The latest decisions, newest first", responses={200: ("Redacted events.", LiveFeedSchema)},
                problems=(400, 503), parameters=(in_query("limit", **LIMIT, maximum=MOST_SHOWN, default=20),))  # fmt: skip
    def feed() -> Response:
        return public_json(board.publisher.feed([one.fields for one in board.newest(limit(20, MOST_SHOWN))]))

    stream = Documentation("Decisions as they happen", responses={200: ("Server-sent events.", {"type": "string"})}, problems=(503,),
                description="After the header `Last-Event-ID`, else after `last_seen`, else beginning with the latest few.",
                parameters=(in_query("last_seen", pattern="^[0-9]{1,18}$"),), content_type="text/event-stream")  # fmt: skip
    blueprint.add_url_rule(PATH, "stream", answered_on_the_loop(stream))

    @blueprint.get("/verify/<proof_id>.json")
    @documented(
        "A public proof pack", responses={200: ("The pack with its hash.", PublicPackSchema)}, problems=(404, 503)
    )
    def proof(proof_id: str) -> Response:
        # Only for agents on the board. Somebody who was given another agent's pack can paste it at /verify/.
        return public_json(board.proof(proof_id), seconds=3600)

    pages.routes(blueprint, context)
    return live


def public_json(document: PublicFields, seconds: int = 1) -> Response:
    """A public document as JSON. Only published values have the type `PublicFields`, so nothing else can be sent."""
    return pages.cacheable(json_response(document), seconds=seconds)
