"""G39: a call to an address that somebody else may have chosen reaches no inside address, however it is spelt or looked up."""

from __future__ import annotations

import dataclasses
import ipaddress
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from sentinel.export.settings import PRIVATE_CLIENT
from sentinel.platform.outbound import client
from sentinel.platform.outbound.client import NoResponse, Resolver, Response, Target, exchange
from sentinel.platform.outbound.failures import FailureKind, failure_text
from sentinel.platform.outbound.public_addresses import (
    LOOPBACK_CLIENT,
    NotAllowed,
    PublicHttpClient,
    is_public,
    look_up,
)
from tests.support.scripted_server import SLACK, ScriptedServer

FAILURES = {
    "http_503": "answered 503", "not_allowed: inside_address": "not called: it is an address inside a private network",
    "timeout": "no answer in time", "a web page": "a web page", "http_": "http_",
}  # fmt: skip

INSIDE = [
    # Loopback in every spelling that some reader takes.
    "https://127.0.0.1/", "https://127.1/", "https://127.0.1/", "https://2130706433/", "https://0x7f000001/", "https://0x7f.0.0.1/",
    "https://0x7f.1/", "https://017700000001/", "https://0177.0.0.1/", "https://0177.0.0.0x1/", "https://127.0.0.1./", "https://127.0.0.01/",
    "https://0/", "https://0.0.0.0/", "https://127.255.255.254/", "https://127.000.000.001/", "https://00000000177.0.0.1/", "https://0x/",
    "https://①②⑦.⓪.⓪.①/", "https://１２７.０.０.１/", "https://127。0。0。1/", "https://%31%32%37.0.0.1/", "https://127.0.0.1%00.example.com/",
    "https://localhost/", "https://LOCALHOST/", "https://localhost./", "https://a.localhost/", "https://ⓛocalhost/", "https://localhost.localdomain/",
    "https://[::1]/", "https://[::]/", "https://[0:0:0:0:0:0:0:1]/", "https://[::1%25lo]/", "https://[::127.0.0.1]/", "https://::1/",
    "https://[::ffff:127.0.0.1]/", "https://[::ffff:7f00:1]/", "https://[0:0:0:0:0:ffff:7f00:1]/", "https://[::ffff:0:127.0.0.1]/",
    "https://[127.0.0.1]/",
    # Metadata services and private nets.
    "https://169.254.169.254/latest/meta-data/", "https://2852039166/", "https://0xa9fea9fe/", "https://0251.0376.0251.0376/",
    "https://[::ffff:169.254.169.254]/", "https://[fd00:ec2::254]/", "https://[fd20:ce::254]/", "https://metadata.google.internal/",
    "https://metadata/", "https://100.100.100.200/", "https://168.63.129.16/", "https://192.0.0.192/", "https://10.0.0.1/", "https://10.1/",
    "https://172.16.0.1/", "https://172.31.255.255/", "https://192.168.1.1/", "https://192.168.257/", "https://100.64.0.1/",
    "https://198.18.0.1/", "https://192.0.2.1/", "https://198.51.100.1/", "https://203.0.113.1/", "https://224.0.0.1/", "https://239.255.255.250/",
    "https://240.0.0.1/", "https://255.255.255.255/", "https://192.88.99.1/",
    "https://[fe80::1]/", "https://[fec0::1]/", "https://[fc00::1]/", "https://[ff02::1]/", "https://[100::1]/", "https://[2001:db8::1]/",
    # IPv4 in IPv6: NAT64, 6to4, Teredo, ISATAP.
    "https://[64:ff9b::127.0.0.1]/", "https://[64:ff9b::a00:1]/", "https://[64:ff9b:1::a9fe:a9fe]/", "https://[2002:7f00:1::]/",
    "https://[2002:a9fe:a9fe::1]/", "https://[2001:0:5ef5:79fd::1]/", "https://[2a00:1450::5efe:10.0.0.1]/", "https://[2a00:1450::200:5efe:7f00:1]/",
    # Names whose look-up leads inside.
    "https://loopback.example.com/", "https://private.example.com/", "https://linklocal.example.com/", "https://mapped.example.com/",
    "https://nat64.example.com/", "https://mixed.example.com/", "https://empty.example.com/", "https://scoped.example.com/",
    # Parts that two readers may read differently, other schemes and ports.
    "https://example.com@127.0.0.1/", "https://user:pass@example.com/", "https://127.0.0.1#@example.com/", "https://example.com#x",
    "https://127.0.0.1\\@example.com/", "https://example.com\\.127.0.0.1/", "https:\\\\127.0.0.1/", "https:///127.0.0.1/", "https:/127.0.0.1",
    "https://127.0.0.1\t/", "https://127.0.0.1\n/", " https://127.0.0.1/", "https://127.0.0.1 /", "https://exa mple.com/", "https://exam\u200bple.com/",
    "http://127.0.0.1/", "http://example.com/", "HTTPS://127.0.0.1/", "file:///etc/passwd", "ftp://example.com/", "gopher://127.0.0.1:6379/_INFO",
    "unix:///run/x.sock", "//127.0.0.1/", "127.0.0.1", "", "https://", "https://example.com:22/", "https://example.com:5432/",
    "https://example.com:0/", "https://example.com:99999/", "https://example.com:-1/", "https://example.com:٤٤٣/", "https://printer/",
    "https://db.internal/", "https://nas.local/", "https://router.lan/", "https://1.0.0.127.in-addr.arpa/", "https://-a.example.com/",
    "https://a..example.com/", "https://.example.com/", "https://example.com./", f"https://{'a' * 64}.com/", "https://x/",
]  # fmt: skip

