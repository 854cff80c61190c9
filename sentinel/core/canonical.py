"""The one canonical form: what is hashed, signed and compared.

On our profile (no floats, ASCII keys, integers within ±(2^53−1)) sorted compact JSON *is* the RFC 8785
result; a property test holds it against an independent implementation.
"""

from __future__ import annotations

import hashlib
from typing import Any

import orjson

MAX_SAFE_INTEGER = 2**53 - 1


def canonical_json(value: Any) -> str:
    """RFC 8785 text of a float-free value with ASCII keys."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def sha256_hex(text: str | bytes) -> str:
    """ "sha256:" and 64 hex digits, the way every hash of ours is written."""
    data = text.encode() if isinstance(text, str) else text
    return "sha256:" + hashlib.sha256(data).hexdigest()
