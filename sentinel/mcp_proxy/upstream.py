"""The MCP server behind the proxy: its connections, and one call sent over one of them. A call is never sent twice.

Over HTTP every call opens a connection of its own before the operation is started, so that an unreachable server costs
no start, a broken connection affects only its own call, and no request is sent over a stale connection. Each
subscription to changes has a connection of its own too. Over stdio there is one process, which is restarted when it has
exited or does not answer, but is never ended while it is in use. Redirects are not followed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

import httpx2
import mcp_types as types
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.subscriptions import ServerEvent
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter

from sentinel import __version__
from sentinel.core.hosts import is_loopback
from sentinel.mcp_proxy.changes import Heard, Subscribed, changes_of
from sentinel.mcp_proxy.credential import CredentialFilter
from sentinel.mcp_proxy.log_messages import LogMessages
from sentinel.mcp_proxy.param_headers import ParamHeaders

CONNECT_SECONDS = 10.0
END_SECONDS = 2.0
"""Time limit for ending a server's session: a call's result and its report wait for that."""
SILENT_SECONDS = 600.0
"""How long a connection for changes may be without a byte before it counts as broken."""
_RESULT: TypeAdapter[Any] = TypeAdapter(types.CallToolResult | types.InputRequiredResult)
_US = types.Implementation(name="sentinel-mcp-proxy", version=__version__)


_MADE_HERE = {types.CONNECTION_CLOSED, types.REQUEST_TIMEOUT, types.PARSE_ERROR, types.INVALID_REQUEST}
"""Codes of errors that the SDK raises itself where no answer came: a closed connection, a timeout, malformed data,
status 202, a redirect, a lost session."""
_MADE_HERE_OF_A_STATUS = {
    (types.METHOD_NOT_FOUND, "Not Found"),
    (types.INTERNAL_ERROR, "Server returned an error response"),
}
"""Errors that the SDK raises itself for an HTTP status without a JSON-RPC error. Servers answer with these codes too,
so the SDK's text tells them apart."""


class UpstreamUnavailable(Exception):
    """The server cannot be reached, and nothing was sent to it for this call."""


