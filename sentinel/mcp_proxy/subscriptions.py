"""Notifies agents of changes at the upstream in what they may read: by `subscriptions/listen` of 2026-07-28, and by
`resources/subscribe` before it, which needs a session.

A notification says only that something should be read again. Before each one the agent's credential is checked again:
once it is refused, the agent gets no more, and while the check has no answer, the notification waits. Streams are
bounded per agent and per proxy, because each holds a connection to the upstream.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import anyio
import mcp_types as types
from mcp import MCPError
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY, ResourceUpdated, ServerEvent, event_to_notification

from sentinel.mcp_proxy.agents import Admission, Still
from sentinel.mcp_proxy.upstream import Upstream, UpstreamUnavailable, reason_of

log = logging.getLogger("sentinel.mcp_proxy")
MOST_OF_AN_AGENT, MOST = 32, 256
LOOK_SECONDS = 30.0
"""How often a stream without changes checks that its agent is still admitted."""
_LONGEST_PAUSE_SECONDS = 30.0


class TooManySubscriptions(MCPError):
    """The agent, or the proxy as a whole, already has its maximum of streams."""


@dataclass(frozen=True, slots=True, eq=False)
class _SessionSubscription:
    """A session's subscription to one resource. `begun` is done once the server has accepted or refused it, or `task` has ended."""

    task: asyncio.Task[None]
    begun: asyncio.Future[None]


