"""Orders gather into sets: alone at once, together while sets are under way, and past sets that take long."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import uvloop

from tests.support.harness import at_once
from worker.orders import processor
from worker.orders.processor import OrderSets
from worker.orders.responses import OrderResponse
from worker.orders.taking import OrderRun


class Held:
    """A processor whose sets stay under way until they are let go."""

    def __init__(self) -> None:
        self.sets: list[tuple[int, threading.Event]] = []

    def advance(self, runs: list[OrderRun]) -> None:
        """Answer all, once let go."""
        held = threading.Event()
        self.sets.append((len(runs), held))
        assert held.wait(60)
        for run in runs:
            run.response = OrderResponse(200, b"{}", True)

    @property
    def sizes(self) -> list[int]:
        """How many orders each set that left had."""
        return [size for size, _ in self.sets]


async def processed(sets: OrderSets, run: OrderRun) -> OrderResponse:
    """The response to an order that joins."""
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    sets.join(run, lambda _: over.set_result(None))
    await over
    return run.result()


async def until(holds: Callable[[], bool]) -> None:
    """Let the loop turn until something holds."""
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.001)


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    """Runs a test's coroutine on an event loop of each kind: a server may have either."""

    def running(one: Coroutine[Any, Any, None]) -> None:
        def whole() -> None:
            with asyncio.Runner(loop_factory=request.param) as runner:
                runner.run(one)

        (failed,) = at_once([whole])  # in a thread: a browser that is open in this one has a loop running
        if failed is not None:
            raise failed

    return running


Run = Callable[[Coroutine[Any, Any, None]], None]


def test_orders_that_come_while_sets_are_under_way_leave_together(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setattr(processor, "SLOW_SECONDS", 3600.0)

    async def come() -> None:
        held = Held()
        with ThreadPoolExecutor(1) as outside:
            sets = OrderSets(held, outside)  # type: ignore[arg-type]
            tasks: list[asyncio.Task[OrderResponse]] = []
            for count, wanted in ((1, [1]), (10, [1, 10]), (5, [1, 10])):
                tasks += [asyncio.create_task(processed(sets, OrderRun(0.0))) for _ in range(count)]
                await until(lambda wanted=wanted: held.sizes == wanted)  # type: ignore[misc]
            held.sets[0][1].set()
            await until(lambda: held.sizes == [1, 10, 5])
            for _, one in held.sets:
                one.set()
            assert {response.status for response in await asyncio.gather(*tasks)} == {200}

    run(come())


def test_sets_that_take_long_do_not_hold_up_those_who_come(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setattr(processor, "SLOW_SECONDS", 0.02)

    async def come() -> None:
        held = Held()
        with ThreadPoolExecutor(1) as outside:
            sets = OrderSets(held, outside)  # type: ignore[arg-type]
            tasks = []
            for number in range(processor.SLOW_SETS):
                tasks.append(asyncio.create_task(processed(sets, OrderRun(0.0))))
                await until(lambda number=number: len(held.sets) == number + 1)  # type: ignore[misc]
            tasks.append(asyncio.create_task(processed(sets, OrderRun(0.0))))
            await asyncio.sleep(0.1)
            assert len(held.sets) == processor.SLOW_SETS, "no more than that many at once"
            for _, one in held.sets:
                one.set()
            await until(lambda: len(held.sets) == processor.SLOW_SETS + 1)
            held.sets[-1][1].set()
            await asyncio.gather(*tasks)

    run(come())
