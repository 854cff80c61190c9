"""The listener for supervisors of a program that serves nothing else: nothing but its own port is needed for it."""

from __future__ import annotations

import http.client
import socket

import pytest

from sentinel.platform.http.readiness import Readiness
from sentinel.platform.serving.health import create_app, serving
from tests.support.ports import free_port


def test_it_listens_where_no_name_server_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The finding: worker and sender did nothing after their start until the look-up of the address ended, for up to half a minute."""
    looked_up: list[str] = []

    def look_up(name: str = "") -> str:
        looked_up.append(name)
        return name

    monkeypatch.setattr(socket, "getfqdn", look_up)
    port = free_port()
    app = create_app("worker.refunds", Readiness(lambda: {"all": True}), lambda: b"")
    with serving(app, "127.0.0.1", port, "PORT"):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request("GET", "/readyz")
            assert connection.getresponse().status == 200
        finally:
            connection.close()
    assert looked_up == []
