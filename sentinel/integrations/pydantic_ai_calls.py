"""pydantic-ai: converts a call's arguments to the JSON to ask about, and tells whether a tool that was given up may still act."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from sentinel.integrations.mcp_errors import is_mcp_error, is_of_class

_ANYTHING: TypeAdapter[Any] = TypeAdapter(Any)
_PLAIN = (str, int, float, bool, Decimal, type(None))
_WRITTEN_AS_TEXT = (Enum, date, time, timedelta, UUID)


def as_json(arguments: Mapping[str, Any], tool: Any, context: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (the arguments with models, enums, dates and the like as JSON; the objects to pass to the tool in place of
    those).

    The tool's own validator makes the objects from that JSON again, so that the tool runs with what was asked about. An
    argument for which that gives another value (a secret, or a field that is left out) stays as it is, and is then
    refused as no JSON.
    """
    objects = [name for name, value in arguments.items() if not _is_plain(value)]
    if not objects:
        return dict(arguments), {}
    try:
        forms = {name: _json(_ANYTHING.dump_python(value, by_alias=True)) for name, value in arguments.items()}
        again = tool.args_validator.validate_json(json.dumps(forms, default=str), context=context)
        made = {name: again[name] for name in objects if again[name] == arguments[name]}
    except Exception:  # a validator is the tool's own code
        return dict(arguments), {}
    return {**arguments, **{name: forms[name] for name in made}}, made


def may_go_on(error: Exception) -> bool:
    """Whether the framework gave up a tool that may still act.

    After a `timeout` the thread of a function goes on; after an MCP protocol error the server may.
    """
    behind = (error.__context__, error.__cause__)
    timed_out = is_of_class(error, "ModelRetry") and any(isinstance(one, TimeoutError) for one in behind)
    return timed_out or is_mcp_error(error)


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(type(key) is str and _is_plain(item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return type(value) in _PLAIN


def _json(value: Any) -> Any:
    """Convert a value to JSON. Raises `TypeError` for one without a unique form: a set has no order, so another process
    would make another operation of it."""
    if isinstance(value, dict):
        return {key: _json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json(item) for item in value]
    if type(value) in _PLAIN:
        return value
    if isinstance(value, _WRITTEN_AS_TEXT):
        return to_jsonable_python(value)
    raise TypeError(type(value).__name__)
