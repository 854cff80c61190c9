"""The one canonical form: what is hashed, signed and compared.

On our profile (no floats, ASCII keys, integers within ±(2^53−1)) sorted compact JSON *is* the RFC 8785
result; a property test holds it against an independent implementation.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

MAX_SAFE_INTEGER = 2**53 - 1

_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def canonical_json(value: Any) -> str:
    """RFC 8785 text of a float-free value with ASCII keys."""
    return _encode(value)


def sha256_hex(text: str | bytes) -> str:
    """"sha256:" and 64 hex digits, the way every hash of ours is written."""
    data = text.encode() if isinstance(text, str) else text
    return "sha256:" + hashlib.sha256(data).hexdigest()
