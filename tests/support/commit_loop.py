"""One event loop in a thread of its own, on which tests without one have rows committed: threads' rows share commits there as requests' do."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from sentinel.store.batch_commit import BatchCommitter

T = TypeVar("T")
Row = TypeVar("Row")
Result = TypeVar("Result")


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True, name="commit-loop").start()
    return loop


def on_the_loop(waiting: Coroutine[Any, Any, T]) -> T:
    """What a coroutine gives, run on the common loop; raises what it raises."""
    return asyncio.run_coroutine_threadsafe(waiting, _loop()).result(60)


def record(committer: BatchCommitter[Row, Result], row: Row) -> Result:
    """The committed answer to one row."""
    return on_the_loop(committer.recorded(row))


def record_all(committer: BatchCommitter[Row, Result], rows: Sequence[Row]) -> list[Result | Exception]:
    """The answers to a batch of its own."""
    return on_the_loop(committer.recorded_all(rows))
