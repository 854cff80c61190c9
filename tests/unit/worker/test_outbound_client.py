"""One exchange with a server that is not ours: whatever it does is a value, in time and within bounds."""

from __future__ import annotations

import gzip
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import requests

from sentinel.platform.outbound import client
from sentinel.platform.outbound.client import (
    FailureKind,
    JsonClient,
    NoResponse,
    Response,
    exchange,
    is_http_url,
)
from tests.support.scripted_server import SLACK, ScriptedServer, deadline_for, faults, times_asked, took

pytestmark = pytest.mark.slow

FAULTS = faults(b'{"ok": true}')


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer().running() as running:
        yield running


def ask(url: str, *, seconds: float = 60.0, max_bytes: int = 64 << 10) -> Response | NoResponse:
    return exchange("POST", url, json={"a": 1}, headers={"X-Key": "k"}, deadline_seconds=seconds, max_bytes=max_bytes)


# They wait for time limits, beside the rest of this file.
@pytest.mark.xdist_group("faults of a server")
@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_a_value_within_the_deadline_after_one_try(server: ScriptedServer, fault: str) -> None:
    server.script, expected = FAULTS[fault]
    deadline = deadline_for(expected)
    found, seconds = took(lambda: ask(server.url, seconds=deadline))
    known = "answered" if isinstance(found, Response) else found.kind.value
    assert known in expected.split("|")
    assert seconds < deadline + SLACK
    assert times_asked(server) == 1


def test_a_usual_client_would_be_held_by_a_dripping_head(server: ScriptedServer) -> None:
    """The mutant: a time limit per receive instead of one for the whole exchange."""
    deadline, pause = deadline_for("timeout"), 0.02
    long = b"X-A: " + b"b" * int(3 * deadline / pause)
    server.script = lambda asked: asked.drip(b"HTTP/1.1 200 OK\r\n" + long + b"\r\n\r\n", pause)
    _, seconds = took(lambda: requests.post(server.url, json={}, timeout=deadline, stream=True).close())
    assert seconds > 2 * deadline


def test_a_good_answer_comes_whole_and_the_question_was_as_given(server: ScriptedServer) -> None:
    server.script = lambda asked: asked.answer(200, b'{"ok": 1}', "Application/JSON; charset=utf-8")
    assert ask(server.url + "/a?b=c") == Response(200, "application/json", b'{"ok": 1}')
    [asked] = server.asked
    assert (asked.method, asked.path, asked.json) == ("POST", "/a?b=c", {"a": 1})
    assert asked.headers["x-key"] == "k"
    assert asked.headers["content-type"] == "application/json"
    assert asked.headers["accept-encoding"] == "identity"


def test_chunks_are_put_together_and_the_bound_is_exact(server: ScriptedServer) -> None:
    server.script = lambda asked: asked.raw(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1f4\r\n"
        + b"a" * 500
        + b"\r\n1f4\r\n"
        + b"b" * 500
        + b"\r\n0\r\n\r\n"
    )
    assert ask(server.url, max_bytes=1000) == Response(200, "", b"a" * 500 + b"b" * 500)
    server.script = lambda asked: asked.answer(200, b"a" * 1001)
    assert ask(server.url, max_bytes=1000) == NoResponse(FailureKind.TOO_LARGE)


def test_the_body_of_a_redirect_is_not_unpacked(server: ScriptedServer) -> None:
    bomb = gzip.compress(b"0" * (8 << 20))
    server.script = lambda asked: asked.answer(302, bomb, Location="/next", Content_Encoding="gzip")
    assert ask(server.url) == Response(302, "application/json", bomb)


def test_nobody_there_is_known_as_not_asked() -> None:
    with ScriptedServer().running() as gone:
        url = gone.url
    assert ask(url) == NoResponse(FailureKind.NOT_SENT)


def test_an_address_that_leads_nowhere_leaves_time_for_the_others_of_its_name() -> None:
    """The finding: it took the whole time, so that a server with a broken IPv6 address was never reached by the other one."""
    now, given = [0.0], list[float]()

    class Link:
        def __init__(self, *_: Any) -> None:
            self.seconds = 0.0

        def settimeout(self, seconds: float) -> None:
            self.seconds = seconds

        def connect(self, address: str) -> None:
            given.append(self.seconds)
            if address == "nowhere":
                now[0] += self.seconds
                raise TimeoutError

        def close(self) -> None:
            """Nothing is open."""

    def left() -> float:
        if now[0] >= 6.0:
            raise TimeoutError
        return 6.0 - now[0]

    targets = [(0, 0, 0, "", address) for address in ("nowhere", "nowhere", "here")]
    link: Any = client.connect(targets, left, cast(Any, Link))
    assert (given, link.seconds) == ([2.0, 2.0, 2.0], 2.0)


@pytest.mark.parametrize(
    "url",
    [
        "", "nonsense", "ftp://127.0.0.1/", "http://", "http://[", "http://127.0.0.1:99999/", "http://\u2028/", "http://a..b/",
        "http://.b/",
    ],
)  # fmt: skip
def test_an_address_that_is_none_is_a_value(url: str) -> None:
    assert ask(url) == NoResponse(FailureKind.NOT_SENT)
    assert not is_http_url(url)


