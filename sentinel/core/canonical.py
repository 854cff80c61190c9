"""The one canonical form: what is hashed, signed and compared.

On our profile (no floats, ASCII keys, integers within ±(2^53−1)) sorted compact JSON *is* the RFC 8785
result; a property test compares it with an independent implementation.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import orjson

MAX_SAFE_INTEGER = 2**53 - 1


def canonical_json(value: Any) -> str:
    """RFC 8785 text of a float-free value with ASCII keys."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def canonical_value(value: Any) -> Any:
    """Convert any JSON value into one that has a canonical form, for input that is kept as a digest only and never
    refused.

    A number outside our profile (a larger integer, or a `msgspec.Raw`, a number kept as it was written) becomes its
    text, non-ASCII characters in a name become backslash escapes, and a member that is null is dropped. The rest is
    unchanged.
    """
    if isinstance(value, dict):
        return {
            name if name.isascii() else name.encode("ascii", "backslashreplace").decode(): canonical_value(member)
            for name, member in value.items()
            if member is not None
        }
    if isinstance(value, list):
        return [canonical_value(item) for item in value]
    if isinstance(value, int) and abs(value) > MAX_SAFE_INTEGER:
        return str(value)
    return bytes(value).decode() if isinstance(value, msgspec.Raw) else value


def sha256_hex(text: str | bytes) -> str:
    """ "sha256:" and 64 hex digits, the way every hash of ours is written."""
    data = text.encode() if isinstance(text, str) else text
    return "sha256:" + hashlib.sha256(data).hexdigest()
