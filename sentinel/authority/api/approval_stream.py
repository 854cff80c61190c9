"""The stream of decided approvals (server-sent events) on the event loop: a stream costs a connection and no thread.

Streams that may see the same approvals share one reader, which asks the database twice a second while anybody listens.
StreamSlots are counted in all, by tenant and by key; one is free again as soon as its client is gone or takes nothing any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeVar

import orjson
import structlog

from sentinel.authority import metrics
from sentinel.authority.api.guard import rfc3339
from sentinel.authority.api.identity import Identity
from sentinel.authority.approvals import DecidedApproval
from sentinel.authority.engine import Caller
from sentinel.core.errors import SentinelError, TooManyStreams
from sentinel.platform.http.asgi import (
    EVENT_STREAM,
    STALLED_SECONDS,
    Receive,
    Send,
    StreamHandler,
    asgi_headers,
    disconnected,
)
from sentinel.platform.http.wire import query_field, request_id_of

POLL_SECONDS = 0.5
HEARTBEAT_SECONDS = 10.0
BACKLOG = 500
HEARTBEAT = b": still here\n\n"
# A decision's time is taken before its commit, so one may become visible after a later one: look back a little.
OVERLAP = timedelta(seconds=10)


class Whose(NamedTuple):
    """Whose approvals are read: what a principal asked for, and what anybody did for the agent that its key is bound to.

    Those on whose operations it may act (`sentinel.is_anothers`). No principal: everybody's of the tenant.
    """

    tenant_id: uuid.UUID
    principal_id: uuid.UUID | None
    agent_id: str | None

    def has(self, principal_id: uuid.UUID, agent_id: str) -> bool:
        """Whether an approval that this principal asked for, in this agent's name, is one of them."""
        return self.principal_id in (None, principal_id) or self.agent_id == agent_id


ReadSince = Callable[[Whose, datetime], list[DecidedApproval]]

T = TypeVar("T")

log = structlog.get_logger("sentinel")


class StreamSlots:
    """How many streams one process holds open: `most` in all, of one tenant, and of one key."""

    def __init__(self, most: int, most_of_tenant: int, most_of_key: int) -> None:
        self._bounds = (
            ("this process has", most), ("this tenant has", most_of_tenant), ("this key has", most_of_key),
        )  # fmt: skip
        self._taken: Counter[uuid.UUID | None] = Counter()

    @contextlib.contextmanager
    def taken(self, caller: Caller) -> Iterator[None]:
        """A place for the block. Raises `TooManyStreams`, which says whose places are all taken."""
        owners = (None, caller.tenant_id, caller.key_id)
        for owner, (whose, most) in zip(owners, self._bounds, strict=True):
            if self._taken[owner] >= most:
                raise TooManyStreams(
                    f"{whose} {most} approvals streams open, which is all it may; close one or try again later"
                )
        self._taken.update(owners)
        metrics.STREAMS.inc()
        try:
            yield
        finally:
            metrics.STREAMS.dec()
            self._taken.subtract(owners)
            self._taken += Counter()  # whoever has none is forgotten


