"""The group commit for rows that come from an event loop: the same promises, and no thread held while they wait."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from typing import Any

import pytest

from sentinel.core.errors import EngineUnavailable
from sentinel.store import group_commit as writer
from sentinel.store.database import DatabaseUnreachable
from sentinel.store.group_commit import GroupCommit
from tests.support.harness import on_a_loop, scaled, seeded
from tests.unit.test_group_commit import Store


def all_at_once(group: GroupCommit[int], number: int) -> list[Any]:
    """Records `number` rows at once from one loop; answers or what was raised."""

    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*(group.recorded({"n": n}) for n in range(number)), return_exceptions=True)

    return on_a_loop(all_of_them())


def test_every_row_gets_its_own_answer_and_is_kept_once() -> None:
    dice = seeded(12, 200)
    for _ in range(scaled(5)):
        commit = Store(seconds=0.002, dice=dice)
        assert all_at_once(GroupCommit(commit), 100) == list(range(100))
        assert commit.kept == Counter(range(100)) and len(commit.batches) < 20


def test_one_bad_row_spoils_nobody_elses() -> None:
    commit = Store(seconds=0.001, poisoned=[3, 17])
    answers = all_at_once(GroupCommit(commit), 40)
    assert [n for n, answer in enumerate(answers) if isinstance(answer, EngineUnavailable)] == [3, 17]
    assert commit.kept == Counter(set(range(40)) - {3, 17})


def test_an_unreachable_database_is_told_to_everybody_and_the_next_row_is_tried_anew() -> None:
    down = [True]

    def commit(rows: Any, wait_seconds: float) -> list[int]:
        if down[0]:
            raise DatabaseUnreachable("away")
        return [row["n"] for row in rows]

    group = GroupCommit(commit)
    assert all(isinstance(answer, DatabaseUnreachable) for answer in all_at_once(group, 20))
    down[0] = False
    assert all_at_once(group, 3) == [0, 1, 2]


def test_rows_of_threads_and_of_a_loop_share_one_line() -> None:
    commit = Store(seconds=0.002)
    group = GroupCommit(commit)
    found: list[int] = []
    threads = [threading.Thread(target=lambda n=n: found.append(group.record({"n": n}))) for n in range(100, 130)]
    for thread in threads:
        thread.start()
    assert all_at_once(group, 100) == list(range(100))
    for thread in threads:
        thread.join(10)
    assert sorted(found) == list(range(100, 130))
    assert commit.kept == Counter(range(130))


def test_a_client_that_goes_away_disturbs_nobody() -> None:
    commit = Store(seconds=0.02)
    group = GroupCommit(commit)

    async def some_leave() -> list[Any]:
        tasks = [asyncio.ensure_future(group.recorded({"n": n})) for n in range(20)]
        await asyncio.sleep(0.005)
        for task in tasks[::2]:
            task.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    answers = on_a_loop(some_leave())
    assert answers[1::2] == list(range(1, 20, 2))
    assert all(isinstance(one, asyncio.CancelledError) for one in answers[::2])
    assert commit.kept == Counter(range(20)), "what was in the line is committed; its retry gets the recorded answer"


def test_a_row_that_waits_too_long_is_given_up_and_never_committed_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "WAIT_SECONDS", 0.1)
    commit = Store(seconds=0.4)
    group = GroupCommit(commit, max_parallel=1)

    async def two() -> list[Any]:
        first = asyncio.ensure_future(group.recorded({"n": 0}))
        await asyncio.sleep(0.05)
        second = asyncio.ensure_future(group.recorded({"n": 1}))
        return await asyncio.gather(first, second, return_exceptions=True)

    answers = on_a_loop(two())
    assert all(isinstance(one, EngineUnavailable) for one in answers)
    time.sleep(0.5)
    assert commit.kept == Counter([0]), "the one in hand is not taken back; the one in the line is"


def test_the_loop_goes_on_while_a_commit_is_slow() -> None:
    group = GroupCommit(Store(seconds=0.2))

    async def ticks() -> int:
        waiting = asyncio.ensure_future(group.recorded({"n": 0}))
        count = 0
        while not waiting.done():
            await asyncio.sleep(0.005)
            count += 1
        return count

    assert on_a_loop(ticks()) >= 10