def test_what_cannot_be_sent_is_a_value(server: ScriptedServer) -> None:
    for body, headers in (({1, 2}, {}), ({"a": "\ud800"}, {}), ({}, {"X": "a\r\nY: b"}), ({}, {"X\n": "a"})):
        found = exchange("POST", server.url, json=body, headers=headers, deadline_seconds=8, max_bytes=10)
        assert found == NoResponse(FailureKind.NOT_SENT)
    assert not server.asked


def test_addresses_with_credentials_or_queries_are_not_taken() -> None:
    assert is_http_url("https://critic.example/v1")
    assert is_http_url("http://127.0.0.1:8000")
    for url in ("http://a:b@host", "http://host?x=1", "http://host/#f", "file:///etc/passwd"):
        assert not is_http_url(url)


def test_proxies_and_credentials_of_the_environment_are_not_used(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login someone password secret\n")
    netrc.chmod(0o600)
    with ScriptedServer().running() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("ALL_PROXY", proxy.url)
        monkeypatch.setenv("NETRC", str(netrc))
        server.script = lambda asked: asked.say({})
        assert ask(server.url) == Response(200, "application/json", b"{}")
        assert not proxy.asked
    assert "authorization" not in server.asked[0].headers


def test_cookies_of_one_answer_are_not_sent_with_the_next_question(server: ScriptedServer) -> None:
    server.script = lambda asked: asked.answer(200, b"{}", Set_Cookie="a=b; Path=/")
    ask(server.url)
    ask(server.url)
    assert "cookie" not in server.asked[1].headers


def test_a_large_body_to_a_server_that_does_not_read_ends_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/"
        found, seconds = took(lambda: exchange("POST", url, b"x" * (30 << 20), deadline_seconds=0.6, max_bytes=10))
    assert found == NoResponse(FailureKind.TIMEOUT)
    assert seconds < 0.6 + SLACK


def test_readiness_is_asked_again_only_after_five_seconds(server: ScriptedServer) -> None:
    now = [0.0]
    server.script = lambda asked: asked.answer(200, b"")
    ready = JsonClient(server.url, now=lambda: now[0]).is_ready
    assert ready() and ready() and len(server.asked) == 1
    server.script = lambda asked: asked.answer(503, b"")
    now[0] = 4.9
    assert ready()
    now[0] = 5.1
    assert not ready()
    assert len(server.asked) == 2


@pytest.fixture
def tls_server(tmp_path: Path) -> Iterator[tuple[ScriptedServer, Path]]:
    """A server with a certificate of its own, and that certificate's file."""
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
        capture_output=True, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip("no openssl to make a certificate with")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with ScriptedServer(context).running() as running:
        yield running, certificate


@pytest.fixture
def fresh_tls() -> Iterator[None]:
    client._tls.cache_clear()
    yield
    client._tls.cache_clear()


@pytest.mark.usefixtures("fresh_tls")
def test_a_server_that_cannot_prove_itself_hears_nothing(tls_server: tuple[ScriptedServer, Path]) -> None:
    server, _ = tls_server
    assert ask(server.url) == NoResponse(FailureKind.BROKEN)
    assert not server.asked


@pytest.mark.usefixtures("fresh_tls")
def test_the_bounds_hold_over_tls(tls_server: tuple[ScriptedServer, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    server, certificate = tls_server
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    server.script = lambda asked: asked.say({"ok": 1})
    assert ask(server.url) == Response(200, "application/json", b'{"ok": 1}')
    for fault in ("drips its head", "drips its body", "never ends", "is cut off"):
        server.script, expected = FAULTS[fault]
        deadline = 2 * deadline_for(expected)
        found, seconds = took(lambda: ask(server.url, seconds=deadline))
        assert isinstance(found, NoResponse) and found.kind.value == expected
        assert seconds < deadline + SLACK


def test_a_handshake_has_what_is_left_of_the_time(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The finding: it had the time that was left before connecting, so an exchange could take twice its own."""
    now = [0.0]
    monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=lambda: now[0]))
    given: list[float | None] = []

    def connect(self: Any, address: Any) -> None:
        now[0] += 6
        super(client._BoundedSocket, self).connect(address)

    def note(self: Any, link: socket.socket, **_: Any) -> Any:
        given.append(link.gettimeout())
        raise OSError("seen enough")

    monkeypatch.setattr(client._BoundedSocket, "connect", connect, raising=False)
    monkeypatch.setattr(ssl.SSLContext, "wrap_socket", note)
    assert ask(server.url.replace("http:", "https:"), seconds=8.0) == NoResponse(FailureKind.BROKEN)
    assert given == [2.0]


@pytest.mark.parametrize("line", [b"no colon here\r\n", b": no name\r\n"])
def test_an_odd_header_writes_no_address_into_the_log(
    server: ScriptedServer, caplog: pytest.LogCaptureFixture, line: bytes
) -> None:
    """The finding: the library's warning had the whole address, with a customer's reference or a webhook's secret."""
    server.script = lambda asked: asked.raw(b"HTTP/1.1 200 OK\r\n" + line + b"Content-Length: 2\r\n\r\n{}")
    ask(server.url + "/T/B/secret-part")
    assert server.asked and "secret-part" not in caplog.text