class AnswerLost(Exception):
    """A call may have been sent, and the server did not answer it, so it may still act. The error's text is the reason, in a word."""


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection to the server; over HTTP (`http` and `repeated` are set) it serves one call. No answer contains the
    credential.

    `messages` takes what the server logs during this request; None where the client wants no log messages.
    """

    client: Client
    http: httpx2.AsyncClient | None
    credential: CredentialFilter
    messages: LogMessages | None = None
    repeated: ParamHeaders | None = None

    async def list_tools(self, cursor: str | None) -> types.ListToolsResult:
        """Return one page of the server's tools."""
        params = types.PaginatedRequestParams(cursor=cursor)
        params.meta = self._meta()
        found = await self.client.session.list_tools(params=params)
        return self.credential.of_answer(found)

    async def ask(self, request: Any, result: Any, *, seconds: float, progress: Any = None) -> Any:
        """Send a request once and return its answer. An error answer raises `MCPError`; a lost one, that or the connection's own error."""
        if meta := self._meta():
            request = request if request.params else request.model_validate({"method": request.method, "params": {}})
            request.params.meta = meta
        try:
            answer = await self.client.session.send_request(
                request, result, request_read_timeout_seconds=seconds, progress_callback=self._withholding(progress)
            )
        except MCPError as error:
            raise self.credential.of_error(error) from None
        return self.credential.of_answer(answer)

    def _withholding(self, progress: Any) -> Any:
        if progress is None:
            return None

        async def without_credential(done: float, total: float | None, message: str | None) -> None:
            await progress(done, total, message and self.credential.of_text(message))

        return without_credential

    async def set_log_level(self) -> None:
        """Set the wanted log level at a server of before 2026-07-28. Raises `MCPError` where it does not answer.

        A server without logging, or that refuses the level, sends no messages.
        """
        if self.messages is None or self._is_modern() or self.client.server_capabilities.logging is None:
            return
        params = types.SetLevelRequestParams(level=self.messages.level)
        try:
            await self.ask_quickly(types.SetLevelRequest(params=params), types.EmptyResult)
        except MCPError as error:
            if error.code in (types.CONNECTION_CLOSED, types.REQUEST_TIMEOUT):
                raise

    def _is_modern(self) -> bool:
        return self.client.protocol_version in MODERN_PROTOCOL_VERSIONS

    def _meta(self) -> Any:
        if self.messages is None or not self._is_modern():
            return None
        return {types.LOG_LEVEL_META_KEY: self.messages.level}

    async def ask_quickly(self, request: Any, result: Any) -> Any:
        """Send a request as `ask` does, with a timeout of CONNECT_SECONDS: for requests that a server answers at once."""
        return await self.ask(request, result, seconds=CONNECT_SECONDS)

    async def prepare(self, params: types.CallToolRequestParams) -> None:
        """Find out which headers the server wants with this call; to be done before the start. Raises what breaks the connection."""
        if self.repeated is None or not self._is_modern():
            return
        try:
            await asyncio.wait_for(self.repeated.learn(params.name, self.client.session), CONNECT_SECONDS)
        except MCPError as error:
            if not is_servers_own(error):
                raise
            # A server that refuses to list its tools wants no headers that could only be known from its list.

    async def call(
        self, params: types.CallToolRequestParams, *, headers: Mapping[str, str], seconds: float, progress: Any = None
    ) -> types.CallToolResult | types.InputRequiredResult:
        """Send the call once. Raises `MCPError` where the server itself answered with an error, and `AnswerLost` for any other failure."""
        if self.http is not None:
            repeated = self.repeated.of(params) if self.repeated is not None else {}
            self.http.headers.update({**repeated, **headers})
        # Not the SDK's `call_tool`, which may list tools, refuse a result that arrived, or send the call a second time.
        request = types.CallToolRequest(params=params)
        try:
            found: types.CallToolResult | types.InputRequiredResult = await self.ask(
                request, _RESULT, seconds=seconds, progress=progress
            )
        except Exception as error:
            if is_servers_own(error):
                if self.repeated is not None and isinstance(error, MCPError) and error.code == types.HEADER_MISMATCH:
                    self.repeated.forget(params.name)
                raise
            raise AnswerLost(reason_of(error)) from error
        return found


class Upstream(Protocol):
    """A server, over HTTP or stdio."""

    def connect(self, messages: LogMessages | None = None) -> Any:
        """Return a context manager that yields a `Connection` to a server that has just answered.

        `messages` takes what the server logs meanwhile. When the connection breaks, the body is cancelled and the cause
        is raised on exit. Raises `UpstreamUnavailable` on entry.
        """

    def watch(self, wanted: types.SubscriptionFilter) -> Any:
        """Return a context manager that yields an async iterator over the wanted changes; its connection stays open.

        Raises `UpstreamUnavailable`, and `MCPError` where the server offers no notifications of them.
        """

    async def close(self) -> None:
        """Close what is kept open between calls."""


class _HttpClient(httpx2.AsyncClient):
    """An HTTP client that limits DELETE, which the SDK sends only to end a session, to `END_SECONDS`.

    The limit includes reading the whole answer. Raises `TimeoutError` after that.
    """

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        if request.method != "DELETE":
            return await super().send(request, **options)
        try:
            return await asyncio.wait_for(self._whole_answer(request, options), END_SECONDS)
        except asyncio.TimeoutError:  # noqa: UP041  another class before Python 3.11
            raise TimeoutError(f"no answer within {END_SECONDS:g} seconds") from None

    async def _whole_answer(self, request: httpx2.Request, options: Mapping[str, Any]) -> httpx2.Response:
        answer = await super().send(request, **options)
        await answer.aread()
        return answer


