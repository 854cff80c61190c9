"""The stream of decided approvals (server-sent events) on the event loop: a stream takes a connection, but no thread.

Streams that may see the same approvals share one reader, which polls the database twice a second while there are any.
The number of open streams is limited per process, tenant and key (`StreamSlots`); a slot is freed as soon as its client
disconnects or stops reading.
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
from sentinel.authority.api.identity import Identity
from sentinel.authority.approvals import DecidedApproval
from sentinel.authority.engine import Caller
from sentinel.core.errors import SentinelError, TooManyStreams
from sentinel.core.moments import rfc3339
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
from sentinel.platform.ongoing_failures import OngoingFailures, raised_at

POLL_SECONDS = 0.5
HEARTBEAT_SECONDS = 10.0
BACKLOG = 500
HEARTBEAT = b": still here\n\n"
# A decision's time is taken before its commit, so it may become visible after one with a later time: each poll reads
# this much of the past again.
OVERLAP = timedelta(seconds=10)


class Whose(NamedTuple):
    """Which approvals of a tenant a caller may read.

    They are those that its principal requested, and those that any key requested for the agent that its key is bound
    to, which are those on whose operations it may act (`sentinel.is_anothers`). `principal_id` None means all of the
    tenant.
    """

    tenant_id: uuid.UUID
    principal_id: uuid.UUID | None
    agent_id: str | None

    def has(self, principal_id: uuid.UUID, agent_id: str) -> bool:
        """Return whether an approval that this principal requested for this agent is included."""
        return self.principal_id in (None, principal_id) or self.agent_id == agent_id


ReadSince = Callable[[Whose, datetime], list[DecidedApproval]]

T = TypeVar("T")

log = structlog.get_logger("sentinel")


class StreamSlots:
    """Limits how many streams one process holds open: in all, per tenant, and per key."""

    def __init__(self, most: int, most_of_tenant: int, most_of_key: int) -> None:
        self._bounds = (
            ("this process has", most), ("this tenant has", most_of_tenant), ("this key has", most_of_key),
        )  # fmt: skip
        self._taken: Counter[uuid.UUID | None] = Counter()

    @contextlib.contextmanager
    def taken(self, caller: Caller) -> Iterator[None]:
        """Hold a slot for the duration of the block. Raises `TooManyStreams`, which says which limit is reached."""
        owners = (None, caller.tenant_id, caller.key_id)
        for owner, (whose, most) in zip(owners, self._bounds, strict=True):
            if self._taken[owner] >= most:
                raise TooManyStreams(
                    f"{whose} {most} approvals streams open, which is its limit; close one or try again later"
                )
        self._taken.update(owners)
        metrics.STREAMS.inc()
        try:
            yield
        finally:
            metrics.STREAMS.dec()
            self._taken.subtract(owners)
            self._taken += Counter()  # drops the keys whose count is zero


@dataclass
class _Listeners:
    """The queues of the streams that see the same approvals, and the task that reads for them."""

    queues: set[asyncio.Queue[DecidedApproval]] = field(default_factory=set)
    is_reading: asyncio.Event = field(default_factory=asyncio.Event)
    read_to: datetime = datetime.min.replace(tzinfo=UTC)
    """The time of the latest decision that was read; the queues then only get decisions later than this less OVERLAP."""
    task: asyncio.Task[None] | None = None

    async def began(self, seconds: float, is_over: Callable[[], bool]) -> bool:
        """Wait until the reader has read up to now, at most `seconds` or until `is_over`, and return whether it has.

        From then on every new decision comes by the queues. While the database is unavailable the reader cannot get
        there.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while not (self.is_reading.is_set() or is_over()) and (left := until - loop.time()) > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.is_reading.wait(), min(left, POLL_SECONDS))
        return self.is_reading.is_set()


