"""A thread pool that makes one call for many items: results in order; an item that fails does not stop the others."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class WorkerPool:
    """`size` threads, shared by all batches."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="worker")

    def map(self, call: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """`[call(item) for item in items]`, several at a time. The first exception is raised after all have ended."""
        if len(items) < 2:
            return [call(item) for item in items]
        results: list[Result | None] = [None] * len(items)
        # One task per thread that fetches items itself: a future per item costs more than it brings.
        open_items = deque(enumerate(items))

        def fetch() -> None:
            while True:
                try:
                    index, item = open_items.popleft()
                except IndexError:
                    return
                results[index] = call(item)

        tasks = [self._threads.submit(fetch) for _ in range(min(self._size, len(items)))]
        wait(tasks)
        for task in tasks:
            task.result()
        return results  # type: ignore[return-value]

    def map_chunks(
        self,
        call: Callable[[Sequence[Item]], Sequence[Result]],
        items: Sequence[Item],
        size: int,
        alone: Callable[[Item], bool] = lambda item: False,
    ) -> list[Result]:
        """`call` for the items in chunks of at most `size`, several at a time; all results in order.

        Items that `alone` names get a call of their own.
        """
        chunks: list[list[Item]] = []
        is_open = False
        for item in items:
            if alone(item) or not is_open or len(chunks[-1]) == size:
                chunks.append([])
            chunks[-1].append(item)
            is_open = not alone(item)
        return [result for results in self.map(call, chunks) for result in results]

    def close(self) -> None:
        """No more work; threads end when theirs is done."""
        self._threads.shutdown(wait=False, cancel_futures=True)
