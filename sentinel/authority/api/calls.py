"""Serving of a decision route on the event loop: one request or a batch, through the same parts prepare, commit and render."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import orjson

from sentinel.authority import metrics
from sentinel.authority.api.context import Context
from sentinel.authority.api.schemas import MOST_IN_BATCH, BatchRequestSchema
from sentinel.authority.api.traced import TracedHandler, trace_of, traced_batch
from sentinel.authority.engine import Caller
from sentinel.core.errors import EngineUnavailable, SentinelError
from sentinel.platform.http.asgi import problem_answer
from sentinel.platform.http.bodies import BodyReader, load
from sentinel.platform.http.openapi import Documentation
from sentinel.platform.http.problems import problem_of
from sentinel.platform.http.wire import EdgeResponse, Handler, QuickHandler, Request, request_id_of
from sentinel.platform.tracing import tracing_of
from sentinel.store.batch_commit import BatchCommitter, PendingRow

AT_ONCE = 8
"""Rows of a batch that are prepared or rendered in one turn of the event loop, which takes about a millisecond.

Their metrics and log lines are written together.
"""

_batch = BatchRequestSchema()


@dataclass(frozen=True, slots=True)
class Call:
    """One route's work in three parts, so that many requests can share one commit.

    `reader` reads a request's body. `prepare` turns it, with its time of arrival and the caller's trace, into a row and
    what `render` needs; it raises refusals. `commit` records rows. `render` turns a row's recorded answer into the
    response; it raises refusals.
    """

    scope: str
    reader: BodyReader[Any]
    prepare: Callable[[Caller, Any, float, bytes | None], tuple[Any, Any]]
    commit: BatchCommitter[Any, Any]
    render: Callable[[Caller, Any, Any, str], EdgeResponse]


def handlers_of(context: Context, calls: Mapping[str, Call]) -> dict[str, Handler]:
    """Return the handlers of each call by path under a prefix: for one request, and for a batch (`…/batch`)."""
    found: dict[str, Handler] = {}
    tracing = tracing_of("sentinel")
    for path, call in calls.items():
        single, many, name = _Single(context, call), partial(_many, context, call), path.rpartition("/")[2]
        found[path] = TracedHandler(single, name, tracing) if tracing else single
        found[f"{path}/batch"] = traced_batch(many, name, tracing) if tracing else many
    return found


_Arrived = tuple[Caller, Request, Callable[[EdgeResponse], None], float]
"""A request with its caller, the function that takes its answer, and its time of arrival."""


class _Single(QuickHandler):
    """A route for one request: a callback and no task waits for the row's commit."""

    def __init__(self, context: Context, call: Call) -> None:
        self._context, self._call = context, call
        self._asking: set[asyncio.Task[None]] = set()
        self._arrived: WeakKeyDictionary[asyncio.AbstractEventLoop, list[_Arrived]] = WeakKeyDictionary()

    def begin(self, request: Request, reply: Callable[[EdgeResponse], None]) -> None:
        """Queue the request to be prepared together with the others of this turn of the loop, for the next commit.

        A key that is not cached is looked up first.
        """
        began, loop = time.perf_counter(), asyncio.get_running_loop()
        caller = self._context.identity.remembered_caller(self._call.scope, request.environ)
        if caller is not None:
            arrived = self._arrived.get(loop)
            if arrived is None:
                arrived = self._arrived[loop] = []
                loop.call_soon(self._commit_arrived, loop)
            arrived.append((caller, request, reply, began))
            return
        task = loop.create_task(self._look_up_and_commit(request, reply, began, time.monotonic()))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    def _commit_arrived(self, loop: asyncio.AbstractEventLoop) -> None:
        """Prepare all requests that the loop has just read, one after the other, which makes better use of the CPU caches."""
        for caller, request, reply, began in self._arrived.pop(loop):
            try:
                self._commit(caller, request, reply, began)
            except Exception as error:
                reply(problem_answer(error, request.environ))

    async def _look_up_and_commit(
        self, request: Request, reply: Callable[[EdgeResponse], None], began: float, arrived: float
    ) -> None:
        try:
            caller = await self._context.identity.caller_async(self._call.scope, request.environ)
            self._commit(caller, request, reply, began, arrived)
        except Exception as error:
            reply(problem_answer(error, request.environ))

    def _commit(
        self, caller: Caller, request: Request, reply: Callable[[EdgeResponse], None], began: float,
        arrived: float | None = None,
    ) -> None:  # fmt: skip
        row, prepared = self._call.prepare(
            caller, self._call.reader.read(request.body()), began, trace_of(request.environ)
        )

        def committed(pending: PendingRow[Any, Any]) -> None:
            try:
                reply(self._call.render(caller, prepared, pending.result(), request_id_of(request.environ)))
            except Exception as error:
                count_unavailable(error)
                self._context.identity.charge_refusal(request.environ, error)
                reply(problem_answer(error, request.environ))

        self._call.commit.add(row, committed, arrived)


