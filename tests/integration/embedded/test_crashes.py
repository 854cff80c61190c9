"""The embedded PostgreSQL when somebody is killed. Each "never" has a mutant in which the guard is taken out: the same check must then fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from sentinel.platform import log_files
from sentinel.store.embedded import (
    Embedded,
    EmbeddedError,
    find_binaries,
    process,
    remove,
    running,
    supervised,
)
from sentinel.store.embedded.layout import Layout
from tests.support.embedded_servers import (
    IS_ROOT,
    Holder,
    alive,
    ask,
    eventually,
    is_answering,
    launch_without_watch,
    may_not_look,
    needs_linux,
)
from tests.support.served_programs import never


@pytest.fixture
def base(used_base: Path) -> Path:
    """A server has run in it: what a first start makes is not what is tried here."""
    return used_base


def _survivors(base: Path, create: str) -> int:
    """Rows still there after the server was killed in mid-flight and started again by the same object."""
    embedded = Embedded(base, own=True)
    try:
        url = embedded.start().admin_url
        ask(url, f"{create} kept AS SELECT generate_series(1, 500) AS n")
        with suppress(psycopg.OperationalError), psycopg.connect(url) as busy:
            busy.execute("INSERT INTO kept SELECT 0")
            embedded.kill()
            assert not embedded.is_alive()
            # Its backend may outlive the server for a moment, and would still take our commit.
            busy.close()
        row = ask(embedded.start().admin_url, "SELECT count(*) FROM kept")
        assert row is not None
        return int(str(row[0]))
    finally:
        embedded.stop()


def test_committed_rows_survive_kill_9_and_restart(base: Path) -> None:
    assert _survivors(base, "CREATE TABLE") == 500


def test_mutant_rows_that_are_not_logged_are_seen_to_be_lost(base: Path) -> None:
    assert _survivors(base, "CREATE UNLOGGED TABLE") != 500


def test_a_server_that_ends_by_itself_is_started_again_at_the_same_address(base: Path) -> None:
    with supervised(base) as server:
        ask(server.admin_url, "CREATE TABLE kept AS SELECT generate_series(1, 500) AS n")
        for _ in range(2):
            pid = process.live_server(server.data_dir)
            assert pid is not None
            os.kill(pid, signal.SIGQUIT)
            assert eventually(lambda: process.live_server(server.data_dir) not in (None, pid), 10)
            assert eventually(lambda: is_answering(server.admin_url), 10)
        assert ask(server.admin_url, "SELECT count(*) FROM kept") == (500,)
    assert process.live_server(server.data_dir) is None


def test_the_log_of_a_server_that_runs_for_long_stays_short(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "LOG_LIMIT_BYTES", 20_000)
    with supervised(base) as server, psycopg.connect(server.admin_url, autocommit=True) as connection:
        log = Layout.of(base).log
        for number in range(400):
            with pytest.raises(psycopg.errors.UndefinedTable):
                connection.execute(f"select from missing_{number}".encode())
        assert eventually(lambda: log.stat().st_size < 20_000, 10)
        assert "missing_" in log.with_suffix(".log.1").read_text()
        connection.execute(b"do $$ begin raise warning 'still written'; end $$")
        assert eventually(lambda: "still written" in log.read_text(), 10)
        assert log.read_bytes().count(b"\0") == 0, "it goes on at the beginning"


def test_mutant_that_nobody_watches_stays_gone(base: Path) -> None:
    with running(base, own=True) as server:
        os.kill(server.pid, signal.SIGQUIT)
        assert never(lambda: process.live_server(server.data_dir) not in (None, server.pid), within=3)


def _server_whose_starter_was_killed(base: Path, holders: list[Holder], extra: str) -> int:
    holders.append(Holder(base, "own", extra))
    pid, _, _ = holders[-1].server()
    holders[-1].kill()
    return pid


@needs_linux
def test_a_killed_starter_leaves_no_server(base: Path, holders: list[Holder]) -> None:
    pid = _server_whose_starter_was_killed(base, holders, "")
    assert eventually(lambda: not alive(pid), 1.5)
    with running(base, own=True) as running_server:
        assert running_server.started_by_us


@needs_linux
def test_mutant_without_the_parent_death_signal_leaves_one_that_the_next_start_ends(
    base: Path, holders: list[Holder]
) -> None:
    broken = f"process.TRAMPOLINE = Path({str(launch_without_watch(base.parent))!r})"
    left = _server_whose_starter_was_killed(base, holders, broken)
    assert never(lambda: not alive(left), within=1.5)
    with running(base, own=True) as running_server:
        assert running_server.pid != left and not alive(left)


@needs_linux
def test_remove_ends_a_server_that_was_left_there(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embedded = Embedded(base, own=True)
    left = embedded.start()
    forgotten: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(process, "stop_child", forgotten.append)
    embedded.stop()
    assert alive(left.pid)
    remove(base)
    assert forgotten[0].wait(0) == 0, "it was not a clean stop"
    assert not base.exists() and not left.socket_dir.exists()


@needs_linux
def test_a_server_started_from_a_thread_outlives_the_thread_but_not_the_stop(base: Path) -> None:
    embedded = Embedded(base, own=True)
    with ThreadPoolExecutor(1, thread_name_prefix="starter") as pool:
        started = pool.submit(embedded.start).result()
    assert not any(thread.name.startswith("starter") for thread in threading.enumerate())
    assert never(lambda: not embedded.is_alive(), within=0.3), "the server ended with the thread"
    embedded.stop()
    assert not alive(started.pid)


FORKED_WORKER = """
import sentinel.store.embedded.server as server_module
{extra}
with running(Path(sys.argv[1]), own=True) as server:
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        try:
            psycopg.connect(server.admin_url).close()
            print("answers", flush=True)
        except psycopg.OperationalError:
            print("gone", flush=True)
