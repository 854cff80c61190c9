"""Several programs at one embedded PostgreSQL. Each "never" has a mutant in which the guard is taken out: the same check must then fail."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from sentinel.store.embedded import (
    Embedded,
    process,
    running,
    supervised,
)
from tests.support.busy import long_enough
from tests.support.embedded_servers import Holder, alive, ask, eventually, is_answering, may_not_look, needs_linux


@pytest.fixture
def base(used_base: Path) -> Path:
    """A server has run in it: what a first start makes is not what is tried here."""
    return used_base


def test_two_short_commands_at_once_share_one_server(base: Path, holders: list[Holder]) -> None:
    holders.extend(Holder(base, "shared") for _ in range(2))
    answers = [holder.server() for holder in holders]
    assert len({pid for pid, _, _ in answers}) == 1
    assert sorted(started for _, started, _ in answers) == [False, True]
    starter = holders[[started for _, started, _ in answers].index(True)]
    joiner = next(holder for holder in holders if holder is not starter)
    # The starter is done first and lets the other finish.
    assert starter.process.stdin is not None
    starter.process.stdin.close()
    starter.process.stdin = None
    time.sleep(0.3)
    joined_url = next(url for _, started, url in answers if not started)
    assert ask(joined_url, "SELECT 1") == (1,)
    assert joiner.finish() == 0
    assert starter.finish() == 0
    assert not alive(answers[0][0])


@needs_linux
def test_a_server_that_nobody_may_look_at_is_joined_at_its_address(
    base: Path, holders: list[Holder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finding: as root in a container without CAP_SYS_PTRACE no second program could join, and was told to end the one that works."""
    holders.append(Holder(base, "own"))
    pid, _, _ = holders[0].server()
    may_not_look(monkeypatch)
    joined = Embedded(base)
    try:
        server = joined.start()
        assert (server.pid, server.started_by_us, joined.is_alive()) == (pid, False, True)
        assert ask(server.admin_url, "SELECT 1") == (1,)
        assert holders[0].finish() == 0
        assert eventually(lambda: not joined.is_alive()), "one that is gone is seen to be gone"
    finally:
        joined.stop()


def _second_owner(base: Path, extra: str, holders: list[Holder]) -> str:
    holders.append(Holder(base, "own"))
    holders[0].server()
    holders.append(Holder(base, "own", extra))
    return holders[1].output_line()


def _assert_refused(answer: str, first: Holder) -> None:
    assert answer.startswith(f"refused: already running (process {first.process.pid})"), answer


def test_a_second_lasting_program_is_never_let_in(base: Path, holders: list[Holder]) -> None:
    _assert_refused(_second_owner(base, "", holders), holders[0])
    # What runs is not disturbed, and a short command may join it.
    with running(base) as joined:
        assert not joined.started_by_us
        assert ask(joined.admin_url, "SELECT 1") == (1,)
    assert holders[0].finish() == 0


def test_mutant_without_locks_lets_a_second_program_in(base: Path, holders: list[Holder]) -> None:
    unlocked = "import fcntl; fcntl.flock = lambda *_: None"
    answer = _second_owner(base, unlocked, holders)
    with pytest.raises(AssertionError):
        _assert_refused(answer, holders[0])


def test_a_lasting_program_waits_for_a_short_command_and_then_runs_its_own(base: Path, holders: list[Holder]) -> None:
    holders.append(Holder(base, "shared"))
    short_pid, _, _ = holders[0].server()
    holders.append(Holder(base, "own"))
    time.sleep(0.5)
    assert alive(short_pid), "the short command lost its server"
    assert holders[0].finish() == 0
    lasting_pid, started, url = holders[1].server()
    assert started and lasting_pid != short_pid
    assert ask(url, "SELECT 1") == (1,)
    assert holders[1].finish() == 0


def _taken_over(base: Path, holders: list[Holder]) -> bool:
    """Does a lasting program that came after a command that does not end have its database when that one has ended?"""
    holders.append(Holder(base, "shared"))
    loop = holders[0]
    loop_pid, _, _ = loop.server()
    with supervised(base) as joined:
        assert (joined.pid, joined.started_by_us) == (loop_pid, False)
        ask(joined.admin_url, "CREATE TABLE kept AS SELECT 1")
        # It lodges there: no second one may, and the command need not wait for it.
        holders.append(Holder(base, "own"))
        assert holders[1].output_line().startswith(f"refused: already running (process {os.getpid()})")
        began = time.monotonic()
        assert loop.finish() == 0
        assert time.monotonic() - began < long_enough(8), "the command waited for its lodger"
        found = eventually(lambda: is_answering(joined.admin_url), 5)
        assert found is (process.live_server(joined.data_dir) not in (None, loop_pid))
    assert process.live_server(joined.data_dir) is None
    return found


def test_a_lasting_program_joins_a_command_that_does_not_end_and_keeps_the_server_after_it(
    base: Path, holders: list[Holder]
) -> None:
    assert _taken_over(base, holders)


def test_mutant_that_does_not_look_loses_its_database_with_the_command(
    base: Path, holders: list[Holder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Embedded, "is_alive", lambda _: True)
    assert not _taken_over(base, holders)


def test_a_server_that_is_taken_over_stays_where_its_users_know_it(
    base: Path, holders: list[Holder], monkeypatch: pytest.MonkeyPatch
) -> None:
    holders.append(Holder(base, "shared"))
    holders[0].server()
    elsewhere = base.parent / "elsewhere"
    elsewhere.mkdir(mode=0o711)
    elsewhere.chmod(0o711)
    # The command was started with the common TMPDIR, we are not.
    monkeypatch.setenv("TMPDIR", str(elsewhere))
    with supervised(base) as joined:
        assert joined.socket_dir.parent != elsewhere
        holders[0].kill()
        assert eventually(lambda: is_answering(joined.admin_url), 10)
        with running(base) as other:
            assert other.socket_dir == joined.socket_dir
