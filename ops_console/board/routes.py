"""The public board: status, feed, stream, proof packs and a plain page. Everything here was chosen, not filtered."""

from __future__ import annotations

import re
from collections.abc import Iterator

import orjson
from flask import Blueprint, Response, request

from ops_console import metrics
from ops_console.api.documentation import LIMIT, in_query
from ops_console.api.rendering import json_response, limit
from ops_console.api.schemas import LiveFeedSchema
from ops_console.board.events import agent_status, board_page, live_event, public_pack
from ops_console.context import Context
from sentinel.http.openapi import documented
from sentinel.services.verify_proof import read_proof

_POSITION = re.compile(r"[0-9]{1,18}")


def routes(blueprint: Blueprint, context: Context) -> None:
    """Add the public routes."""
    board = context.board

    @blueprint.get("/ops/api/live/status")
    @documented(
        "Each public agent at a glance", responses={200: ("One object per agent.", {"type": "object"})}, problems=(503,)
    )
    def status() -> Response:
        shown = {"tenant": board.tenant()[1]}
        agents = {board.agents.name(agent_id): agent_status(row) for agent_id, row in board.latest_by_agent().items()}
        return _cacheable(json_response({**agents, **shown}))

    @blueprint.get("/ops/api/live/feed")
    @documented("The latest decisions, newest first", responses={200: ("Redacted events.", LiveFeedSchema())},
                problems=(400, 503), parameters=(in_query("limit", **LIMIT, maximum=100),))  # fmt: skip
    def feed() -> Response:
        rows = board.newest(limit(20, 100))
        return _cacheable(json_response({"events": [live_event(row, board.agents) for row in rows]}))

    @blueprint.get("/ops/api/live/stream")
    @documented("Decisions as they happen", responses={200: ("Server-sent events.", {"type": "string"})}, problems=(503,),
                content_type="text/event-stream")  # fmt: skip
    def stream() -> Response:
        last_seen = request.headers.get("Last-Event-ID", "")
        position = int(last_seen) if _POSITION.fullmatch(last_seen) else None
        context.hub.join()
        response = Response(_events(context, position), content_type="text/event-stream")
        response.headers["Cache-Control"] = "no-store"
        response.headers["X-Accel-Buffering"] = "no"
        # Not in the generator: one that is never begun is never finished.
        response.call_on_close(_LeaveOnce(context))
        metrics.STREAMS.set(context.hub.viewers)
        return response

    @blueprint.get("/verify/<proof_id>.json")
    @documented(
        "A public proof pack", responses={200: ("The pack with its hash.", {"type": "object"})}, problems=(404, 503)
    )
    def proof(proof_id: str) -> Response:
        # Nobody guesses a name: whoever has it was given it, so packs of agents off the board are found too.
        pack = public_pack(read_proof(board.pool, board.tenant()[0], None, proof_id))
        response = json_response(pack)
        response.headers["Cache-Control"] = "public, max-age=3600"
        return response

    @blueprint.get("/live")
    @documented(
        "The board as a page", responses={200: ("HTML.", {"type": "string"})}, problems=(503,), content_type="text/html"
    )
    def page() -> Response:
        events = [live_event(row, board.agents) for row in board.newest(50)]
        return _cacheable(Response(board_page(board.tenant()[1], events), content_type="text/html; charset=utf-8"))


def _cacheable(response: Response) -> Response:
    """Shared caches may keep it a second, and ask again by its tag."""
    response.headers["Cache-Control"] = "public, max-age=1"
    response.add_etag()
    response.make_conditional(request)
    return response


def _events(context: Context, position: int | None) -> Iterator[bytes]:
    yield b": connected\nretry: 2000\n\n"
    for row in context.hub.follow(position):
        if row is None:
            yield b": heartbeat\n\n"
        else:
            event = orjson.dumps(live_event(row, context.board.agents))
            yield b"id: %d\ndata: %s\n\n" % (row.position, event)


class _LeaveOnce:
    """Gives the viewer's place back, however often the response is closed."""

    def __init__(self, context: Context) -> None:
        self._context: Context | None = context

    def __call__(self) -> None:
        context, self._context = self._context, None
        if context is not None:
            context.hub.leave()
            metrics.STREAMS.set(context.hub.viewers)