NAMES = {
    "loopback.example.com": ["127.0.0.1"], "private.example.com": ["10.0.0.8"], "linklocal.example.com": ["169.254.169.254"],
    "mapped.example.com": ["::ffff:127.0.0.1"], "nat64.example.com": ["64:ff9b::7f00:1"], "mixed.example.com": ["93.184.216.34", "127.0.0.1"],
    "empty.example.com": [], "scoped.example.com": ["fe80::1%lo"], "example.com": ["93.184.216.34"],
}  # fmt: skip


def targets(addresses: Sequence[str], port: int) -> list[Target]:
    families = [(socket.AF_INET6 if ":" in address else socket.AF_INET, address) for address in addresses]
    return [(family, socket.SOCK_STREAM, 6, "", (address, port)) for family, address in families]


def names(host: str, port: int, seconds: float) -> list[Target]:
    """A name server that says what it is told; what is an address already is itself, also to the most generous reader."""
    if host in NAMES:
        return targets(NAMES[host], port)
    try:
        return targets([socket.inet_ntoa(socket.inet_aton(host))], port)
    except OSError:
        return targets([host], port)


@pytest.fixture
def dialled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The hosts that a connection was tried to; none of them is made."""
    found: list[str] = []

    def connect(link: socket.socket, address: tuple[str, int]) -> None:
        found.append(address[0])
        raise ConnectionRefusedError

    monkeypatch.setattr(client._BoundedSocket, "connect", connect)
    return found


def reached(call: Callable[[str], object], dialled: list[str]) -> list[str]:
    """The addresses out of the list for which a connection was tried."""
    found = []
    for url in INSIDE:
        dialled.clear()
        call(url)
        found += [url] if dialled else []
    return found


def test_every_code_of_a_request_in_vain_reads_as_words_and_other_text_as_itself() -> None:
    assert {code: failure_text(code) for code in FAILURES} == FAILURES
    assert all(failure_text(kind) != kind.value for kind in FailureKind)


def test_none_of_many_spellings_of_inside_is_connected_to(dialled: list[str]) -> None:
    outward = PublicHttpClient(look_up=names)
    print(f"{len(INSIDE)} addresses")
    assert len(INSIDE) >= 80
    assert reached(lambda url: outward.exchange("GET", url), dialled) == []
    for url in INSIDE:
        assert isinstance(outward.exchange("POST", url, b"x"), NotAllowed), url


def test_a_call_without_the_check_connects_to_most_of_them(dialled: list[str]) -> None:
    """The mutant."""
    found = reached(lambda url: exchange("GET", url, deadline_seconds=5, max_bytes=1, resolve=names), dialled)
    assert len(found) > 60
    assert {"https://2130706433/", "https://[::ffff:127.0.0.1]/", "https://mixed.example.com/"} <= set(found)


def test_a_check_for_private_addresses_alone_lets_several_through(dialled: list[str]) -> None:
    """The mutant: what `ipaddress` calls private is not all that is inside."""
    weak = PublicHttpClient(("https",), None, lambda address: not address.is_private and not address.is_loopback, names)
    found = set(reached(lambda url: weak.exchange("GET", url), dialled))
    # What else is found depends on the release of Python.
    assert {"https://168.63.129.16/", "https://[64:ff9b::a00:1]/"} <= found


def test_an_outside_address_is_connected_to_and_nothing_else(dialled: list[str]) -> None:
    outward = PublicHttpClient(look_up=names)
    for url in (
        "https://example.com/a?b=c",
        "https://example.com:8443",
        "https://93.184.216.34/",
        "https://[2a00:1450:4001::1]/",
    ):
        assert outward.fault(url) is None
        assert outward.exchange("GET", url) == NoResponse(FailureKind.NOT_SENT)
    assert dialled == ["93.184.216.34"] * 3 + ["2a00:1450:4001::1"]


@pytest.mark.parametrize("address", ["1.1.1.1", "8.8.8.8", "93.184.216.34", "172.15.0.1", "172.32.0.1", "100.63.255.255", "100.128.0.1",
                                     "2606:4700::1111", "2a00:1450::1"])  # fmt: skip
def test_neighbours_of_closed_blocks_are_public(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


CLOUDS = [
    "169.254.169.254", "168.63.129.16", "192.0.0.192", "100.100.100.200", "fd00:ec2::254", "fd20:ce::254", "fd00:c1::a9fe:a9fe", "fd00:42::42",
    "fd00:a9fe:a9fe::1", "fd00:100::100:200", "64:ff9b::a9fe:a9fe", "64:ff9b::a83f:8110",
]  # fmt: skip


def literal(address: str) -> str:
    return f"http://[{address}]/" if ":" in address else f"http://{address}/"


@pytest.mark.parametrize("address", CLOUDS)
def test_a_clouds_own_services_are_not_called_where_private_networks_are(address: str, dialled: list[str]) -> None:
    assert PRIVATE_CLIENT.fault(literal(address)) == "inside_address"
    led = dataclasses.replace(PRIVATE_CLIENT, look_up=lambda host, port, seconds: targets([address], port))
    assert led.exchange("GET", "http://receiver.example.com/") == NotAllowed("inside_address")
    assert dialled == []


@pytest.mark.parametrize("address", ["2002:a9fe:a9fe::1", "2002:7f00:1::", "64:ff9b:1::a9fe:a9fe", "64:ff9b:1:a9fe:a9:fe00::", "2001:0:5ef5:79fd::1",
                                     "2a00:1450::5efe:169.254.169.254", "fd12:3456::200:5efe:7f00:1"])  # fmt: skip
def test_what_is_relayed_to_an_address_of_ipv4_is_not_called_where_private_networks_are(
    address: str, dialled: list[str]
) -> None:
    """The finding: each of them led to the cloud's metadata or to the sender's own machine, where such a relay exists."""
    assert PRIVATE_CLIENT.fault(literal(str(ipaddress.ip_address(address)))) == "inside_address"
    led = dataclasses.replace(PRIVATE_CLIENT, look_up=lambda host, port, seconds: targets([address], port))
    assert led.exchange("GET", "http://receiver.example.com/") == NotAllowed("inside_address")
    assert dialled == []


@pytest.mark.parametrize("address", ["10.1.2.3", "172.16.0.1", "192.168.1.9", "168.63.129.17", "93.184.216.34", "fd12:3456::1", "fd20:ce::255",
                                     "2a00:1450:4001::1", "64:ff9b::a01:203"])  # fmt: skip
def test_hosts_of_a_private_network_and_of_the_public_one_may_be_called_by_that_setting(address: str) -> None:
    assert PRIVATE_CLIENT.fault(literal(address)) is None


@pytest.mark.parametrize(
    "host",
    ["collector", "siem.corp", "opa.monitoring.svc.cluster.local", "events.internal", "log_collector", "opa_1.corp"],
)
def test_names_of_a_private_network_may_be_called_by_that_setting_where_they_lead_to_its_hosts(
    host: str, dialled: list[str]
) -> None:
    """Services of Kubernetes and compose have no other names."""
    for address, found in (
        ("10.1.2.3", NoResponse(FailureKind.NOT_SENT)),
        ("169.254.169.254", NotAllowed("inside_address")),
        ("127.0.0.1", NotAllowed("inside_address")),
    ):
        led = dataclasses.replace(PRIVATE_CLIENT, look_up=lambda host, port, seconds, at=address: targets([at], port))
        assert led.exchange("GET", f"http://{host}:8181/logs") == found
    assert dialled == ["10.1.2.3"]
    assert PublicHttpClient().fault(f"https://{host}/") in ("host", "inside_name")


def test_a_name_that_is_none_may_not_be_called_in_a_private_network_either() -> None:
    for host in ("-a", "a..b", "a-.internal", ".", "0x7f", "2130706433", "127.1"):
        assert PRIVATE_CLIENT.fault(f"http://{host}/") == "host", host


# Resolve, check, pin


class Turning:
    """A name server that says an outside address first and loopback ever after."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, host: str, port: int, seconds: float) -> Sequence[Target]:
        self.asked += 1
        return targets(["93.184.216.34" if self.asked == 1 else "127.0.0.1"], port)


