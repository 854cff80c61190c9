"""Who has no key takes nothing from the agents that have one: neither by silent connections nor by made-up keys."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest

from sentinel.mcp_proxy.options import CONNECTIONS_PER_ADDRESS
from tests.adapters.proxy_processes import ProxyProcesses, relay, until
from tests.support.scripted_server import Asked, ScriptedServer

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("adapter-mcp_proxy")]

ASKED_AT_ONCE = 16
"""`_ASKED_AT_ONCE` of the proxy, whose module needs its environment."""


def test_silent_connections_of_one_address_keep_no_agent_out(proxied: ProxyProcesses) -> None:
    proxied.start_proxy()
    address = ("127.0.0.1", int(proxied.target()["url"].rpartition(":")[2].partition("/")[0]))
    with ExitStack() as held:
        silent = [held.enter_context(socket.create_connection(address, timeout=60)) for _ in range(600)]
        assert not proxied.refund()["error"]
        for one in silent[: len(silent) - CONNECTIONS_PER_ADDRESS]:
            assert one.recv(1) == b"", "who has waited the longest makes room"


def test_made_up_keys_are_asked_about_a_few_at_a_time_and_known_agents_are_not_behind_them(
    proxied: ProxyProcesses,
) -> None:
    lock, may_go_on, asking, most = threading.Lock(), threading.Event(), [0], [0]

    def before(asked: Asked) -> bool:
        if not asked.headers.get("x-api-key", "").startswith("made-up"):
            return True
        with lock:
            asking[0] += 1
            most[0] = max(most[0], asking[0])
        may_go_on.wait(60)
        with lock:
            asking[0] -= 1
        asked.answer(401, b"{}", "application/problem+json")
        return False

    def shown(key: str) -> int:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=120)) as link:
            link.request("POST", "/mcp", b"{}", {"X-API-Key": key, "Content-Type": "application/json"})
            return link.getresponse().status

    with ScriptedServer().running() as server:
        server.script = relay(proxied.place.url, before)
        proxied.start_proxy(url=server.url)
        port = int(proxied.target()["url"].rpartition(":")[2].partition("/")[0])
        assert shown(proxied.key) not in (401, 403, 503)
        with ThreadPoolExecutor(60) as strangers:
            found = [strangers.submit(shown, f"made-up-{number}") for number in range(60)]
            until(lambda: asking[0] >= ASKED_AT_ONCE)
            time.sleep(1.1)  # what is known of the agent's key is over
            assert shown(proxied.key) not in (401, 403, 503)
            may_go_on.set()
            assert {one.result() for one in found} <= {401, 503}
    assert most[0] == ASKED_AT_ONCE
