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
from typing import Any

import orjson

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

Whose = tuple[uuid.UUID, uuid.UUID | None]
"""(tenant, principal); no principal: everybody's approvals of the tenant."""
ReadSince = Callable[[uuid.UUID, datetime, uuid.UUID | None], list[DecidedApproval]]


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
    task: asyncio.Task[None] | None = None


class ApprovalFeed:
    """`read_since(tenant, moment, principal)` gives decided approvals oldest first; it is called in a thread of its own."""

    def __init__(
        self, read_since: ReadSince, places: StreamSlots, stopping: Callable[[], bool] = lambda: False
    ) -> None:
        self._read_since = read_since
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
    ) -> None:
        """Send what was decided behind `last_seen` (None: from now on), then each decision, until the client goes.

        `is_welcome` says whether the key is still good; it is asked before whatever is sent.
        """
        gone = asyncio.ensure_future(disconnected(receive))
        try:
            async for payload in self._events(whose(caller), last_seen, gone):
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

        `is_open` looks whether it still is; it is asked once, when nothing that is decided from then on can be missed.
        """
        until = asyncio.get_running_loop().time() + seconds
        with self.places.taken(caller), self._listening((caller.tenant_id, caller.principal_id)) as (queue, is_reading):
            await is_reading.wait()
            if not await is_open():
                return
            while (left := until - asyncio.get_running_loop().time()) > 0 and not self._stopping():
                with contextlib.suppress(TimeoutError):
                    if (await asyncio.wait_for(queue.get(), min(left, POLL_SECONDS))).request_id == approval_id:
                        return

    async def _events(
        self, owner: Whose, last_seen: datetime | None, gone: asyncio.Future[None]
    ) -> AsyncIterator[bytes]:
        told: set[uuid.UUID] = set()
        with self._listening(owner) as (queue, is_reading):
            # What is decided from here on comes by the queue; what was decided before is looked up.
            await is_reading.wait()
            yield data({"type": "CONNECTED"})
            for one in await self._read(owner, last_seen) if last_seen else []:
                told.add(one.request_id)
                yield decision(one, catchup=True)
            while not (self._stopping() or gone.done()):
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
    def _listening(self, owner: Whose) -> Iterator[tuple[asyncio.Queue[DecidedApproval], asyncio.Event]]:
        listeners = self._listeners.setdefault(owner, _Listeners())
        queue: asyncio.Queue[DecidedApproval] = asyncio.Queue()
        listeners.queues.add(queue)
        if listeners.task is None:
            listeners.task = asyncio.ensure_future(self._follow(owner, listeners))
        try:
            yield queue, listeners.is_reading
        finally:
            listeners.queues.discard(queue)
            if not listeners.queues:
                listeners.task.cancel()
                del self._listeners[owner]

    async def _follow(self, owner: Whose, listeners: _Listeners) -> None:
        """Read what is decided from now on, and hand each decision to every queue once."""
        cursor = datetime.now(UTC)
        told = {one.request_id: one.decided_at for one in await self._read(owner, cursor - OVERLAP)}
        listeners.is_reading.set()
        while True:
            await asyncio.sleep(POLL_SECONDS)
            for one in await self._read(owner, cursor - OVERLAP):
                if one.request_id not in told:
                    told[one.request_id] = one.decided_at
                    for queue in listeners.queues:
                        queue.put_nowait(one)
                cursor = max(cursor, one.decided_at)
            told = {key: moment for key, moment in told.items() if moment > cursor - 2 * OVERLAP}

    async def _read(self, owner: Whose, since: datetime) -> list[DecidedApproval]:
        tenant, principal = owner
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, self._read_since, tenant, since, principal)
        except SentinelError:
            return []  # the database is away: streams stay open, and catch up when it is back


def approvals_stream(identity: Identity, feed: ApprovalFeed) -> StreamHandler:
    """The handler of `GET approvals/stream`: a request's environment → what the stream sends, until the client goes."""

    async def stream(environ: dict[str, Any], receive: Receive, send: Send) -> None:
        caller = await identity.caller_async("approvals:read", environ)
        # A last_seen that cannot be read means "from now on": a valid key is never answered 4xx here.
        seen = parse_time(query_field(environ, "last_seen"))
        with feed.places.taken(caller):
            headers = [*asgi_headers(EVENT_STREAM), (b"x-request-id", request_id_of(environ).encode("latin-1"))]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await feed.answer(
                caller, seen, receive, send, is_welcome=lambda: identity.is_usable(environ, "approvals:read")
            )

    return stream


def whose(caller: Caller) -> Whose:
    """Whose approvals a key may read: its own, or everybody's with the scope for it."""
    return caller.tenant_id, None if "approvals:read_all" in caller.scopes else caller.principal_id


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
