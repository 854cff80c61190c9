"""Each process of a server counts its connections in a place of its own, however many were started before it."""

from __future__ import annotations

import pytest

from sentinel.platform.serving.event_worker import SharedCounts


class Process(SharedCounts):
    """A worker as gunicorn's master makes it, before the fork."""

    def __init__(self) -> None:
        self.take_slot()
        self.nr_conns = 0


@pytest.fixture(autouse=True)
def counted() -> None:
    Process.share_counts()


def test_a_process_that_lives_long_shares_its_count_with_none_that_is_started_later() -> None:
    old = Process()
    old.nr_conns += 10
    for _ in range(3 * SharedCounts.SLOTS):
        later = Process()
        assert old.nr_conns == 10 and later.nr_conns == 0
        later.nr_conns += 1
        later.forget()
        assert old.nr_conns == 10
    assert not old.has_more_than_another(), "it is alone"


def test_more_processes_than_any_installation_has_count_apart() -> None:
    processes = [Process() for _ in range(65)]
    for number, process in enumerate(processes):
        process.nr_conns = number
    assert [process.nr_conns for process in processes] == list(range(65))
    assert [process.has_more_than_another() for process in processes] == [False, *[True] * 64]
    for process in processes[:5]:
        process.forget()
    assert not processes[5].has_more_than_another()
    assert sorted(Process()._slot for _ in range(5)) == [0, 1, 2, 3, 4], "what ended left its place"
