"""Processes orders in sets: take, score, guard and start in one call, then fulfil, queue or hold.

Orders that come while a set is under way share the next one. What asks somebody outside about one order alone (look-ups, a
model, a shop) is done in a thread of its own; then the order goes on with the next set. The steps are in `steps.py`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field

from sentinel.core.errors import TryLater
from sentinel.store.group_commit import GroupCommit
from worker.orders.claims import ClaimedOrder
from worker.orders.order import ReviewStatus
from worker.orders.responses import OrderResponse
from worker.orders.steps import OrderRun, OrderSteps
from worker.orders.store import Delivery

_ROUNDS = 8
"""More steps than any way has; a loop that needs more is a defect."""
_MOST = 64
"""As many orders as the authority answers in one call."""
_SETS_AT_ONCE, _SET_SECONDS = 4, 0.02
"""So many sets may be under way beside each other; the next leaves so long after the last, so that orders gather."""


@dataclass(slots=True, kw_only=True)
class OrderProcessor(OrderSteps):
    """Which step comes when, and for whom together. Thread-safe."""

    _sets: GroupCommit[OrderRun] = field(init=False)

    def __post_init__(self) -> None:
        self._sets = GroupCommit(
            lambda rows, _: self._advance([row["run"] for row in rows]),
            most=_MOST, max_parallel=_SETS_AT_ONCE, slow_seconds=_SET_SECONDS,
        )  # fmt: skip

    async def deliver(self, delivery: Delivery, threads: Executor) -> OrderResponse:
        """A delivered order to its response, on an event loop; `threads` make its outside calls. Raises as `OrderRun.result`."""
        run = OrderRun(time.monotonic() + self.budget_seconds, delivery)
        await self._sets.recorded({"run": run})
        if run.outside is not None:
            await asyncio.get_running_loop().run_in_executor(threads, self._finish, run)
        return run.result()

    def run(self, work: ClaimedOrder) -> OrderResponse:
        """Bring a claimed order that was left behind as far as it goes. Raises as `OrderRun.result`."""
        run = OrderRun(time.monotonic() + self.budget_seconds, claimed=work)
        self._sets.record({"run": run})
        self._finish(run)
        return run.result()

    def _finish(self, run: OrderRun) -> None:
        """The outside calls of one order, and the sets between them."""
        while (call := run.outside) is not None:
            run.outside = None
            try:
                call(run)
            except Exception as error:
                run.fail(error)
            if run.goes_on:
                self._sets.record({"run": run})

    def _advance(self, runs: list[OrderRun]) -> list[OrderRun]:
        """Take a set of orders as far as they go without an outside call of one alone."""
        self._step(self.take, [run for run in runs if run.claimed is None])
        for _ in range(_ROUNDS):
            under_way = [(self._next(run), run) for run in runs if run.goes_on]
            for step in dict.fromkeys(step for step, _ in under_way):
                self._step(step, [run for its, run in under_way if its == step])
        self._step(_go_round, [run for run in runs if run.goes_on])
        return runs

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

    @staticmethod
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
