"""pydantic-ai: the arguments of a call as JSON, as what is asked about, and whether a tool that was given up may still act."""

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
    """The arguments with models, enums, dates and the like as JSON; and what the tool is given in place of those.

    The tool's own validator makes that of the JSON again, so that what runs is what is asked about. Where it does not make the same of it
    (of a secret, or of a field that is left out), the argument stays what it is, and is refused as no JSON.
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
    """Did the framework give the tool up, which may still act?

    At a `timeout` the thread of a function goes on. Behind an error of MCP's protocol the server may.
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
    """Raises `TypeError` for what JSON has no one form for: a set has no order, and would be another operation in another process."""
    if isinstance(value, dict):
        return {key: _json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json(item) for item in value]
    if type(value) in _PLAIN:
        return value
    if isinstance(value, _WRITTEN_AS_TEXT):
        return to_jsonable_python(value)
    raise TypeError(type(value).__name__)
