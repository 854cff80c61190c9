"""While many orders are in hand their steps share commits; a single one waits for nobody."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import pytest

from sentinel.store.group_commit import GroupCommit, Row
from worker.order_review import crowd as crowd_module
from worker.order_review.crowd import Crowd, Gathering

COUNT = 24


def batches_of(commit_of: type[GroupCommit[int]], crowd: Crowd) -> list[int]:
    """The sizes of the commits of COUNT rows that come one just after the other."""
    sizes: list[int] = []

    def commit(rows: Sequence[Row]) -> list[int]:
        sizes.append(len(rows))
        return [row["n"] for row in rows]

    writer = commit_of(commit, crowd) if commit_of is Gathering else commit_of(commit)
    answers: list[int] = []

    def one(number: int) -> None:
        with crowd:
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
    monkeypatch.setattr(crowd_module, "GATHER_SECONDS", 0.05)
    assert len(batches_of(Gathering, Crowd())) <= COUNT // 3


def test_a_single_one_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowd_module, "GATHER_SECONDS", 30.0)
    crowd = Crowd()
    writer: Gathering[int] = Gathering(lambda rows: [row["n"] for row in rows], crowd)
    with crowd:
        assert writer.record({"n": 7}) == 7
    assert crowd.size == 0
