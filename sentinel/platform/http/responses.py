"""Flask responses that are made in more than one place."""

from __future__ import annotations

from flask import Response

from sentinel.platform.http.wire import Answer


def json_response(body: bytes) -> Response:
    """200 with a JSON body that nobody may store."""
    return wire_response(Answer(body))


def wire_response(given: Answer) -> Response:
    """An answer made without Flask, as its response."""
    return Response(given.body, status=given.status, content_type=given.content_type, headers=given.headers)
