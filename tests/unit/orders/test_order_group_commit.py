"""While many orders are in hand their steps share commits; a single one waits for nobody."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import pytest

from sentinel.store.group_commit import GroupCommit, Row
from worker.orders import group_commit
from worker.orders.group_commit import BatchingCommit, InFlight

COUNT = 24


def batches_of(commit_of: type[GroupCommit[int]], in_flight: InFlight) -> list[int]:
    """The sizes of the commits of COUNT rows that come one just after the other."""
    sizes: list[int] = []

    def commit(rows: Sequence[Row]) -> list[int]:
        sizes.append(len(rows))
        return [row["n"] for row in rows]

    writer = commit_of(commit, in_flight) if commit_of is BatchingCommit else commit_of(commit)
    answers: list[int] = []

    def one(number: int) -> None:
        with in_flight:
            time.sleep(0.01 + number * 0.0005)
            answers.append(writer.record({"n": number}))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(COUNT)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == list(range(COUNT))
    return sizes


def test_many_in_hand_share_commits_that_would_be_single_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "GATHER_SECONDS", 0.05)
    assert len(batches_of(BatchingCommit, InFlight())) <= COUNT // 3


def test_a_single_one_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "GATHER_SECONDS", 30.0)
    in_flight = InFlight()
    writer: BatchingCommit[int] = BatchingCommit(lambda rows: [row["n"] for row in rows], in_flight)
    with in_flight:
        assert writer.record({"n": 7}) == 7
    assert in_flight.size == 0