class Subscriptions:
    """The streams of one proxy. `who` returns a request's agent, `still_of` the function that checks whether it is still admitted."""

    def __init__(
        self, upstream: Upstream, passed_on: Collection[str], who: Callable[[Any], str], still_of: Callable[[Any], Still]
    ) -> None:  # fmt: skip
        self._upstream, self._passed_on, self._who, self._still_of = upstream, passed_on, who, still_of
        self._streams: Counter[str] = Counter()
        self._sessions: dict[tuple[str, str], _SessionSubscription] = {}
        self._tasks: dict[str, set[asyncio.Task[None]]] = {}
        self._listening: set[anyio.CancelScope] = set()
        self._is_ending = False

    def handlers(self, *, with_sessions: bool) -> dict[str, Callable[..., Any]]:
        """Return the request handlers, by the parameter names of the SDK's server."""
        found: dict[str, Callable[..., Any]] = {"on_subscriptions_listen": self._listen}
        if with_sessions and "resources" in self._passed_on:
            found |= {"on_subscribe_resource": self._subscribe, "on_unsubscribe_resource": self._unsubscribe}
        return found

    def end(self) -> None:
        """End every stream of `subscriptions/listen`, also any that begins later: shutdown waits for the connection of each."""
        self._is_ending = True
        for scope in self._listening:
            scope.cancel()

    async def _listen(
        self, ctx: Any, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Serve one stream until its client, the upstream or `end` ends it."""
        meta: dict[str, Any] = {SUBSCRIPTION_ID_META_KEY: ctx.request_id}
        wanted = self._readable(params.notifications)

        async def notify(notification: Any) -> None:
            await ctx.session.send_notification(notification, related_request_id=ctx.request_id)

        with self._place(self._who(ctx)), self._until_ended():
            try:
                async with self._upstream.watch(wanted) as changes:
                    acknowledged = types.SubscriptionsAcknowledgedNotificationParams(notifications=wanted, _meta=meta)
                    await notify(types.SubscriptionsAcknowledgedNotification(params=acknowledged))
                    async with aclosing(admitted(changes, self._still_of(ctx))) as passed_on:
                        async for change in passed_on:
                            await notify(event_to_notification(change, meta))
            except Exception as error:
                raise _refused(error) from error
        return types.SubscriptionsListenResult(_meta=meta)

    async def _subscribe(self, ctx: Any, params: types.SubscribeRequestParams) -> types.EmptyResult:
        """Subscribe a session to one resource, until it unsubscribes or ends."""
        name = (_session_of(ctx), params.uri)
        if name not in self._sessions:
            begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            task = asyncio.create_task(self._tell_session(ctx, params.uri, begun))
            told = self._sessions[name] = _SessionSubscription(task, begun)
            task.add_done_callback(lambda _: self._ended(name, told))
            self._end_with_session(ctx, task)
        # Several requests may await it, and cancelling one of them must not cancel it for the others.
        await asyncio.shield(self._sessions[name].begun)
        return types.EmptyResult()

    def _end_with_session(self, ctx: Any, task: asyncio.Task[None]) -> None:
        """Have the task cancelled when the session ends, as the SDK releases the session's other resources."""
        session = _session_of(ctx)
        if session not in self._tasks:
            self._tasks[session] = set()
            # One callback for all tasks: none can be taken back, and a session may subscribe again and again.
            ctx.session._connection.exit_stack.callback(self._session_ended, session)
        self._tasks[session].add(task)
        task.add_done_callback(self._tasks[session].discard)

    def _session_ended(self, session: str) -> None:
        for task in self._tasks.pop(session, ()):
            task.cancel()

    def _ended(self, name: tuple[str, str], told: _SessionSubscription) -> None:
        if self._sessions.get(name) is told:
            del self._sessions[name]
        if not told.begun.done():
            message = "the subscription was ended before it began"
            told.begun.set_exception(MCPError(code=types.INTERNAL_ERROR, message=message))

    async def _unsubscribe(self, ctx: Any, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        told = self._sessions.pop((_session_of(ctx), params.uri), None)
        if told is not None:
            told.task.cancel()
        return types.EmptyResult()

    async def _tell_session(self, ctx: Any, uri: str, begun: asyncio.Future[None]) -> None:
        """Notify a session of one resource's changes. `begun` is set once the server accepts the subscription, or to its refusal."""
        still = self._still_of(ctx)
        try:
            with self._place(self._who(ctx)):
                await self._tell_while_admitted(ctx, uri, still, begun)
        except Exception as error:
            if not begun.done():
                begun.set_exception(_refused(error))
            else:
                log.warning("a subscription ended (%s)", reason_of(error))

    async def _tell_while_admitted(self, ctx: Any, uri: str, still: Still, begun: asyncio.Future[None]) -> None:
        wanted = types.SubscriptionFilter(resource_subscriptions=[uri])
        updated = event_to_notification(ResourceUpdated(uri), {})
        pause = 1.0
        while True:
            try:
                async with self._upstream.watch(wanted) as changes:
                    if begun.done():
                        await ctx.session.send_notification(updated)  # it may have changed while not connected
                    else:
                        begun.set_result(None)
                    pause = 1.0
                    async with aclosing(admitted(changes, still)) as passed_on:
                        async for _ in passed_on:
                            await ctx.session.send_notification(updated)
            except Exception:
                if not begun.done():
                    raise
            await asyncio.sleep(pause)
            if not await is_admitted(still):
                return
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _readable(self, wanted: types.SubscriptionFilter) -> types.SubscriptionFilter:
        """Return the part of a filter that the proxy passes on; changes of the tool list always are."""
        resources, prompts = "resources" in self._passed_on, "prompts" in self._passed_on
        return types.SubscriptionFilter(
            tools_list_changed=wanted.tools_list_changed or None,
            prompts_list_changed=(prompts and wanted.prompts_list_changed) or None,
            resources_list_changed=(resources and wanted.resources_list_changed) or None,
            resource_subscriptions=list(wanted.resource_subscriptions or ()) if resources else None,
        )

    @contextmanager
    def _until_ended(self) -> Iterator[None]:
        with anyio.CancelScope() as scope:
            self._listening.add(scope)
            if self._is_ending:
                scope.cancel()
            try:
                yield
            finally:
                self._listening.discard(scope)

    @contextmanager
    def _place(self, agent: str) -> Iterator[None]:
        """Count a stream of this agent during the block. Raises `TooManySubscriptions`."""
        if self._streams[agent] >= MOST_OF_AN_AGENT or self._streams.total() >= MOST:
            raise TooManySubscriptions(code=types.INTERNAL_ERROR, message="too many subscriptions: end some first")
        self._streams[agent] += 1
        try:
            yield
        finally:
            self._streams[agent] -= 1
            if not self._streams[agent]:
                del self._streams[agent]


async def admitted(changes: AsyncIterator[ServerEvent], still: Still) -> AsyncGenerator[ServerEvent, None]:
    """Yield the changes while their agent is admitted, which is checked before each change and every LOOK_SECONDS.

    Changes wait while the check has no answer.
    """
    following = asyncio.ensure_future(anext(changes))
    try:
        while True:
            await asyncio.wait((following,), timeout=LOOK_SECONDS)
            if not await is_admitted(still):
                return
            if following.done():
                try:
                    change = following.result()
                except StopAsyncIteration:
                    return
                following = asyncio.ensure_future(anext(changes))
                yield change
    finally:
        following.cancel()
        with suppress(BaseException):
            await following


async def is_admitted(still: Still) -> bool:
    """Return whether the agent is still admitted; retry with growing pauses while the check has no answer."""
    pause = 1.0
    while (found := await still()) is Admission.UNKNOWN:
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
    return found is Admission.YES


def _session_of(ctx: Any) -> str:
    """Return the session's id; "" over stdio, where there is only one session."""
    return str(ctx.request.headers.get("mcp-session-id", "")) if ctx.request is not None else ""


def _refused(error: BaseException) -> MCPError:
    """Return the error for the client, without the server's own text, which may repeat its credential."""
    if isinstance(error, TooManySubscriptions):
        return error
    name = str(error) if isinstance(error, UpstreamUnavailable) else reason_of(error)
    return MCPError(
        code=types.INTERNAL_ERROR, message=f"the server behind the proxy does not notify of changes ({name})"
    )
