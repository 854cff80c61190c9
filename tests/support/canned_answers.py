"""What somebody outside says, without a server: for tests of what an answer means.

How bytes arrive (late, drop by drop, cut off, too many) is behaviour of the wire: those tests ask a real socket
(`scripted_server.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import responses
from requests import PreparedRequest

PLACE = "http://outside.example"
_ANY = re.compile(".*")


@contextmanager
def answering(*bodies: Any, status: int = 200, kind: str = "application/json") -> Iterator[list[PreparedRequest]]:
    """Inside, whatever is asked of anybody gets these answers in turn, the last one from then on.

    A body that is not bytes goes out as JSON. The list has the requests once it is over.
    """
    asked: list[PreparedRequest] = []
    with responses.RequestsMock(assert_all_requests_are_fired=False) as outside:
        for body in bodies:
            sent = body if isinstance(body, bytes) else json.dumps(body).encode()
            for method in ("GET", "POST", "DELETE"):
                outside.add(method, _ANY, body=sent, status=status, content_type=kind)
        yield asked
        asked += [call.request for call in outside.calls]
