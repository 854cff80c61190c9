"""What the console's routes share in their documentation: who may call them and how they refuse."""

from __future__ import annotations

from typing import Any

DESCRIPTION = (
    "Operators decide approvals, set halts and look; the public sees redacted decisions. Sign in with"
    " `POST /ops/api/session` (cookie, and `X-CSRF-Token` on unsafe methods) or send an operator's token."
)
SECURITY_SCHEMES: dict[str, dict[str, Any]] = {
    "session": {"type": "apiKey", "in": "cookie", "name": "__Host-sentinel"},
    "operatorToken": {"type": "http", "scheme": "bearer"},
}
OPERATOR: tuple[dict[str, list[str]], ...] = ({"session": []}, {"operatorToken": []})
# 409 here as well: reading renews the session, which waits two seconds for who else holds it.
READING = (400, 401, 403, 409, 503)
WRITING = (400, 401, 403, 404, 409, 411, 413, 415, 503)


def in_query(name: str, **schema: Any) -> dict[str, Any]:
    """An optional query parameter."""
    return {"name": name, "in": "query", "schema": {"type": "string", **schema}}


LIMIT = {"type": "integer", "minimum": 1}
