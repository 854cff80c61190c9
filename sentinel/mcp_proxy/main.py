"""Assembles the proxy from its options and runs it: `sentinel mcp-proxy`, or `sentinel-mcp-proxy` of the client-only package."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from sentinel.client import Client
from sentinel.integrations import ToolGuard
from sentinel.mcp_proxy.access_tokens import AccessTokens
from sentinel.mcp_proxy.agents import SCOPE_KEY, STILL_KEY, Admission, AgentKeys, AgentsOnly, Still
from sentinel.mcp_proxy.calls import REPORT_MARGIN_SECONDS, GuardedCalls
from sentinel.mcp_proxy.listener import ProxyListener, listener_config
from sentinel.mcp_proxy.log_messages import LOGGING, LogLevels
from sentinel.mcp_proxy.options import Options, WrongOptions, credential_env, credential_headers, read_options
from sentinel.mcp_proxy.reading import reading_handlers
from sentinel.mcp_proxy.server import ProxyServer, WhoAsks
from sentinel.mcp_proxy.sessions import AgentSessions
from sentinel.mcp_proxy.spans import collect_spans
from sentinel.mcp_proxy.subscriptions import Subscriptions
from sentinel.mcp_proxy.tasks import TaskIds, Tasks
from sentinel.mcp_proxy.upstream import HttpUpstream, StdioUpstream, Upstream
from sentinel.policy.errors import PolicyError

WRONG_USAGE = 2
_ENDING = (signal.SIGTERM, signal.SIGINT)


class Proxy:
    """The assembled proxy of one upstream. `async with` opens its connections; on exit it waits for calls in flight and closes them."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._ending = asyncio.Event()
        self._client = Client(
            options.authority, options.key, agent_id=options.agent, timeout_seconds=options.authority_seconds
        )
        guard = ToolGuard(options.table, self._client, server=options.server, facts=options.facts)
        self._authority = guard.async_client
        self._upstream = upstream_of(options)
        self._calls = GuardedCalls(guard, self._upstream, seconds=options.seconds)
        tasks = Tasks(self._calls, TaskIds(options.key, server=options.server))
        who: WhoAsks = _agent_of_request if options.agent is None else lambda ctx: options.agent or ""
        with_sessions = options.has_sessions or options.agent is not None
        levels = LogLevels(is_passed_on=LOGGING in options.passed_on, with_sessions=with_sessions)
        reading = reading_handlers(self._upstream, options.passed_on, levels, seconds=options.seconds)
        still: Callable[[Any], Still] = _still_of_request if options.agent is None else lambda ctx: _always
        self._subscriptions = Subscriptions(self._upstream, options.passed_on, who, still)
        changes = self._subscriptions.handlers(with_sessions=with_sessions)
        self.server = ProxyServer(
            options.server, options.table, self._upstream, self._calls, tasks, who, {**reading, **changes}, levels
        ).build()

    async def __aenter__(self) -> Proxy:
        await self._authority.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._calls.finish()
        await self._upstream.close()
        await self._authority.close()
        self._client.close()

    def app(self) -> Any:
        """Return the ASGI application. Without sessions it is stateless, so clients continue after a restart of the proxy."""
        access = self._options.access
        named = [urlsplit(access.resource).netloc] if access is not None else []
        loopback = [f"{host}:*" for host in ("127.0.0.1", "localhost", "[::1]")]
        security = TransportSecuritySettings(
            enable_dns_rebinding_protection=True, allowed_hosts=[*self._options.allowed_hosts, *named, *loopback],
            allowed_origins=[f"http://{host}" for host in loopback],
        )  # fmt: skip
        app = self.server.streamable_http_app(
            stateless_http=not self._options.has_sessions, transport_security=security
        )
        if self._options.has_sessions:
            app = AgentSessions(app, lambda scope: scope[SCOPE_KEY], handshakes=HANDSHAKE_PROTOCOL_VERSIONS)
        tokens = AccessTokens(access) if access is not None else None
        return AgentsOnly(app, AgentKeys(self._options.authority, self._authority), tokens)

    async def run(self) -> None:
        """Serve until standard input ends, or until SIGTERM or SIGINT, and then finish the calls under way."""
        is_reading = False
        with _called_by_signals(self._end):
            async with self:
                if self._options.listen is None:
                    is_reading = await self._serve_standard_input()
                else:
                    host, port = self._options.listen
                    config = listener_config(
                        self.app(), host, port, self._options.connections_per_address,
                        longest_answer_seconds=int(self._options.seconds) + REPORT_MARGIN_SECONDS,
                    )  # fmt: skip
                    await ProxyListener(config, self._ending).serve()
        if is_reading:
            signal.raise_signal(signal.SIGTERM)  # nothing else ends the thread that blocks on standard input

    def _end(self) -> None:
        self._ending.set()
        self._subscriptions.end()

    async def _serve_standard_input(self) -> bool:
        """Serve until standard input ends, or until a signal arrives; return whether it is still being read.

        After a signal, serving continues in its task, so that calls in flight are still answered.
        """
        serving = asyncio.create_task(self._answer_standard_input())
        ending = asyncio.create_task(self._ending.wait())
        await asyncio.wait((serving, ending), return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        if serving.done():
            serving.result()
        return not serving.done()

    async def _answer_standard_input(self) -> None:
        async with stdio_server() as (read, write):
            await self.server.run(read, write, self.server.create_initialization_options())


@contextmanager
def _called_by_signals(end: Callable[[], None]) -> Iterator[None]:
    """During the block, call `end` on the event loop at SIGTERM and SIGINT; a second SIGINT ends the process at once.

    The block includes finishing calls after the end of standard input: a client that closes it soon sends SIGTERM.
    """
    loop = asyncio.get_running_loop()

    def received(number: int, *_: object) -> None:
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        loop.call_soon_threadsafe(end)

    before = {number: signal.signal(number, received) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def upstream_of(options: Options) -> Upstream:
    """Return the upstream that the options name, over HTTP or stdio. Raises `WrongOptions`."""
    if options.upstream_url is not None:
        return HttpUpstream(options.upstream_url, headers=credential_headers(options), seconds=options.seconds)
    return StdioUpstream(options.upstream_command, env=credential_env(options))


def _agent_of_request(ctx: Any) -> str:
    return str(ctx.request.scope[SCOPE_KEY])


def _still_of_request(ctx: Any) -> Still:
    found: Still = ctx.request.scope[STILL_KEY]
    return found


async def _always() -> Admission:
    """Admit every request: over stdio the agent is the process that started the proxy."""
    return Admission.YES


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the proxy and return its exit code."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="sentinel mcp-proxy: %(message)s")
    try:
        options = read_options(arguments)
        collect_spans()
        asyncio.run(Proxy(options).run())
    except (WrongOptions, PolicyError, OSError, ValueError) as error:
        sys.stderr.write(f"sentinel mcp-proxy: {error}\n")
        return WRONG_USAGE
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