@pytest.fixture
def inside() -> Iterator[ScriptedServer]:
    with ScriptedServer().running() as running:
        running.script = lambda asked: asked.say({"secret": 1})
        yield running


Caller = Callable[[str, Resolver], object]


def lured(call: Caller, inside: ScriptedServer) -> bool:
    """Whether a name that changes between check and connection leads the caller inside."""
    inside.asked.clear()
    call(f"http://rebind.example.com:{inside.port}/", Turning())
    return bool(inside.asked)


@pytest.fixture
def no_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loopback can be connected to, outside addresses cannot: as on a machine without a way out."""
    real = socket.socket.connect

    def connect(link: socket.socket, address: tuple[str, int]) -> None:
        if not ipaddress.ip_address(address[0]).is_loopback:
            raise ConnectionRefusedError
        real(link, address)

    monkeypatch.setattr(client._BoundedSocket, "connect", connect)


@pytest.mark.usefixtures("no_outside")
def test_a_name_that_changes_after_the_check_leads_nowhere(inside: ScriptedServer) -> None:
    def pinned(url: str, resolve: Resolver) -> object:
        return PublicHttpClient(("http",), None, look_up=resolve).exchange("GET", url)

    assert not lured(pinned, inside)
    turning = Turning()
    PublicHttpClient(("http",), None, look_up=turning).exchange("GET", "http://rebind.example.com/")
    assert turning.asked == 1, "looked up once: what was checked is what is connected to"


@pytest.mark.usefixtures("no_outside")
def test_a_caller_that_checks_and_then_looks_up_again_is_led_inside(inside: ScriptedServer) -> None:
    """The mutant: check, then act."""

    def checks_first(url: str, resolve: Resolver) -> object:
        found = resolve("rebind.example.com", inside.port, 5.0)
        if not all(is_public(ipaddress.ip_address(target[4][0])) for target in found):
            return None
        return exchange("GET", url, deadline_seconds=5, max_bytes=1000, resolve=resolve)

    assert lured(checks_first, inside)


def test_a_redirect_inside_is_an_answer_and_not_followed(inside: ScriptedServer) -> None:
    with ScriptedServer().running() as outer:
        outer.script = lambda asked: asked.answer(302, b"", Location=inside.url)
        found = LOOPBACK_CLIENT.exchange("GET", outer.url)
    assert isinstance(found, Response) and found.status == 302
    assert inside.asked == []


def test_an_answer_of_more_than_64_kib_is_none(inside: ScriptedServer) -> None:
    for size, whole in ((64 << 10, True), ((64 << 10) + 1, False)):
        inside.script = lambda asked, size=size: asked.answer(200, b"x" * size)
        assert isinstance(LOOPBACK_CLIENT.exchange("GET", inside.url), Response) is whole


def test_a_look_up_that_hangs_ends_with_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: (over.wait(60), None)[1])
    began = time.monotonic()
    assert PublicHttpClient().exchange("GET", "https://example.com/", deadline_seconds=0.3) == NoResponse(
        FailureKind.NOT_SENT
    )
    assert time.monotonic() - began < SLACK
    with pytest.raises(TimeoutError):
        look_up("example.com", 443, 0.05)
    over.set()


def test_a_name_that_cannot_be_looked_up_is_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (socket.gaierror(), UnicodeError("label too long"), ValueError()):

        def failing(*args: object, error: Exception = error, **options: object) -> None:
            raise error

        monkeypatch.setattr(socket, "getaddrinfo", failing)
        assert PublicHttpClient().exchange("GET", "https://example.com/") == NoResponse(FailureKind.NOT_SENT)


# The name's own certificate


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    """A TLS server on loopback that proves to be shop.example.com."""
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=shop.example.com", "-addext", "subjectAltName=DNS:shop.example.com", "-keyout", key, "-out", certificate],
        capture_output=True, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip("no openssl to make a certificate with")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    client._tls.cache_clear()
    with ScriptedServer(context).running() as running:
        running.script = lambda asked: asked.say({"ok": 1})
        yield running
    client._tls.cache_clear()


def test_the_pinned_address_must_still_prove_to_be_the_name(shop: ScriptedServer) -> None:
    outward = PublicHttpClient(
        ("https",), None, lambda address: address.is_loopback, lambda h, p, s: targets(["127.0.0.1"], p)
    )
    found = outward.exchange("GET", f"https://shop.example.com:{shop.port}/")
    assert isinstance(found, Response) and found.body == b'{"ok": 1}'
    assert shop.asked[0].headers["host"] == f"shop.example.com:{shop.port}"
    shop.asked.clear()
    assert isinstance(outward.exchange("GET", f"https://other.example.com:{shop.port}/"), NoResponse)
    assert shop.asked == []
