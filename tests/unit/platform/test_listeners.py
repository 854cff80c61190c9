"""Where the listeners of one program may be: nowhere twice."""

from __future__ import annotations

import pytest

from sentinel.platform.serving.server import CannotServe, Listener, require_listeners
from sentinel.platform.settings import UnsafeConfiguration
from tests.support.ports import free_port


def listener(host: str, port: int, *health: tuple[str, int], name: str = "PORT") -> Listener:
    return Listener(host, port, 10, 10, name, f"HEALTH_{name}", "CONNECTIONS", *health)


@pytest.mark.parametrize(
    ("host", "health_host"),
    [
        ("127.0.0.1", "127.0.0.1"), ("127.0.0.1", "localhost"), ("0.0.0.0", "127.0.0.1"), ("127.0.0.1", "0.0.0.0"),
        ("::", "127.0.0.1"), ("0.0.0.0", "::"), ("::1", "::"), ("::1", "::1"),
    ],
)  # fmt: skip
def test_one_port_for_two_listeners_is_refused_by_its_setting(host: str, health_host: str) -> None:
    """The finding: it passed the checks of a start, and ended in words that name no setting."""
    port = free_port()
    with pytest.raises(
        UnsafeConfiguration, match=f"^HEALTH_PORT: must be another port than PORT, which is also {port}$"
    ):
        require_listeners(listener(host, port, (health_host, port)))


@pytest.mark.parametrize(
    ("host", "health_host"), [("127.0.0.1", "127.0.0.2"), ("10.0.0.5", "127.0.0.1"), ("::1", "127.0.0.1")]
)
def test_a_listener_and_its_health_have_two_ports_on_two_addresses_too(host: str, health_host: str) -> None:
    """The finding: a server tells the two apart by port, so every call was 404 and /metrics anybody's."""
    port = free_port()
    with pytest.raises(
        UnsafeConfiguration, match=f"^HEALTH_PORT: must be another port than PORT, which is also {port}$"
    ):
        require_listeners(listener(host, port, (health_host, port)))


def test_so_it_is_between_the_servers_of_one_program() -> None:
    port, other = free_port(), free_port()
    one, two = listener("127.0.0.1", port), listener("127.0.0.1", other, ("127.0.0.1", port), name="BOARD")
    with pytest.raises(UnsafeConfiguration, match="^HEALTH_BOARD: must be another port than PORT"):
        require_listeners(one, two)


def test_ports_of_their_own_and_one_port_of_two_servers_addresses_are_taken() -> None:
    port = free_port()
    require_listeners(listener("127.0.0.1", port, ("127.0.0.1", free_port())), listener("127.0.0.2", port))
    require_listeners(listener("127.0.0.1", free_port()), listener("127.0.0.1", free_port()))


@pytest.mark.parametrize("host", ["192.0.2.1", "256.1.1.1"])
def test_a_host_that_is_none_of_this_machine_is_named_and_not_its_port(host: str) -> None:
    """The finding: it said that the port cannot be used, and to choose another."""
    with pytest.raises(
        CannotServe, match=f"^{host} is not an address of this machine; change the host set beside PORT$"
    ):
        require_listeners(listener(host, free_port()))


@pytest.mark.parametrize(
    ("host", "shown"), [("127.0.0.1", "http://127.0.0.1:7860"), ("::", "http://[::]:7860"), ("a.example", "http://a.example:7860")]
)  # fmt: skip
def test_an_address_is_shown_as_an_address(host: str, shown: str) -> None:
    """The finding: the log said http://:::7860 of a listener on every address of an IPv6 machine."""
    assert listener(host, 7860).url == shown
