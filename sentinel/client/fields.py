"""Reads one typed member of a response body, or rejects the whole response."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

from sentinel.client.errors import NoAnswerKind, Unreachable

_USUAL_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch


def malformed(what: str) -> NoReturn:
    """Raise `Unreachable` for a response that is not of the contract's shape."""
    raise Unreachable(NoAnswerKind.MALFORMED, what)


def text(body: Mapping[str, Any], name: str) -> str:
    """A text that is not empty."""
    found = body.get(name)
    if not isinstance(found, str) or not found:
        malformed(f"{name} is missing or not text")
    return found


def optional_text(body: Mapping[str, Any], name: str) -> str | None:
    """The same, or None where it is absent or null."""
    return None if body.get(name) is None else text(body, name)


def mapping(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object."""
    found = body.get(name)
    if not isinstance(found, dict):
        malformed(f"{name} is not an object")
    return found


def optional_mapping(body: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """The same, or None where it is absent or null."""
    found = body.get(name)
    if found is not None and not isinstance(found, dict):
        malformed(f"{name} is not an object")
    return found


def uuid_text(body: Mapping[str, Any], name: str) -> str:
    """A UUID, as text in its usual spelling."""
    found = text(body, name)
    if _USUAL_UUID(found):
        return found
    try:
        return str(uuid.UUID(found))
    except ValueError:
        malformed(f"{name} is not a UUID")


def flag(body: Mapping[str, Any], name: str) -> bool:
    """true or false; false where it is absent."""
    found = body.get(name, False)
    if not isinstance(found, bool):
        malformed(f"{name} is not true or false")
    return found


def optional_count(body: Mapping[str, Any], name: str) -> int | None:
    """An integer from 0 on, or None where it is absent or null."""
    found = body.get(name)
    if found is not None and (type(found) is not int or found < 0):
        malformed(f"{name} is not a count")
    return found


def moment(body: Mapping[str, Any], name: str) -> datetime:
    """A time with its zone."""
    found = text(body, name)
    try:
        # Python 3.10 does not know the Z.
        read = datetime.fromisoformat(found[:-1] + "+00:00" if found.endswith("Z") else found)
    except ValueError:
        malformed(f"{name} is not a time")
    if read.tzinfo is None:
        malformed(f"{name} has no time zone")
    return read


def optional_moment(body: Mapping[str, Any], name: str) -> datetime | None:
    """The same, or None where it is absent or null."""
    return None if body.get(name) is None else moment(body, name)
