"""Flask responses that are made in more than one place."""

from __future__ import annotations

from flask import Response


def json_response(body: bytes) -> Response:
    """200 with a JSON body that nobody may store."""
    return Response(body, content_type="application/json", headers={"Cache-Control": "no-store"})