class ApprovalFeed:
    """Delivers approvals to streams as they are decided.

    `read_since(whose, moment)` returns what was decided after a moment, oldest first: at most BACKLOG rows, plus those
    decided in the same instant as the last of them. `clock` gives the database's time. Both are called in a thread.
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
        self._failures = OngoingFailures()
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
        """Send what was decided after `last_seen` (None: from now on), then each new decision.

        Ends when the client disconnects or the process stops. `is_welcome` says whether the key is still usable, and is
        called before each message. Until `may_begin` returns True, at most HEARTBEAT_SECONDS, only heartbeats are sent;
        decisions of that time follow afterwards.
        """
        gone = asyncio.ensure_future(disconnected(receive))
        try:
            async for payload in self._events(whose(caller), last_seen, gone, may_begin):
                if not await is_welcome():
                    break
                message = {"type": "http.response.body", "body": payload, "more_body": True}
                # Bounds how long a client that reads nothing can hold its slot.
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
        """Return once the caller's approval is decided, after `seconds`, or when this process is stopping.

        `is_open` says whether the approval is still pending. It is called once, as soon as no later decision can be
        missed; it is not called if the database stays unavailable for `seconds`. Raises `TooManyStreams`.
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
            # Later decisions come by the queue; earlier ones are read from the database below.
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
                    yield HEARTBEAT  # the database is unavailable: the stream stays open, and continues when it is back
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
        """Poll for new decisions until cancelled, and put each one into every queue once."""
        listeners.read_to = await self._once_answered(self._clock)
        since = listeners.read_to - OVERLAP
        told: dict[uuid.UUID, datetime] = {}
        while True:
            portion = await self._once_answered(self._read_since, owner, since)
            for one in portion:
                if one.request_id not in told:
                    told[one.request_id] = one.decided_at
                    # Decisions found by the first read precede the streams' CONNECTED; a stream with a last_seen reads
                    # those itself.
                    for queue in listeners.queues if listeners.is_reading.is_set() else ():
                        queue.put_nowait(one)
                listeners.read_to = max(listeners.read_to, one.decided_at)
            if len(portion) >= BACKLOG:
                since = portion[-1].decided_at
                continue
            listeners.is_reading.set()
            # Where the clock was set back, as after a failover, decisions from now on are earlier than the last one read.
            listeners.read_to = min(listeners.read_to, await self._once_answered(self._clock))
            since = listeners.read_to - OVERLAP
            told = {key: moment for key, moment in told.items() if moment > since - OVERLAP}
            await asyncio.sleep(POLL_SECONDS)

    async def _once_answered(self, ask: Callable[..., T], *arguments: Any) -> T:
        """Call `ask` in a thread and return its result; retry until the database answers.

        Streams stay open meanwhile. Unexpected errors are retried too: one task reads for all streams of an owner, and
        must not end before them.
        """
        while True:
            try:
                answer = await self._in_thread(ask, *arguments)
            except SentinelError:
                pass
            except Exception as error:
                if self._failures.should_log(ask, cause := raised_at(error)):
                    log.error("approvals_not_read", cause=cause)
            else:
                self._failures.recovered(ask)
                return answer
            await asyncio.sleep(POLL_SECONDS)

    async def _in_thread(self, call: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)


def approvals_stream(identity: Identity, feed: ApprovalFeed) -> StreamHandler:
    """Return the handler of `GET approvals/stream`, which sends the stream until the client disconnects."""

    async def stream(environ: dict[str, Any], receive: Receive, send: Send) -> None:
        # A usable key with the scope that is over its rate is delayed and not refused, because the released clients do
        # not reconnect after a refusal. A malformed last_seen means "from now on".
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
    """Return which approvals a key may read: its own and its agent's, or all of the tenant with `approvals:read_all`."""
    if "approvals:read_all" in caller.scopes:
        return Whose(caller.tenant_id, None, None)
    return Whose(caller.tenant_id, caller.principal_id, caller.agent_id)


def parse_time(text: str) -> datetime | None:
    """Parse an RFC 3339 time with a zone; return None for anything else. A blank is read as "+", as query strings decode it."""
    try:
        moment = datetime.fromisoformat(text.strip().replace(" ", "+").replace("Z", "+00:00"))
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None


def decision_fields(decided: DecidedApproval) -> dict[str, Any]:
    """Return a decided approval in the form that both released clients read."""
    return {
        "request_id": str(decided.request_id), "status": decided.status, "approver": decided.approver,
        "reason": decided.reason, "agent_id": decided.agent_id, "action": decided.action,
        "decided_at": rfc3339(decided.decided_at),
    }  # fmt: skip


def decision(decided: DecidedApproval, *, catchup: bool) -> bytes:
    """Return a decision as a server-sent event; `catchup` marks decisions from before the stream began."""
    fields = decision_fields(decided)
    timestamp = fields.pop("decided_at")
    return data({"type": "APPROVAL_DECISION", **fields, "timestamp": timestamp, "catchup": catchup})


def data(fields: dict[str, Any]) -> bytes:
    """Return the bytes of one server-sent event."""
    return b"data: " + orjson.dumps(fields) + b"\n\n"