class HttpUpstream:
    """A server at a URL (streamable HTTP). `headers` contain its credential."""

    def __init__(self, url: str, *, headers: Mapping[str, str], seconds: float) -> None:
        self._url, self._headers = url, dict(headers)
        self._credential = CredentialFilter(headers.values())
        self._seconds = seconds
        # An HTTP proxy named in the environment cannot reach servers on this machine, and would get their credential in
        # plain text.
        self._uses_environment = not is_loopback(urlsplit(url).hostname or "")
        # One TLS context for all calls: loading the certificates takes longer than the rest of a call.
        self._tls = httpx2.create_ssl_context()
        self._mode = "auto"
        self._repeated = ParamHeaders()

    def connect(self, messages: LogMessages | None = None) -> AbstractAsyncContextManager[Connection]:
        """Open a new connection, whose handshake shows that the server is reachable."""
        return self._connected(self._seconds + CONNECT_SECONDS, None, messages)

    @asynccontextmanager
    async def watch(self, wanted: types.SubscriptionFilter) -> AsyncIterator[AsyncIterator[ServerEvent]]:
        """Watch for changes over a connection of its own."""
        heard = Heard()
        async with self._connected(SILENT_SECONDS, heard.take) as connection:
            async with changes_of(connection.client, wanted, heard, Subscribed(), connection.ask_quickly) as changes:
                yield changes

    @asynccontextmanager
    async def _connected(
        self, read_seconds: float, handler: Any, messages: LogMessages | None = None
    ) -> AsyncIterator[Connection]:
        is_connected = False

        async def logged(message: types.LoggingMessageNotificationParams) -> None:
            if messages is not None and messages.wants(message.level):
                messages.take(self._credential.of_answer(message))

        timeout = httpx2.Timeout(CONNECT_SECONDS, read=read_seconds)
        try:
            async with _HttpClient(
                headers=self._headers,
                timeout=timeout,
                max_redirects=0,
                verify=self._tls,
                trust_env=self._uses_environment,
            ) as http:
                transport = streamable_http_client(self._url, http_client=http)
                async with Client(
                    transport, mode=self._mode, read_timeout_seconds=CONNECT_SECONDS, client_info=_US, message_handler=handler,
                    logging_callback=logged,
                ) as client:  # fmt: skip
                    self._mode = "legacy" if client.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS else "auto"
                    connection = Connection(client, http, self._credential, messages, self._repeated)
                    await connection.set_log_level()
                    is_connected = True
                    yield connection
        except Exception as error:
            if is_connected:
                raise
            self._mode = "auto"
            raise UpstreamUnavailable(reason_of(error)) from error

    async def close(self) -> None:
        """Do nothing: no connection is kept."""


@dataclass(slots=True)
class _Process:
    """A server's process, kept open by `task` until `ending` is set. `users`: how many calls and other requests use it now."""

    client: Client
    task: asyncio.Task[None]
    ending: asyncio.Event
    users: int = 0


