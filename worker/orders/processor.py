"""Processes orders in sets: take, score, guard and start in one call, then fulfil, queue or hold.

A set goes through its steps together (`steps.py`), as far as they go. What asks somebody outside about one order alone
(look-ups, a model, a shop) is done for each by itself; then the order goes on with another set.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass

from sentinel.core.errors import TryLater
from worker.orders.order import ClaimedOrder, ReviewStatus
from worker.orders.responses import OrderResponse
from worker.orders.steps import OrderSteps
from worker.orders.store import DeliveredOrder
from worker.orders.taking import OrderRun

_ROUNDS = 8
"""More steps than any way has; a loop that needs more is a defect."""
MOST = 64
"""Orders of a set: as many as the authority answers in one call."""
SETS, SLOW_SETS, SLOW_SECONDS = 2, 8, 0.25
"""So many sets are under way beside each other; more only while they take long, because somebody is waited for."""
GATHER_SECONDS = 0.004
"""How long a set waits for others to join while one is under way: much less than the commits that it saves."""


@dataclass(slots=True, kw_only=True)
class OrderProcessor(OrderSteps):
    """Which step comes when, and for whom together. Thread-safe."""

    def run(self, work: ClaimedOrder) -> OrderResponse:
        """Bring a claimed order that was left behind as far as it goes. Raises as `OrderRun.result`."""
        run = OrderRun(self._deadline(), claimed=work)
        self.run_all([run])
        return run.result()

    def run_all(self, runs: list[OrderRun]) -> None:
        """Bring orders as far as they go, each to a response or an error; the outside calls run beside each other."""
        self.advance(runs)
        while outside := [run for run in runs if run.outside]:
            with ThreadPoolExecutor(len(outside), thread_name_prefix="order") as threads:
                list(threads.map(self.call_outside, outside))
            self.advance([run for run in outside if run.goes_on])

    def left_behind(self, works: Iterable[ClaimedOrder]) -> list[OrderRun]:
        """Claimed orders as what `run_all` takes."""
        return [OrderRun(self._deadline(), claimed=work) for work in works]

    def delivered(self, delivery: DeliveredOrder) -> OrderRun:
        """A delivery as what sets take."""
        return OrderRun(self._deadline(), delivery)

    def _deadline(self) -> float:
        return time.monotonic() + self.budget_seconds

    def call_outside(self, run: OrderRun) -> None:
        """The outside call of one order; nothing raises."""
        call, run.outside = run.outside, None
        try:
            if call is not None:
                call(run)
        except Exception as error:
            run.fail(error)

    def advance(self, runs: list[OrderRun]) -> None:
        """Take a set of orders as far as they go without an outside call of one alone; nothing raises."""
        _step(self.take, [run for run in runs if run.claimed is None])
        for _ in range(_ROUNDS):
            under_way = [(self._next(run), run) for run in runs if run.goes_on]
            if not under_way:
                return
            for step in dict.fromkeys(step for step, _ in under_way):
                _step(step, [run for its, run in under_way if its == step])
        _step(_go_round, [run for run in runs if run.goes_on])

    def _next(self, run: OrderRun) -> Callable[[list[OrderRun]], None]:
        """The step that an order needs next."""
        match run.work.status:
            case ReviewStatus.RECEIVED:
                return self.enrich if run.score is None else self.store_scores
            case ReviewStatus.SCORED | ReviewStatus.DECIDED | ReviewStatus.QUEUED:
                return self.ask
            case ReviewStatus.STARTED if not run.is_ours:
                return self.confirm_started
            case ReviewStatus.STARTED:
                return self.fulfil if run.effect is None else self.settle
            case _:
                return self.answer


def _step(step: Callable[[list[OrderRun]], None], runs: list[OrderRun]) -> None:
    """One step of a set; what it raises ends those of its orders that it was not done with."""
    if not runs:
        return
    try:
        step(runs)
    except Exception as error:
        for run in runs:
            if run.goes_on:
                run.fail(error)


def _go_round(_: list[OrderRun]) -> None:
    raise TryLater("the order goes round in circles")


Done = Callable[[OrderRun], None]
"""Called on the loop with an order that is over: `OrderRun.result` says how."""


class OrderSets:
    """Gathers the orders of one event loop into sets. Orders that come while sets are under way share the next one; one that
    comes alone leaves at once; `outside` makes the outside calls of single orders. Not thread-safe: for the loop's own thread."""

    def __init__(self, processor: OrderProcessor, outside: Executor) -> None:
        self._processor, self._outside = processor, outside
        self._threads = ThreadPoolExecutor(SLOW_SETS, thread_name_prefix="orders")
        self._waiting: list[tuple[OrderRun, Done]] = []
        self._under_way = 0
        self._left_at = 0.0
        self._leaving: asyncio.Handle | None = None
        self._leaves_at = 0.0

    def join(self, run: OrderRun, done: Done) -> None:
        """Have an order processed with those that come meanwhile."""
        self._waiting.append((run, done))
        self._gather(asyncio.get_running_loop())

    def _gather(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have what waits leave: alone at the end of the loop's turn, else a moment later with those who come meanwhile."""
        if not self._waiting or self._under_way >= SLOW_SETS:
            return
        leaves_at = loop.time() + (GATHER_SECONDS if self._under_way else 0.0)
        if self._under_way >= SETS:
            leaves_at = max(leaves_at, self._left_at + SLOW_SECONDS)
        if self._leaving is not None:
            if leaves_at >= self._leaves_at:
                return
            self._leaving.cancel()
        self._leaves_at, self._leaving = leaves_at, loop.call_at(leaves_at, self._leave, loop)

    def _leave(self, loop: asyncio.AbstractEventLoop) -> None:
        self._leaving = None
        batch, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
        self._under_way += 1
        self._left_at = loop.time()
        self._threads.submit(self._process, loop, batch)
        self._gather(loop)

    def _process(self, loop: asyncio.AbstractEventLoop, batch: list[tuple[OrderRun, Done]]) -> None:
        try:
            self._processor.advance([run for run, _ in batch])
        finally:
            loop.call_soon_threadsafe(self._over, loop, batch)

    def _over(self, loop: asyncio.AbstractEventLoop, batch: list[tuple[OrderRun, Done]]) -> None:
        """A set is over: its orders are answered, ask outside, or go on with the next set."""
        self._under_way -= 1
        for run, done in batch:
            self._go_on(loop, run, done)
        self._gather(loop)

    def _go_on(self, loop: asyncio.AbstractEventLoop, run: OrderRun, done: Done) -> None:
        if run.outside is not None:
            self._outside.submit(self._call_outside, loop, run, done)
        elif run.goes_on:
            self._waiting.append((run, done))
        else:
            done(run)

    def _call_outside(self, loop: asyncio.AbstractEventLoop, run: OrderRun, done: Done) -> None:
        self._processor.call_outside(run)
        loop.call_soon_threadsafe(self._came_back, loop, run, done)

    def _came_back(self, loop: asyncio.AbstractEventLoop, run: OrderRun, done: Done) -> None:
        self._go_on(loop, run, done)
        self._gather(loop)
