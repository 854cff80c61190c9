"""A tool's arguments as JSON text: read, and written again with what was injected."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sentinel.core.strict_json import strict_json
from sentinel.tools.mapping import ToolRefused


def parse_arguments(text: str | bytes) -> dict[str, Any]:
    """Arguments as JSON text, e.g. from a model. Raises `ToolRefused`: not one object, a key twice, NaN."""
    try:
        read = strict_json(text or "{}")
    except (ValueError, RecursionError) as error:
        raise ToolRefused("malformed_argument", f"the arguments are not JSON: {error}") from None
    if not isinstance(read, dict):
        raise ToolRefused("malformed_argument", "the arguments are not an object")
    return read


def lenient_arguments(text: str | None) -> dict[str, Any]:
    """As `parse_arguments`; none where they cannot be read, which the call itself is refused for."""
    try:
        return parse_arguments(text or "")
    except ToolRefused:
        return {}


def arguments_text(text: str, given: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
    """The arguments as JSON; the `text` that `given` was read from where nothing was injected."""
    return text if arguments == given else json.dumps(arguments, default=float)  # a `Decimal`, as the digest has it