sys.exit(0)
"""


def _answers_after_forked_copy_left(base: Path, holders: list[Holder], extra: str) -> bool:
    """Does the server still answer when a forked worker has unwound through its parent's block?"""
    holders.append(Holder(base, "own", FORKED_WORKER.format(extra=extra)))
    return holders[-1].output_line() == "answers"


@needs_linux
def test_a_forked_worker_that_unwinds_never_stops_its_parents_server(base: Path, holders: list[Holder]) -> None:
    assert _answers_after_forked_copy_left(base, holders, "")


@needs_linux
def test_mutant_that_forgets_who_started_it_breaks_the_parents_server(base: Path, holders: list[Holder]) -> None:
    forget = "server_module.Embedded._is_starter = lambda self: True"
    assert not _answers_after_forked_copy_left(base, holders, forget)


@pytest.mark.parametrize("whose", ["a dead process", "a stranger"])
def test_a_stale_pid_file_does_not_stop_a_start(base: Path, whose: str) -> None:
    with running(base) as running_server:
        pid_file = running_server.data_dir / "postmaster.pid"
        text = pid_file.read_text()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    stale = os.getpid() if whose == "a stranger" else ended.pid
    pid_file.write_text(text.replace(str(running_server.pid), str(stale), 1))
    if IS_ROOT:
        owner = running_server.data_dir.stat()
        os.chown(pid_file, owner.st_uid, owner.st_gid)
    with running(base, own=True) as again:
        assert ask(again.admin_url, "SELECT 1") == (1,)


@needs_linux
def test_a_living_server_that_nobody_may_look_at_keeps_its_pid_file(
    base: Path, holders: list[Holder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finding: it was taken for a stranger, and the file that keeps a second server from its data was deleted under it."""
    monkeypatch.setattr(process, "_STRAY_SECONDS", 0.1)
    holders.append(Holder(base, "own"))
    pid, _, url = holders[0].server()
    (pid_file,) = base.glob("postgres/[0-9]*/postmaster.pid")
    may_not_look(monkeypatch)
    with pytest.raises(EmbeddedError, match=f"process {pid} runs PostgreSQL"):
        process.clear_leftovers(pid_file.parent)
    assert process.recorded_pid(pid_file.parent) == pid and is_answering(url)
    assert holders[0].finish() == 0


@needs_linux
def test_a_server_that_nobody_may_look_at_is_waited_for_when_its_starter_was_killed(
    base: Path, holders: list[Holder], monkeypatch: pytest.MonkeyPatch
) -> None:
    holders.append(Holder(base, "own"))
    left, _, _ = holders[0].server()
    may_not_look(monkeypatch)
    holders[0].kill()
    with running(base, own=True) as again:
        assert again.pid != left and not alive(left)
        assert ask(again.admin_url, "SELECT 1") == (1,)


@needs_linux
def test_a_stale_pid_file_names_a_stranger_that_nobody_may_look_at(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name, or its account, shows that it is none of ours: both may be read by everybody."""
    data_dir = base / "18"
    data_dir.mkdir(parents=True)
    (data_dir / "postmaster.pid").write_text(f"{os.getpid()}\n{data_dir}\n")
    may_not_look(monkeypatch)
    process.clear_leftovers(data_dir)
    assert not (data_dir / "postmaster.pid").exists()


def _stranger_lives_through_remove(base: Path) -> bool:
    data_dir = base / "postgres" / "18"
    data_dir.mkdir(parents=True)
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        (data_dir / "postmaster.pid").write_text(f"{stranger.pid}\n{data_dir}\n")
        with suppress(EmbeddedError):
            remove(base)
        return stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_process_that_is_not_ours_is_never_signalled(new_base: Path) -> None:
    assert _stranger_lives_through_remove(new_base)


def test_mutant_that_believes_the_pid_file_signals_a_stranger(new_base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "belongs_to", lambda pid, _: alive(pid))
    monkeypatch.setattr(process, "strays", lambda _: [])
    assert not _stranger_lives_through_remove(new_base)


def test_an_initdb_cut_short_is_done_again(new_base: Path) -> None:
    half_made = new_base / "postgres" / f"{find_binaries().major}.new-halfmade"
    half_made.mkdir(parents=True)
    (half_made / "PG_VERSION").write_text("18\n")
    for folder in (new_base, new_base / "postgres"):
        folder.chmod(0o711)
    with running(new_base) as running_server:
        assert ask(running_server.admin_url, "SELECT 1") == (1,)
    assert not half_made.exists()