class StdioUpstream:
    """A server that the proxy runs as a child process; `env` has its credential, beside the few usual variables.

    A server may answer nothing while it acts, so an unresponsive process in use is not ended: that could cut off a
    started effect.
    """

    def __init__(self, command: list[str], *, env: Mapping[str, str]) -> None:
        self._parameters = StdioServerParameters(command=command[0], args=command[1:], env=dict(env))
        self._credential = CredentialFilter(env.values())
        self._lock = asyncio.Lock()
        self._kept: _Process | None = None
        self._starting: asyncio.Task[_Process] | None = None
        self._subscribed = Subscribed()
        self._watching: set[Heard] = set()
        self._logging: list[LogMessages] = []

    @asynccontextmanager
    async def connect(self, messages: LogMessages | None = None) -> AsyncIterator[Connection]:
        """Connect to the running process; start another where it does not answer and nothing else uses it."""
        process = await self._answering()
        process.users += 1
        try:
            connection = Connection(process.client, None, self._credential, messages)
            try:
                await connection.set_log_level()
            except Exception as error:
                raise UpstreamUnavailable(reason_of(error)) from error
            with self._logged_to(messages):
                yield connection
        finally:
            process.users -= 1

    @contextmanager
    def _logged_to(self, messages: LogMessages | None) -> Iterator[None]:
        if messages is None:
            yield
            return
        self._logging.append(messages)
        try:
            yield
        finally:
            self._logging.remove(messages)

    @asynccontextmanager
    async def watch(self, wanted: types.SubscriptionFilter) -> AsyncIterator[AsyncIterator[ServerEvent]]:
        """Watch the running process for changes until it ends. Not counted in `users`, since no action of the server is awaited."""
        connection = Connection((await self._answering()).client, None, self._credential)
        heard = Heard()
        self._watching.add(heard)
        try:
            async with changes_of(
                connection.client, wanted, heard, self._subscribed, connection.ask_quickly
            ) as changes:
                yield changes
        finally:
            self._watching.discard(heard)

    async def _logged(self, message: types.LoggingMessageNotificationParams) -> None:
        # A message does not say which of several concurrent requests it is about: the oldest one that wants it gets it.
        wanting = [one for one in self._logging if one.wants(message.level)]
        if wanting:
            wanting[0].take(self._credential.of_answer(message))

    async def _heard(self, message: Any) -> None:
        for one in list(self._watching):
            await one.take(message)

    async def close(self) -> None:
        """End the process, also one that is being started."""
        if self._starting is not None:
            await asyncio.wait((self._starting,))
        process, self._kept = self._kept, None
        if process is not None:
            await _end(process)

    async def _answering(self) -> _Process:
        """Return a process that has just answered; the caller must count itself in `users` before it awaits anything.

        Raises `UpstreamUnavailable`.
        """
        # Asked without the lock, so that several requests can wait for a busy server at the same time.
        process = self._kept
        if process is not None and await self._answers(process) and process is self._kept:
            return process
        async with self._lock:
            silent = process if process is self._kept else None
            if silent is not None and silent.users:
                raise UpstreamUnavailable("Busy")
            if self._kept is not None and silent is None:
                return self._kept
            # The start continues when the request that awaits it is cancelled: the next request gets the process.
            if self._starting is None:
                self._starting, self._kept = asyncio.create_task(self._started(silent)), None
                # Retrieves the error even if no request awaits it any more, so that asyncio does not log it.
                self._starting.add_done_callback(lambda task: task.cancelled() or task.exception())
            try:
                return await asyncio.shield(self._starting)
            except Exception as error:
                raise UpstreamUnavailable(reason_of(error)) from error

    async def _answers(self, process: _Process) -> bool:
        """Return whether the process answers the listing of its tools, be it with an error, or with what is no list."""
        if process.task.done():
            return False
        try:
            await asyncio.wait_for(process.client.session.list_tools(), CONNECT_SECONDS)
        except MCPError as error:
            return is_servers_own(error)
        except ValueError:  # pydantic's
            return True
        except TimeoutError:
            return False
        return True

    async def _started(self, before: _Process | None) -> _Process:
        """Start a process, once the one before it has ended."""
        try:
            if before is not None:
                await _end(before)
            # In a task of its own: the task that opens such a connection must also close it.
            ready, ending = asyncio.get_running_loop().create_future(), asyncio.Event()
            task = asyncio.create_task(self._hold(ready, ending))
            done, _ = await asyncio.wait((ready, task), return_when=asyncio.FIRST_COMPLETED)
            if ready not in done:
                await task
            self._kept = _Process(ready.result(), task, ending)
            return self._kept
        finally:
            self._starting = None

    async def _hold(self, ready: asyncio.Future[Client], ending: asyncio.Event) -> None:
        self._subscribed = Subscribed()
        try:
            async with Client(
                self._parameters,
                read_timeout_seconds=CONNECT_SECONDS,
                client_info=_US,
                message_handler=self._heard,
                logging_callback=self._logged,
            ) as client:
                ready.set_result(client)
                await ending.wait()
        finally:
            for one in self._watching:
                one.end()


async def _end(process: _Process) -> None:
    """End a process, also if the caller is cancelled meanwhile: otherwise it would go on running."""
    process.ending.set()
    with suppress(Exception):
        await asyncio.shield(process.task)


def is_servers_own(error: Exception) -> bool:
    """Return whether the server itself answered with this error.

    False for errors that the SDK raises, and for a server's own that look like them: after an answer nobody may still
    act, so a doubtful one must not count.
    """
    if not isinstance(error, MCPError):
        return False
    return error.code not in _MADE_HERE and (error.code, error.message) not in _MADE_HERE_OF_A_STATUS


def reason_of(error: BaseException) -> str:
    """Return what broke a connection, in a word: the innermost error's name, as its text may contain what must not leave the proxy."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    if isinstance(error, AnswerLost):
        return str(error)
    return f"MCPError {error.code}" if isinstance(error, MCPError) else type(error).__name__
