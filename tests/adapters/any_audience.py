"""A proxy that takes a token for whichever audience it was made: tests/adapters/test_mcp_proxy_access.py must turn red on it."""

from __future__ import annotations

import sys
from typing import Any

import jwt

from tests.adapters.patient_proxy import main

_decode = jwt.decode


def _careless(token: str, key: Any = "", **given: Any) -> Any:
    given.pop("audience", None)
    options = {**(given.pop("options", None) or {}), "verify_aud": False}
    return _decode(token, key, options=options, **given)


if __name__ == "__main__":
    jwt.decode = _careless
    sys.exit(main())
