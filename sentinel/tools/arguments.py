"""Reads a tool's arguments from JSON text, and writes them as JSON again with the injected ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sentinel.core.strict_json import strict_json
from sentinel.tools.mapping import ToolRefused


def parse_arguments(text: str | bytes) -> dict[str, Any]:
    """Read arguments from JSON text, e.g. of a model. Raises `ToolRefused`: not one object, a key twice, NaN."""
    try:
        read = strict_json(text or "{}")
    except (ValueError, RecursionError) as error:
        raise ToolRefused("malformed_argument", f"the arguments are not JSON: {error}") from None
    if not isinstance(read, dict):
        raise ToolRefused("malformed_argument", "the arguments are not an object")
    return read


def lenient_arguments(text: str | None) -> dict[str, Any]:
    """Read arguments as `parse_arguments`, but return {} where they cannot be read: the call itself is then refused."""
    try:
        return parse_arguments(text or "")
    except ToolRefused:
        return {}


def arguments_text(text: str, given: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
    """Return the arguments as JSON; where nothing was injected, the same `text` that `given` was read from."""
    return text if arguments == given else json.dumps(arguments, default=float)  # a `Decimal`, as the digest has it