@dataclass
class _Listeners:
    """The streams that see the same approvals, and the task that reads for them."""

    queues: set[asyncio.Queue[DecidedApproval]] = field(default_factory=set)
    is_reading: asyncio.Event = field(default_factory=asyncio.Event)
    read_to: datetime = datetime.min.replace(tzinfo=UTC)
    """The latest decision that was read; what comes by the queues from here on is later than this less OVERLAP."""
    task: asyncio.Task[None] | None = None

    async def began(self, seconds: float, is_over: Callable[[], bool]) -> bool:
        """Whether what is decided from now on comes by the queues; waits for it up to `seconds`, or until `is_over`.

        While the database is away nobody knows when it will.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while not (self.is_reading.is_set() or is_over()) and (left := until - loop.time()) > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.is_reading.wait(), min(left, POLL_SECONDS))
        return self.is_reading.is_set()


class ApprovalFeed:
    """Hands decided approvals on, as they are decided.

    `read_since(whose, moment)` gives what was decided after a moment, oldest first: at most BACKLOG, and whatever was decided in the
    same instant as the last of them. `clock` is the database's. Both are called in a thread.
    """

    def __init__(
        self,
        read_since: ReadSince,
        clock: Callable[[], datetime],
        places: StreamSlots,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._read_since, self._clock = read_since, clock
        self._stopping = stopping
        self._listeners: dict[Whose, _Listeners] = {}
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="approvals")
        self.places = places

    async def answer(
        self,
        caller: Caller,
        last_seen: datetime | None,
        receive: Receive,
        send: Send,
        *,
        is_welcome: Callable[[], Awaitable[bool]],
        may_begin: Callable[[], bool] = lambda: True,
    ) -> None:
        """Send what was decided behind `last_seen` (None: from now on), then each decision, until the client goes.

        `is_welcome` says whether the key is still good; it is asked before whatever is sent. Until `may_begin`, and up to
        HEARTBEAT_SECONDS, there are heartbeats alone; what is decided meanwhile comes afterwards.
        """
        gone = asyncio.ensure_future(disconnected(receive))
        try:
            async for payload in self._events(whose(caller), last_seen, gone, may_begin):
                if not await is_welcome():
                    break
                message = {"type": "http.response.body", "body": payload, "more_body": True}
                # A client that takes nothing holds its place for so long and no longer.
                await asyncio.wait_for(send(message), STALLED_SECONDS)
            if not gone.done():
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except (TimeoutError, OSError):
            return
        finally:
            gone.cancel()

    async def wait_for(
        self, caller: Caller, approval_id: uuid.UUID, seconds: float, *, is_open: Callable[[], Awaitable[bool]]
    ) -> None:
        """Return once the caller's approval is decided, after `seconds`, or when this process drains.

        `is_open` looks whether it still is; it is asked once, when nothing that is decided from then on can be missed, and not
        where the database is away for as long.
        """
        until = asyncio.get_running_loop().time() + seconds
        owner = Whose(caller.tenant_id, caller.principal_id, caller.agent_id)
        with self.places.taken(caller), self._listening(owner) as (queue, listeners):
            if not await listeners.began(seconds, self._stopping) or not await is_open():
                return
            while (left := until - asyncio.get_running_loop().time()) > 0 and not self._stopping():
                with contextlib.suppress(TimeoutError):
                    if (await asyncio.wait_for(queue.get(), min(left, POLL_SECONDS))).request_id == approval_id:
                        return

    async def _events(
        self, owner: Whose, last_seen: datetime | None, gone: asyncio.Future[None], may_begin: Callable[[], bool]
    ) -> AsyncIterator[bytes]:
        told: set[uuid.UUID] = set()

        def is_over() -> bool:
            return self._stopping() or gone.done()

        with self._listening(owner) as (queue, listeners):
            # What is decided from here on comes by the queue; what was decided before is looked up.
            while not await listeners.began(HEARTBEAT_SECONDS, is_over):
                if is_over():
                    return
                yield HEARTBEAT
            may_come_again = listeners.read_to - OVERLAP
            loop = asyncio.get_running_loop()
            begins_at = loop.time() + HEARTBEAT_SECONDS
            while loop.time() < begins_at and not may_begin():
                if is_over():
                    return
                yield HEARTBEAT
                await asyncio.wait({gone}, timeout=POLL_SECONDS)
            yield data({"type": "CONNECTED"})
            while last_seen is not None and not is_over():
                try:
                    portion = await self._in_thread(self._read_since, owner, last_seen)
                except SentinelError:
                    yield HEARTBEAT  # the database is away: the stream stays open, and goes on when it is back
                    await asyncio.sleep(POLL_SECONDS)
                    continue
                for one in portion:
                    if one.decided_at > may_come_again:
                        told.add(one.request_id)
                    yield decision(one, catchup=True)
                last_seen = portion[-1].decided_at if len(portion) >= BACKLOG else None
            while not is_over():
                arrived = asyncio.ensure_future(queue.get())
                waited_for: set[asyncio.Future[Any]] = {arrived, gone}
                await asyncio.wait(waited_for, timeout=HEARTBEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if not arrived.done():
                    arrived.cancel()
                    if not gone.done():
                        yield HEARTBEAT
                elif (one := arrived.result()).request_id not in told:
                    yield decision(one, catchup=False)

    @contextlib.contextmanager
    def _listening(self, owner: Whose) -> Iterator[tuple[asyncio.Queue[DecidedApproval], _Listeners]]:
        listeners = self._listeners.setdefault(owner, _Listeners())
        queue: asyncio.Queue[DecidedApproval] = asyncio.Queue()
        listeners.queues.add(queue)
        if listeners.task is None:
            listeners.task = asyncio.ensure_future(self._follow(owner, listeners))
        try:
            yield queue, listeners
        finally:
            listeners.queues.discard(queue)
            if not listeners.queues:
                listeners.task.cancel()
                del self._listeners[owner]

    async def _follow(self, owner: Whose, listeners: _Listeners) -> None:
        """Read what is decided from now on, and hand each decision to every queue once."""
        listeners.read_to = await self._once_answered(self._clock)
        since = listeners.read_to - OVERLAP
        told: dict[uuid.UUID, datetime] = {}
        while True:
            portion = await self._once_answered(self._read_since, owner, since)
            for one in portion:
                if one.request_id not in told:
                    told[one.request_id] = one.decided_at
                    # What was decided before the first read was done is nobody's news.
                    for queue in listeners.queues if listeners.is_reading.is_set() else ():
                        queue.put_nowait(one)
                listeners.read_to = max(listeners.read_to, one.decided_at)
            if len(portion) >= BACKLOG:
                since = portion[-1].decided_at
                continue
            listeners.is_reading.set()
            since = listeners.read_to - OVERLAP
            told = {key: moment for key, moment in told.items() if moment > since - OVERLAP}
            await asyncio.sleep(POLL_SECONDS)

    async def _once_answered(self, ask: Callable[..., T], *arguments: Any) -> T:
        """What is asked for, once the database answers: streams stay open while it is away.

        Whatever else goes wrong is asked again too: who reads for all of an owner's streams is begun once, and must not end before them.
        """
        while True:
            try:
                return await self._in_thread(ask, *arguments)
            except SentinelError:
                pass
            except Exception as error:
                log.error("approvals_not_read", cause=type(error).__name__)
            await asyncio.sleep(POLL_SECONDS)

    async def _in_thread(self, call: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)


def approvals_stream(identity: Identity, feed: ApprovalFeed) -> StreamHandler:
    """The handler of `GET approvals/stream`: a request's environment → what the stream sends, until the client goes."""

    async def stream(environ: dict[str, Any], receive: Receive, send: Send) -> None:
        # A good key with the scope is not refused for its rate, but waits a little: the released clients listen no more once they
        # were refused. A last_seen that cannot be read means "from now on".
        caller = await identity.caller_async("approvals:read", environ, may_wait=True)
        seen = parse_time(query_field(environ, "last_seen"))
        with feed.places.taken(caller):
            headers = [*asgi_headers(EVENT_STREAM), (b"x-request-id", request_id_of(environ).encode("latin-1"))]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await feed.answer(
                caller, seen, receive, send, is_welcome=lambda: identity.is_usable(environ, "approvals:read"),
                may_begin=lambda: identity.is_within_rate(environ),
            )  # fmt: skip

    return stream


