"""The id that follows one request through its answer, its problem document and its log lines."""

from __future__ import annotations

import re
from typing import Any

from sentinel.platform.randomness import random_uuid

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/@-]{1,128}")


def request_id_of(environ: dict[str, Any]) -> str:
    """The caller's `X-Request-ID` if it is a plain identifier, else one made here; the same all through a request."""
    found = environ.get("sentinel.request_id")
    if found is None:
        given = environ.get("HTTP_X_REQUEST_ID", "")
        found = environ["sentinel.request_id"] = given if _REQUEST_ID.fullmatch(given) else random_uuid().hex
    return str(found)
