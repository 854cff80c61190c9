"""The group commit: every row gets its own answer once, in batches, and nobody waits for ever."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from sentinel.core.errors import EngineUnavailable
from sentinel.store import group_commit as writer
from sentinel.store.database import DatabaseUnreachable
from sentinel.store.group_commit import GroupCommit
from tests.support.harness import at_once, scaled, seeded


class Store:
    """A commit that answers with the row's number, notes each batch, and fails where it is told to."""

    def __init__(
        self, *, seconds: float = 0.0, poisoned: Sequence[int] = (), dice: random.Random | None = None
    ) -> None:
        self.seconds, self.poisoned, self.dice = seconds, set(poisoned), dice
        self.batches: list[list[int]] = []
        self.kept: Counter[int] = Counter()
        self.running = self.most_running = 0
        self.lock = threading.Lock()

    def __call__(self, rows: Sequence[Any], wait_seconds: float = 2.0) -> list[int]:
        numbers = [row["n"] for row in rows]
        with self.lock:
            self.batches.append(numbers)
            self.running += 1
            self.most_running = max(self.running, self.most_running)
        try:
            time.sleep(self.seconds * (self.dice.random() if self.dice else 1))
            if self.poisoned & set(numbers):
                raise EngineUnavailable(f"row {min(self.poisoned & set(numbers))}")
            with self.lock:
                self.kept.update(numbers)
            return numbers
        finally:
            with self.lock:
                self.running -= 1


def lost_or_swapped(commit: Store, group: GroupCommit[int], number: int, *, seconds: float = 20) -> list[str]:
    """Records `number` rows from as many threads; what is wrong with the answers. The checker of this file."""
    answers = at_once([lambda n=n: group.record({"n": n}) for n in range(number)], seconds=seconds)
    found = []
    for n, answer in enumerate(answers):
        if n in commit.poisoned:
            if not isinstance(answer, EngineUnavailable) or answer.detail != f"row {n}":
                found.append(f"row {n}: {answer!r} instead of its own error")
        elif answer != n:
            found.append(f"row {n}: {answer!r}")
    wanted = set(range(number)) - commit.poisoned
    if commit.kept != Counter(wanted):
        found.append("rows were kept twice or not at all")
    return found


def test_every_row_gets_its_own_answer_and_is_kept_once() -> None:
    dice = seeded(11, 200)
    for _ in range(scaled(5)):
        commit = Store(seconds=0.002, dice=dice)
        assert lost_or_swapped(commit, GroupCommit(commit), 40) == []


def test_one_bad_row_spoils_nobody_elses() -> None:
    commit = Store(seconds=0.001, poisoned=[3, 17, 18])
    assert lost_or_swapped(commit, GroupCommit(commit), 40) == []


def test_rows_that_arrive_during_a_commit_share_the_next_one() -> None:
    commit = Store(seconds=0.02)
    assert lost_or_swapped(commit, GroupCommit(commit, slow_seconds=10), 40) == []
    assert len(commit.batches) < 10
    assert commit.most_running == 1


def test_a_batch_has_at_most_the_size_it_was_given() -> None:
    commit = Store(seconds=0.01)
    assert lost_or_swapped(commit, GroupCommit(commit, most=4), 40) == []
    assert max(map(len, commit.batches)) <= 4


def test_a_commit_that_waits_for_a_lock_does_not_hold_up_the_others() -> None:
    release = threading.Event()
    seen = threading.Event()

    def commit(rows: Sequence[Any], wait_seconds: float) -> list[int]:
        if any(row["n"] == 0 for row in rows):
            seen.set()
            release.wait(10)
        return [row["n"] for row in rows]

    group = GroupCommit(commit, slow_seconds=0.02)
    stuck = threading.Thread(target=lambda: group.record({"n": 0}), daemon=True)
    stuck.start()
    seen.wait(5)
    time.sleep(0.05)
    try:
        assert at_once([lambda: group.record({"n": 1})], seconds=5) == [1]
    finally:
        release.set()
        stuck.join(5)


def test_alone_a_row_is_a_batch_of_one_and_waits_for_nobody() -> None:
    commit = Store()
    group = GroupCommit(commit)
    assert [group.record({"n": n}) for n in range(5)] == [0, 1, 2, 3, 4]
    assert commit.batches == [[0], [1], [2], [3], [4]]


