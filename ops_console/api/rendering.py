"""What the API's routes share: security and problem codes for the documentation, values as JSON, and query parameters."""

from __future__ import annotations

import base64
import binascii
import re
import uuid
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

import orjson
from flask import Response, request

from sentinel.core.errors import InvalidInput, NotFound
from sentinel.core.money import Money, money_out
from sentinel.store.ids import uuid_or_none

DESCRIPTION = (
    "Operators decide approvals, set halts and read; the public sees redacted decisions. Sign in with"
    " `POST /ops/api/session` (cookie, and `X-CSRF-Token` on unsafe methods) or send an operator's token."
)
SECURITY_SCHEMES: dict[str, dict[str, Any]] = {
    "session": {"type": "apiKey", "in": "cookie", "name": "__Host-sentinel"},
    "operatorToken": {"type": "http", "scheme": "bearer"},
}
OPERATOR: tuple[dict[str, list[str]], ...] = ({"session": []}, {"operatorToken": []})
# 409 too, although nothing is changed: a read renews the session, and is refused if its row stays locked for two
# seconds.
READING = (400, 401, 403, 409, 503)
WRITING = (400, 401, 403, 404, 409, 411, 413, 415, 503)


def in_query(name: str, **schema: Any) -> dict[str, Any]:
    """Describe an optional query parameter for the OpenAPI document."""
    return {"name": name, "in": "query", "schema": {"type": "string", **schema}}


LIMIT = {"type": "integer", "minimum": 1}


Row = TypeVar("Row")
_NUMBER = re.compile(r"[0-9]{1,6}")


def json_response(value: Any, status: int = 200) -> Response:
    """A JSON response; ids as text, times as RFC 3339 in UTC."""
    body = orjson.dumps(value, option=orjson.OPT_UTC_Z)
    return Response(body, status=status, content_type="application/json")


def present(fields: dict[str, Any]) -> dict[str, Any]:
    """Return `fields` without members that are None: optional fields are left out of an answer, never null."""
    return {name: value for name, value in fields.items() if value is not None}


def amount(amount_minor: int | None, currency: str | None) -> dict[str, int | str] | None:
    """Return minor units as the wire's money (value and currency), or None if there is no amount."""
    return None if amount_minor is None or currency is None else money_out(Money(amount_minor, currency))


def path_id(text: str, noun: str) -> uuid.UUID:
    """Return the id of a `noun` in a path. Raises `NotFound` for text that is no id, as for an id that nothing has."""
    found = uuid_or_none(text)
    if found is None:
        raise NotFound(f"there is no {noun} with this id")
    return found


def limit(default: int, most: int) -> int:
    """Return `?limit=`, from 1 to `most`, else `default`. Raises `InvalidInput`."""
    text = request.args.get("limit")
    if text is None:
        return default
    if not _NUMBER.fullmatch(text) or not 1 <= int(text) <= most:
        raise InvalidInput.of("limit", f"must be 1 to {most}")
    return int(text)


def choice(name: str, allowed: tuple[str, ...]) -> str | None:
    """Return a query parameter that must be one of `allowed`, or None if it is absent. Raises `InvalidInput`."""
    text = request.args.get(name)
    if text is not None and text not in allowed:
        raise InvalidInput.of(name, f"must be one of {', '.join(allowed)}")
    return text


def cursor_out(moment: datetime, last_id: str) -> str:
    """Return the cursor of a page's last row as opaque text."""
    return base64.urlsafe_b64encode(orjson.dumps([moment, last_id])).decode().rstrip("=")


def next_page(rows: Sequence[Row], most: int, cursor_of: Callable[[Row], str]) -> dict[str, str]:
    """Return `next_cursor` after a full page; without it the list has ended."""
    return {"next_cursor": cursor_of(rows[-1])} if len(rows) == most else {}


def cursor_in() -> tuple[datetime, str] | None:
    """Return `?cursor=` as `cursor_out` wrote it, or None. Raises `InvalidInput`."""
    text = request.args.get("cursor")
    if not text:
        return None
    try:
        moment, last_id = orjson.loads(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
        at = datetime.fromisoformat(moment)
        if at.tzinfo is None or not isinstance(last_id, str) or "\0" in last_id:
            raise ValueError
    except (ValueError, TypeError, binascii.Error):
        raise InvalidInput.of("cursor", "is not a valid cursor") from None
    return at, last_id


def id_cursor_in() -> tuple[datetime, uuid.UUID] | None:
    """Return `?cursor=` of a list whose rows have UUIDs, or None. Raises `InvalidInput`."""
    found = cursor_in()
    if found is None:
        return None
    last_id = uuid_or_none(found[1])
    if last_id is None:
        raise InvalidInput.of("cursor", "is not a valid cursor")
    return found[0], last_id