def count_unavailable(error: Exception | None) -> None:
    """Count a row that could not be committed because the database is unavailable."""
    if isinstance(error, EngineUnavailable):
        metrics.UNAVAILABLE.inc()


async def _many(context: Context, call: Call, request: Request) -> EdgeResponse:
    """Answer a batch: each request gets the answer that it would get alone, and all rows are recorded in one commit."""
    began = time.perf_counter()
    caller = await context.identity.caller_async(call.scope, request.environ)
    bodies = (
        call.reader.quick_batch(request.body()) or load(_batch, call.reader.read_object(request.body()))["requests"]
    )
    context.identity.charge_batch(request.environ, len(bodies))
    request_id, trace = request_id_of(request.environ), trace_of(request.environ)
    answers: list[EdgeResponse | None] = [None] * len(bodies)
    ready: list[tuple[int, Any, Any]] = []
    for place, body in enumerate(bodies):
        try:
            asked = call.reader.of_object(body) if isinstance(body, dict) else body
            ready.append((place, *call.prepare(caller, asked, began, trace)))
        except SentinelError as error:
            answers[place] = EdgeResponse(*problem_of(error, request_id))
        await _let_others(place)
    recorded = await call.commit.recorded_all([row for _, row, _ in ready])
    for (place, _, prepared), one in zip(ready, recorded, strict=True):
        try:
            if isinstance(one, Exception):
                raise one
            answers[place] = call.render(caller, prepared, one, request_id)
        except SentinelError as error:
            context.identity.charge_refusal(request.environ, error)
            answers[place] = EdgeResponse(*problem_of(error, request_id))
        await _let_others(place)
    return EdgeResponse(orjson.dumps({"answers": [_in_batch(answer) for answer in answers if answer is not None]}))


async def _let_others(place: int) -> None:
    """Yield to other requests after every `AT_ONCE` rows, because a batch may take ten milliseconds of the event loop."""
    if place % AT_ONCE == AT_ONCE - 1:
        await asyncio.sleep(0)


def _in_batch(answer: EdgeResponse) -> dict[str, Any]:
    replayed = {"replayed": True} if "Idempotent-Replayed" in answer.headers else {}
    return {"status": answer.status, **replayed, "body": orjson.Fragment(answer.body)}


def batch_documentation(single: Documentation, *, problems: Sequence[int]) -> Documentation:
    """Return the documentation of the batch form of a route with this documentation; `problems` are those of the batch as a whole."""
    _, answered = single.responses[200]
    answer = {
        "type": "object",
        "required": ["status", "body"],
        "properties": {
            "status": {"type": "integer", "description": "The status that the request would get alone."},
            "replayed": {"const": True, "description": "Stands for the header `Idempotent-Replayed`; left out without it."},
            "body": {"oneOf": [answered, {"$ref": "#/components/schemas/Problem"}]},
        },
    }  # fmt: skip
    requests = {"type": "array", "minItems": 1, "maxItems": MOST_IN_BATCH, "items": single.request}
    return Documentation(
        f"{single.summary}: up to {MOST_IN_BATCH} at once",
        description="Each request gets the answer that it would get alone, as `{status, body}`, in the same order.",
        request={
            "type": "object", "required": ["requests"], "properties": {"requests": requests}, "additionalProperties": False,
        },
        responses={
            200: (
                "The answers; the body of a refused request's is a problem document.",
                {
                    "type": "object",
                    "required": ["answers"],
                    "properties": {"answers": {"type": "array", "items": answer}},
                },
            )
        },
        problems=problems,
        security=single.security,
    )  # fmt: skip