def test_a_row_that_waited_too_long_is_refused_and_the_lead_is_not_lost_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writer, "WAIT_SECONDS", 0.1)
    gate = threading.Event()
    first = threading.Event()

    def commit(rows: Sequence[Any], wait_seconds: float) -> list[int]:
        if not first.is_set():
            first.set()
            gate.wait(10)
        return [row["n"] for row in rows]

    group = GroupCommit(commit, slow_seconds=60, most=2)
    leader = threading.Thread(target=lambda: group.record({"n": 0}), daemon=True)
    leader.start()
    first.wait(5)
    waited = at_once([lambda n=n: group.record({"n": n}) for n in (1, 2, 3)], seconds=5)
    assert all(isinstance(answer, EngineUnavailable) for answer in waited)
    gate.set()
    leader.join(5)
    monkeypatch.setattr(writer, "WAIT_SECONDS", 5.0)
    assert at_once([lambda n=n: group.record({"n": n}) for n in (4, 5, 6)], seconds=8) == [4, 5, 6]


def test_a_row_given_up_on_is_not_committed_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who was told "no" may ask again; a commit long after would surprise both."""
    monkeypatch.setattr(writer, "WAIT_SECONDS", 0.1)
    gate, first, kept = threading.Event(), threading.Event(), []

    def commit(rows: Sequence[Any], wait_seconds: float) -> list[int]:
        if not first.is_set():
            first.set()
            gate.wait(10)
        kept.extend(row["n"] for row in rows)
        return [row["n"] for row in rows]

    group = GroupCommit(commit, slow_seconds=60)
    leader = threading.Thread(target=lambda: group.record({"n": 0}), daemon=True)
    leader.start()
    first.wait(5)
    assert isinstance(at_once([lambda: group.record({"n": 1})], seconds=5)[0], EngineUnavailable)
    gate.set()
    leader.join(5)
    assert group.record({"n": 2}) == 2
    assert kept == [0, 2]


class _LosesTheLead(GroupCommit[int]):
    """A twin that does not wake the next in line."""

    def _lead(self, own: Any) -> None:
        with self._mutex:
            followers = [self._waiting.popleft() for _ in range(min(self._most - 1, len(self._waiting)))]
        self._settle([own, *followers])
        for ticket in followers:
            ticket.signal.release()
        with self._mutex:
            self._leaders -= 0 if self._waiting else 1


class _ForgetsWhoAsked(GroupCommit[int]):
    """A twin that gives everybody the first answer of the batch."""

    def _settle(self, batch: Any) -> None:
        super()._settle(batch)
        for ticket in batch[1:]:
            ticket.answer = batch[0].answer


class _KeepsAfterAnError(GroupCommit[int]):
    """A twin that gives the whole batch the error of one row."""

    def _settle(self, batch: Any) -> None:
        try:
            answers = self._commit([ticket.row for ticket in batch], 2.0)
        except EngineUnavailable as error:
            for ticket in batch:
                ticket.error = error
            return
        for ticket, answer in zip(batch, answers, strict=True):
            ticket.answer = answer


@pytest.mark.parametrize("mutant", [_LosesTheLead, _ForgetsWhoAsked, _KeepsAfterAnError])
def test_mutants_that_lose_the_lead_swap_answers_or_spread_an_error_are_caught(
    mutant: type[GroupCommit[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "WAIT_SECONDS", 0.5)
    commit = Store(seconds=0.02, poisoned=[7, 14, 21])
    assert lost_or_swapped(commit, mutant(commit, most=4, slow_seconds=10), 30, seconds=5) != []


def test_a_database_that_cannot_be_reached_is_tried_once_for_the_whole_batch() -> None:
    gate, began, calls = threading.Event(), threading.Event(), []

    def commit(rows: Sequence[Any], wait_seconds: float) -> list[int]:
        calls.append(len(rows))
        began.set()
        gate.wait(5)
        raise DatabaseUnreachable("gone")

    group = GroupCommit(commit, slow_seconds=60)
    threading.Timer(0.3, gate.set).start()
    answers = at_once([lambda n=n: group.record({"n": n}) for n in range(10)], seconds=10)
    assert all(isinstance(answer, DatabaseUnreachable) for answer in answers)
    assert calls == [1, 9]
