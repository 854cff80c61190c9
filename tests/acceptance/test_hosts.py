"""Bad Host headers over real HTTP: every server answers them with a problem document, on every kind of route."""

from __future__ import annotations

import json
import urllib.parse

import pytest

from tests.acceptance.demos import Demo
from tests.support.served_programs import Reply, raw

PATHS = (
    "/healthz", "/nothing", "/openapi.json", "/docs", "/live", "/ops", "/ops/sign-in", "/ops/api/session", "/ops/api/live/stream",
    "/api/sentinel/approvals/stream", "/verify/pf_x.json",
)  # fmt: skip
HOT = ("/api/sentinel/action/guard", "/webhooks/demo/orders", "/ops/api/session")
HOSTS = (None, "", "a b", "a/b", "a@b", "x:abc", "x:99999", "[::1", "<script>", "é.example", "a" * 300)
PROGRAMS = ("authority", "console", "board", "orders")
UNREAD = ("a\x01b", "good\r\nHost: other")
"""What the server below the app refuses to read."""


def ask(url: str, path: str, host: str | None, method: str = "GET") -> Reply:
    lines = [] if host is None else [f"Host: {host}"]
    lines += ["Accept: text/html,*/*", "Connection: close", "Content-Length: 0", "", ""]
    found = raw(
        urllib.parse.urlsplit(url).port or 0, "\r\n".join([f"{method} {path} HTTP/1.1", *lines]).encode("latin-1")
    )
    assert found is not None, (path, host)
    return found


def is_refused(found: Reply) -> bool:
    told = json.loads(found.body) if found.headers["content-type"] == "application/problem+json" else {}
    return (found.status, told.get("status")) == (400, 400) and told["instance"] == found.headers["x-request-id"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_bad_host_is_a_problem_document(demo: Demo, program: str) -> None:
    url = getattr(demo, program)
    asked = [(path, host, "GET") for path in PATHS for host in HOSTS] + [
        (path, host, "POST") for path in HOT for host in HOSTS
    ]
    assert [one for one in asked if not is_refused(ask(url, *one))] == []
    print(f"N={len(asked)}")


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("host", UNREAD)
def test_so_is_one_that_no_server_reads(demo: Demo, program: str, host: str) -> None:
    assert is_refused(ask(getattr(demo, program), "/healthz", host))