def whose(caller: Caller) -> Whose:
    """Whose approvals a key may read: its own and its agent's, or everybody's with the scope for it."""
    if "approvals:read_all" in caller.scopes:
        return Whose(caller.tenant_id, None, None)
    return Whose(caller.tenant_id, caller.principal_id, caller.agent_id)


def parse_time(text: str) -> datetime | None:
    """RFC 3339 with a zone, or None. A "+" that a query string turned into a blank is understood."""
    try:
        moment = datetime.fromisoformat(text.strip().replace(" ", "+").replace("Z", "+00:00"))
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None


def decision_fields(decided: DecidedApproval) -> dict[str, Any]:
    """A decided approval as both released clients read it."""
    return {
        "request_id": str(decided.request_id), "status": decided.status, "approver": decided.approver,
        "reason": decided.reason, "agent_id": decided.agent_id, "action": decided.action,
        "decided_at": rfc3339(decided.decided_at),
    }  # fmt: skip


def decision(decided: DecidedApproval, *, catchup: bool) -> bytes:
    """A decision as it goes over the wire."""
    fields = decision_fields(decided)
    timestamp = fields.pop("decided_at")
    return data({"type": "APPROVAL_DECISION", **fields, "timestamp": timestamp, "catchup": catchup})


def data(fields: dict[str, Any]) -> bytes:
    """The bytes of one server-sent event."""
    return b"data: " + orjson.dumps(fields) + b"\n\n"
