"""Reading JSON so that no two readers can disagree about it (`CONTRACT.md` §1).

Duplicate names, NaN, Infinity, exponents, trailing bytes, invalid UTF-8, nesting beyond 16 and bodies beyond 64 KiB are
refused. Numbers with a fraction become `Decimal`, never a binary float.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

from sentinel.core.errors import BodyTooLarge, InvalidInput

MAX_BYTES = 64 * 1024
MAX_DEPTH = 16
_MAX_DIGITS = 17

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_BRACKET = re.compile(r"[\[\]{}]")


def read_object(body: bytes) -> dict[str, Any]:
    """Bytes → a JSON object. Raises `InvalidInput` with the rule broken, `BodyTooLarge` above 64 KiB."""
    if len(body) > MAX_BYTES:
        raise BodyTooLarge(f"the body has more than {MAX_BYTES} bytes")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidInput.of("body", "must be UTF-8") from None
    _check_depth(text)
    try:
        value = _decoder.decode(text)
    except json.JSONDecodeError as error:
        raise InvalidInput.of("body", f"is not JSON: {error.msg.lower()} at character {error.pos}") from None
    except RecursionError:
        raise InvalidInput.of("body", f"is nested deeper than {MAX_DEPTH}") from None
    if not isinstance(value, dict):
        raise InvalidInput.of("body", "must be a JSON object")
    if _ESCAPED_SURROGATE.search(text):
        check_unicode(value)
    return value


def _check_depth(text: str) -> None:
    # Almost every body has fewer brackets than the limit has levels; only the others are worth a scan.
    if text.count("{") + text.count("[") <= MAX_DEPTH:
        return
    depth = 0
    for bracket in _BRACKET.findall(_STRING.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        if depth > MAX_DEPTH:
            raise InvalidInput.of("body", f"is nested deeper than {MAX_DEPTH}")


def check_unicode(value: Any, path: str = "", whole: str = "body") -> None:
    """Raise `InvalidInput` naming the field that holds half of a pair of surrogates, else the `whole`.

    JSON can write half a pair, but it is no character: nothing could store or answer it.
    """
    if isinstance(value, str):
        if not _is_unicode(value):
            raise InvalidInput.of(path or whole, "holds half a surrogate pair, which is no character")
    elif isinstance(value, dict):
        for name, member in value.items():
            if not _is_unicode(name):
                raise InvalidInput.of(path or whole, "has a name with half a surrogate pair, which is no character")
            check_unicode(member, f"{path}.{name}"[:200] if path else name[:100], whole)
    elif isinstance(value, list):
        for place, member in enumerate(value):
            check_unicode(member, f"{path}.{place}"[:200], whole)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidInput.of(twice[:100] if _is_unicode(twice) else "body", "appears twice in one object")
    return found


def _fraction(text: str) -> Decimal:
    if "e" in text or "E" in text or len(text) > _MAX_DIGITS + 8:
        raise InvalidInput.of("body", "numbers are written plainly, without exponent and with at most 17 digits")
    return Decimal(text)


def _integer(text: str) -> int:
    if len(text) > _MAX_DIGITS + 1:
        raise InvalidInput.of("body", "integers have at most 17 digits")
    return int(text)


def _constant(text: str) -> Any:
    raise InvalidInput.of("body", f"{text} is not JSON")


_decoder = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=_fraction, parse_int=_integer, parse_constant=_constant
)
