"""The contract of the embedded PostgreSQL, on real servers in private folders.

Each "never" has a twin in which the guard is taken out: the same check must then fail.
"""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

import sentinel
from sentinel.store.embedded import (
    Embedded,
    EmbeddedError,
    RunningServer,
    cluster,
    failures,
    find_binaries,
    launch,
    layout,
    locks,
    options,
    process,
    remove,
    running,
)
from sentinel.store.embedded.account import server_account
from sentinel.store.embedded.binaries import inspect
from sentinel.store.embedded.engine import usable_binaries

IS_ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not IS_ROOT, reason="only root can change the account, mount and hand over folders")
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="uses /proc and the parent-death signal of Linux")
PACKAGE_ROOT = Path(sentinel.__file__).resolve().parents[1]
INSTALLED_15 = Path("/usr/lib/postgresql/15/bin")

# Holds a server until a line arrives, then leaves the block. Extra statements go in by exec.
HOLD = """
import os, sys
from pathlib import Path
import psycopg
from sentinel.store.embedded import EmbeddedError, launch, running
exec(sys.argv[3])
try:
    with running(Path(sys.argv[1]), own=sys.argv[2] == "own") as server:
        print(server.pid, server.started_by_us, server.admin_url, flush=True)
        sys.stdin.readline()
except EmbeddedError as error:
    print("refused:", error.detail, flush=True)
    sys.exit(3)
"""


class Holder:
    """Another process that runs or shares the server of a folder."""

    def __init__(self, base: Path, kind: str, extra: str = "", package_root: Path = PACKAGE_ROOT) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(base), kind, extra],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(package_root), os.environ.get("PYTHONPATH", "")])},
        )

    def said(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def server(self) -> tuple[int, bool, str]:
        pid, started, url = self.said().split()
        return int(pid), started == "True", url

    def finish(self) -> int:
        self.process.communicate("\n", timeout=20)
        return self.process.returncode

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def base() -> Iterator[Path]:
    """A base folder, not yet made, that every account can reach."""
    folder = _reachable_folder()
    yield folder / "var"
    _wipe(folder)


@pytest.fixture
def holders() -> Iterator[list[Holder]]:
    """Processes to end, whatever happens."""
    made: list[Holder] = []
    yield made
    for holder in made:
        if holder.process.poll() is None:
            holder.kill()
        holder.process.communicate()


def _reachable_folder() -> Path:
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > 1 << 30
    folder = Path(tempfile.mkdtemp(prefix="snt-test-", dir=memory if roomy else None)).resolve()
    folder.chmod(0o711)
    return folder


def _wipe(folder: Path) -> None:
    _eventually(lambda: _try_remove(folder / "var"))
    shutil.rmtree(folder)


def _try_remove(base: Path) -> bool:
    with suppress(EmbeddedError):
        remove(base)
        return True
    return False


def _eventually(test: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not test():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _alive(pid: int) -> bool:
    with suppress(OSError):
        # A zombie that waits for its parent is as good as gone.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def _ask(url: str, statement: str) -> tuple[object, ...] | None:
    with psycopg.connect(url) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchone() if cursor.description else None


def _settings(url: str, *names: str) -> dict[str, object]:
    with psycopg.connect(url) as connection:
        return {name: connection.execute("SELECT current_setting(%s)", [name]).fetchone()[0] for name in names}  # type: ignore[index]


def _launch_without_watch(folder: Path) -> Path:
    """The broken twin of the trampoline: the child does not learn that its starter ended."""
    text = launch.TRAMPOLINE.read_text()
    broken = text.replace("watch(_PR_SET_PDEATHSIG", "(lambda *_: None)(_PR_SET_PDEATHSIG")
    assert broken != text
    twin = folder / "trampoline_twin.py"
    twin.write_text(broken)
    return twin


# What a first start gives


def test_a_new_folder_gets_a_durable_checksummed_utf8_database_on_a_private_socket(base: Path) -> None:
    with running(base, own=True) as running_server:
        wanted = {
            "server_encoding": "UTF8",
            "data_checksums": "on",
            "fsync": "on",
            "full_page_writes": "on",
            "synchronous_commit": "on",
            "listen_addresses": "",
            "max_connections": "200",
            "jit": "off",
            "max_wal_size": "2GB",
            "TimeZone": "UTC",
        }
        assert _settings(running_server.admin_url, *wanted) == wanted
        identity = _ask(
            running_server.admin_url, "SELECT current_user, current_database(), datcollate FROM pg_database"
        )
        assert identity == ("sentinel_admin", "sentinel", "C")
        assert stat.S_IMODE(running_server.socket_dir.stat().st_mode) == 0o700
        assert running_server.data_dir.name == str(find_binaries().major)
        assert os.getsid(running_server.pid) != os.getsid(0), "Ctrl-C must not reach the server before its users"
    assert not running_server.socket_dir.exists()
    assert not (running_server.data_dir / "postmaster.pid").exists(), "it was not a clean stop"
    assert stat.S_IMODE(base.stat().st_mode) == (0o711 if IS_ROOT else 0o700)


def test_a_warm_start_and_a_clean_stop_take_less_than_two_seconds_and_keep_the_rows(base: Path) -> None:
    with running(base) as first:
        _ask(first.admin_url, "CREATE TABLE kept AS SELECT 7 AS n")
    began = time.monotonic()
    with running(base) as second:
        assert _ask(second.admin_url, "SELECT n FROM kept") == (7,)
    assert time.monotonic() - began < 2.0


@needs_linux
@needs_root
def test_as_root_the_server_runs_as_an_existing_unprivileged_account_without_groups(base: Path) -> None:
    accounts = Path("/etc/passwd").read_bytes()
    with running(base) as running_server:
        status = Path(f"/proc/{running_server.pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines())
    assert "0" not in fields["Uid"].split() + fields["Gid"].split()
    assert fields["Groups"].split() == []
    assert Path("/etc/passwd").read_bytes() == accounts


@needs_linux
@needs_root
def test_an_ordinary_user_runs_it_as_themselves(base: Path, holders: list[Holder]) -> None:
    python = next((name for name in (sys.executable, "/usr/bin/python3") if _anybody_can_run(name)), None)
    if python is None:
        pytest.skip("no Python on this machine can be run by an ordinary user")
    account = server_account(None)
    folder = base.parent
    shutil.copytree(PACKAGE_ROOT / "sentinel", folder / "sentinel")
    subprocess.run(["chmod", "-R", "a+rX", str(folder / "sentinel")], check=True)
    binaries = usable_binaries(find_binaries(), account, folder)
    base.mkdir(mode=0o700)
    os.chown(base, account.uid, account.gid)
    # Everything is imported before the change of account: the environment may be under root's home.
    become = (
        f"os.environ['SENTINEL_PG_BIN'] = {str(binaries.bin_dir)!r}; sys.executable = {python!r}; "
        f"os.setgroups([]); os.setgid({account.gid}); os.setuid({account.uid})"
    )
    holders.append(Holder(base, "own", become, package_root=folder))
    pid, started, _ = holders[0].server()
    assert started
    assert Path(f"/proc/{pid}").stat().st_uid == account.uid
    assert (base / "postgres" / "server.log").stat().st_uid == account.uid
    assert holders[0].finish() == 0
    assert not _alive(pid)


def _anybody_can_run(program: str) -> bool:
    nobody = server_account(None)
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run([program, "-c", ""], user=nobody.uid, group=nobody.gid, extra_groups=[], cwd="/")
        return done.returncode == 0
    return False


@pytest.mark.skipif(not INSTALLED_15.is_dir(), reason="no PostgreSQL 15 is installed on this machine")
def test_an_installed_postgresql_15_serves_as_well(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENTINEL_PG_BIN", str(INSTALLED_15))
    with running(base, own=True) as running_server:
        assert _settings(running_server.admin_url, "fsync", "data_checksums") == {"fsync": "on", "data_checksums": "on"}
        assert running_server.data_dir.name == "15"


def test_a_path_with_a_space_works(base: Path) -> None:
    spaced = base.parent / "my data" / "it's 100%"
    spaced.parent.mkdir()
    spaced.parent.chmod(0o711)
    with running(spaced, own=True) as running_server:
        assert _ask(running_server.admin_url, "SELECT 1") == (1,)
    remove(spaced)


@pytest.mark.parametrize(("name", "taken"), [("t mp", True), ("t,mp", False), ("t" * 90, False)])
def test_the_socket_folder_is_in_tmpdir_unless_a_client_could_not_reach_it(
    base: Path, monkeypatch: pytest.MonkeyPatch, name: str, taken: bool
) -> None:
    monkeypatch.setenv("TMPDIR", str(base.parent / name))
    assert (layout.Layout.of(base).socket_dirs()[0].parent == base.parent / name) is taken


def test_neither_a_space_in_tmpdir_nor_the_callers_pgport_matters(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spaced = base.parent / "t mp"
    spaced.mkdir(mode=0o711)
    monkeypatch.setenv("TMPDIR", str(spaced))
    monkeypatch.setenv("PGPORT", "1")
    with running(base) as running_server:
        assert running_server.socket_dir.parent == spaced
        assert _ask(running_server.url(user="sentinel_admin", database="postgres"), "SELECT 1") == (1,)


def test_url_percent_encodes_every_part() -> None:
    place = RunningServer("", Path("/a b/%?&"), Path("/d"), 1, True)
    assert place.url(user="x@y", database="d/e") == "postgresql://x%40y@/d%2Fe?host=%2Fa%20b%2F%25%3F%26&port=5432"


def test_settings_replace_ours_and_durability_is_not_for_sale(base: Path) -> None:
    with running(base, settings={"max_connections": "30", "wal_buffers": "1MB"}) as running_server:
        changed = _settings(running_server.admin_url, "max_connections", "wal_buffers")
        assert changed == {"max_connections": "30", "wal_buffers": "1MB"}
    for weaker in ({"fsync": "off"}, {"Synchronous_Commit": "off"}, {"full_page_writes": "off"}, {"x -c fsync": "off"}):
        with pytest.raises(EmbeddedError, match="cannot be changed"):
            options.server_options(Path("/tmp/s"), weaker)


@pytest.mark.parametrize(("memory_mib", "buffers_mib"), [(64, 16), (512, 64), (2048, 256), (65536, 256)])
def test_a_small_machine_gets_smaller_buffers(memory_mib: int, buffers_mib: int) -> None:
    assert options.shared_buffers_mib(memory_mib << 20) == buffers_mib


# Crashes


def _survivors(base: Path, create: str) -> int:
    """Rows still there after the server was killed in mid-flight and started again by the same object."""
    embedded = Embedded(base, own=True)
    try:
        url = embedded.start().admin_url
        _ask(url, f"{create} kept AS SELECT generate_series(1, 500) AS n")
        with suppress(psycopg.OperationalError), psycopg.connect(url) as busy:
            busy.execute("INSERT INTO kept SELECT 0")
            embedded.kill()
            assert not embedded.is_alive()
        row = _ask(embedded.start().admin_url, "SELECT count(*) FROM kept")
        assert row is not None
        return int(str(row[0]))
    finally:
        embedded.stop()


def test_committed_rows_survive_kill_9_and_restart(base: Path) -> None:
    assert _survivors(base, "CREATE TABLE") == 500


def test_twin_rows_that_are_not_logged_are_seen_to_be_lost(base: Path) -> None:
    assert _survivors(base, "CREATE UNLOGGED TABLE") != 500


def _server_left_after_starter_was_killed(base: Path, holders: list[Holder], extra: str) -> int | None:
    holders.append(Holder(base, "own", extra))
    pid, _, _ = holders[-1].server()
    holders[-1].kill()
    return None if _eventually(lambda: not _alive(pid), 1.5) else pid


@needs_linux
def test_a_killed_starter_leaves_no_server(base: Path, holders: list[Holder]) -> None:
    assert _server_left_after_starter_was_killed(base, holders, "") is None
    with running(base, own=True) as running_server:
        assert running_server.started_by_us


@needs_linux
def test_twin_without_the_parent_death_signal_leaves_one_that_the_next_start_ends(
    base: Path, holders: list[Holder]
) -> None:
    broken = f"launch.TRAMPOLINE = Path({str(_launch_without_watch(base.parent))!r})"
    left = _server_left_after_starter_was_killed(base, holders, broken)
    assert left is not None
    with running(base, own=True) as running_server:
        assert running_server.pid != left and not _alive(left)


@needs_linux
def test_remove_ends_a_server_that_was_left_there(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embedded = Embedded(base, own=True)
    left = embedded.start()
    forgotten: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(process, "end_child", forgotten.append)
    embedded.stop()
    assert _alive(left.pid)
    remove(base)
    assert forgotten[0].wait(0) == 0, "it was not a clean stop"
    assert not base.exists() and not left.socket_dir.exists()


@needs_linux
def test_a_server_started_from_a_thread_outlives_the_thread_but_not_the_stop(base: Path) -> None:
    embedded = Embedded(base, own=True)
    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(embedded.start).result()
    assert not any(thread.name.startswith("ThreadPool") for thread in threading.enumerate())
    assert not _eventually(lambda: not embedded.is_alive(), 0.3), "the server ended with the thread"
    embedded.stop()
    assert not _alive(started.pid)


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
    return holders[-1].said() == "answers"


@needs_linux
def test_a_forked_worker_that_unwinds_never_stops_its_parents_server(base: Path, holders: list[Holder]) -> None:
    assert _answers_after_forked_copy_left(base, holders, "")


@needs_linux
def test_twin_that_forgets_who_started_it_breaks_the_parents_server(base: Path, holders: list[Holder]) -> None:
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
        assert _ask(again.admin_url, "SELECT 1") == (1,)


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


def test_a_process_that_is_not_ours_is_never_signalled(base: Path) -> None:
    assert _stranger_lives_through_remove(base)


def test_twin_that_believes_the_pid_file_signals_a_stranger(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "belongs_to", lambda pid, _: _alive(pid))
    monkeypatch.setattr(process, "strays", lambda _: [])
    assert not _stranger_lives_through_remove(base)


def test_an_initdb_cut_short_is_done_again(base: Path) -> None:
    half_made = base / "postgres" / f"{find_binaries().major}.new-halfmade"
    half_made.mkdir(parents=True)
    (half_made / "PG_VERSION").write_text("18\n")
    for folder in (base, base / "postgres"):
        folder.chmod(0o711)
    with running(base) as running_server:
        assert _ask(running_server.admin_url, "SELECT 1") == (1,)
    assert not half_made.exists()


# Several at once


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
    assert _ask(joined_url, "SELECT 1") == (1,)
    assert joiner.finish() == 0
    assert starter.finish() == 0
    assert not _alive(answers[0][0])


def _second_owner(base: Path, extra: str, holders: list[Holder]) -> str:
    holders.append(Holder(base, "own"))
    holders[0].server()
    holders.append(Holder(base, "own", extra))
    return holders[1].said()


def _assert_refused(answer: str, first: Holder) -> None:
    assert answer.startswith(f"refused: already running (process {first.process.pid})"), answer


def test_a_second_lasting_program_is_never_let_in(base: Path, holders: list[Holder]) -> None:
    _assert_refused(_second_owner(base, "", holders), holders[0])
    # What runs is not disturbed, and a short command may join it.
    with running(base) as joined:
        assert not joined.started_by_us
        assert _ask(joined.admin_url, "SELECT 1") == (1,)
    assert holders[0].finish() == 0


def test_twin_without_locks_lets_a_second_program_in(base: Path, holders: list[Holder]) -> None:
    unlocked = "import fcntl; fcntl.flock = lambda *_: None"
    answer = _second_owner(base, unlocked, holders)
    with pytest.raises(AssertionError):
        _assert_refused(answer, holders[0])


def test_a_lasting_program_waits_for_a_short_command_and_then_runs_its_own(base: Path, holders: list[Holder]) -> None:
    holders.append(Holder(base, "shared"))
    short_pid, _, _ = holders[0].server()
    holders.append(Holder(base, "own"))
    time.sleep(0.5)
    assert _alive(short_pid), "the short command lost its server"
    assert holders[0].finish() == 0
    lasting_pid, started, url = holders[1].server()
    assert started and lasting_pid != short_pid
    assert _ask(url, "SELECT 1") == (1,)
    assert holders[1].finish() == 0


# Refusals, each one line that says what to do


def _refusal(base: Path) -> str:
    with pytest.raises(EmbeddedError) as caught, running(base, own=True):
        pass
    assert "\n" not in caught.value.detail
    assert caught.value.code == "embedded-postgres"
    return caught.value.detail


def _data_of_another_major(base: Path, major: int) -> Path:
    other = base / "postgres" / str(major)
    other.mkdir(parents=True)
    (other / "PG_VERSION").write_text(f"{major}\n")
    for folder in (base, base / "postgres"):
        folder.chmod(0o711)
    if IS_ROOT:
        account = server_account(None)
        os.chown(other, account.uid, account.gid)
    return other


def test_the_data_of_another_major_version_is_never_silently_left_behind(base: Path) -> None:
    _data_of_another_major(base, 14)
    detail = _refusal(base)
    assert "PostgreSQL 14" in detail and find_binaries().version in detail
    assert "SENTINEL_PG_BIN" in detail and "--data-dir" in detail


def test_twin_that_does_not_look_starts_empty(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _data_of_another_major(base, 14)
    monkeypatch.setattr(cluster, "data_folders", lambda _: {})
    with pytest.raises(pytest.fail.Exception):
        _refusal(base)


@needs_linux
@needs_root
@pytest.mark.parametrize(("mib", "when"), [(16, "at the first start"), (120, "later")])
def test_a_full_disk_is_said_in_one_line(base: Path, mib: int, when: str) -> None:
    base.mkdir(mode=0o711)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={mib}m,mode=711", "none", str(base)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small disk is not permitted here")
    try:
        if when == "later":
            with running(base):
                pass
            _fill(base)
        assert "no space left on the disk" in _refusal(base)
        if when == "later":
            (base / "filler").unlink()
            with running(base, own=True) as running_server:
                assert _ask(running_server.admin_url, "SELECT 1") == (1,)
    finally:
        subprocess.run(["umount", str(base)], check=True)


def _fill(folder: Path) -> None:
    with suppress(OSError), (folder / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(65536))


def test_a_wrong_sentinel_pg_bin_is_refused(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENTINEL_PG_BIN", str(base))
    assert "SENTINEL_PG_BIN" in _refusal(base)


def test_a_too_old_postgresql_is_refused(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base.mkdir()
    for name in ("postgres", "initdb"):
        (base / name).write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 13.4'\n")
        (base / name).chmod(0o755)
    found = inspect(base)
    assert found is not None and (found.major, found.version) == (13, "13.4")
    monkeypatch.setenv("SENTINEL_PG_BIN", str(base))
    with pytest.raises(EmbeddedError, match="15 or newer"):
        find_binaries()


def test_a_server_that_cannot_start_says_its_own_reason(base: Path) -> None:
    with pytest.raises(EmbeddedError, match='starting PostgreSQL failed: FATAL:.*"work_mem"'):
        Embedded(base, settings={"work_mem": "no number"}).start()
    with running(base, own=True) as running_server:
        assert running_server.started_by_us


@needs_root
def test_a_socket_folder_made_by_somebody_else_is_refused(base: Path) -> None:
    trap = layout.Layout.of(base).socket_dirs()[0]
    trap.mkdir()
    os.chown(trap, 1, 1)
    try:
        assert "made by somebody else" in _refusal(base)
    finally:
        trap.rmdir()


def test_a_folder_that_is_no_data_folder_is_not_overwritten(base: Path) -> None:
    stranger = base / "postgres" / str(find_binaries().major)
    stranger.mkdir(parents=True)
    (stranger / "diary.txt").write_text("mine")
    for folder in (base, base / "postgres"):
        folder.chmod(0o711)
    assert "move it away" in _refusal(base)
    assert (stranger / "diary.txt").read_text() == "mine"


def test_the_last_complaint_is_chosen_over_hints_and_notices() -> None:
    output = (
        "2026-11-21 10:00:00.123 UTC [12] LOG:  starting\n"
        "2026-11-21 10:00:00.124 UTC [12] FATAL:  could not do it\n"
        "2026-11-21 10:00:00.124 UTC [12] HINT:  Try again.\n"
        "2026-11-21 10:00:00.125 UTC [12] LOG:  database system is shut down\n"
    )
    assert failures.last_meaningful_line(output) == "FATAL:  could not do it"


# As root, out of the account's reach


@needs_root
def test_an_unreachable_folder_is_relocated_without_opening_it(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = base.parent / "roots home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("SENTINEL_PG_BIN", str(_unreachable_programs(home)))
    hidden = home / "checkout" / "var"
    with running(hidden, own=True) as running_server:
        assert layout.RELOCATION_PARENTS[0] in running_server.data_dir.parents
        assert (hidden / "postgres" / "relocated").resolve() == running_server.data_dir.parent
        _ask(running_server.admin_url, "CREATE TABLE kept AS SELECT 1 AS n")
        program = Path(os.readlink(f"/proc/{running_server.pid}/exe"))
        assert running_server.data_dir.parent in program.parents
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    with running(hidden) as again:
        assert _ask(again.admin_url, "SELECT n FROM kept") == (1,)
    remove(hidden)
    assert not again.data_dir.parent.exists() and not hidden.exists()


def _unreachable_programs(home: Path) -> Path:
    """A copy of the programs' tree inside `home`, as in an environment under root's home."""
    tree = find_binaries().bin_dir.parent
    target = home / tree.parent.name / tree.name
    shutil.copytree(tree, target, symlinks=True)
    libraries = tree.parent.with_name(f"{tree.parent.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, home / libraries.name)
    return target / "bin"


@needs_root
def test_a_lost_relocated_folder_is_never_replaced_by_an_empty_one(base: Path) -> None:
    home = base.parent / "home"
    home.mkdir(mode=0o700)
    hidden = home / "var"
    with running(hidden) as running_server:
        moved = running_server.data_dir.parent
    shutil.rmtree(moved)
    assert "which is gone" in _refusal(hidden)
    remove(hidden)


# Removal


def test_remove_leaves_nothing_and_is_harmless_twice(base: Path) -> None:
    with running(base, own=True) as running_server:
        with pytest.raises(EmbeddedError, match="in use"):
            remove(base)
        assert _ask(running_server.admin_url, "SELECT 1") == (1,)
    remove(base)
    remove(base)
    assert not base.exists()
    assert not running_server.socket_dir.exists()
    assert list(layout.Layout.of(base).relocated()) == []


def test_remove_keeps_what_is_not_the_servers(base: Path) -> None:
    with running(base):
        pass
    (base / "keys.json").write_text("{}")
    remove(base)
    assert [path.name for path in base.iterdir()] == ["keys.json"]


def test_a_lock_on_a_removed_file_is_not_taken_for_a_lock(tmp_path: Path) -> None:
    path = tmp_path / "gate.lock"
    held = locks.try_lock(path)
    assert held is not None and locks.try_lock(path) is None
    path.unlink()
    fresh = locks.wait_lock(path, 1.0)
    assert fresh is not None
    assert locks.try_lock(path) is None
    held.close()
    assert locks.try_lock(path) is None, "the old file's lock freed the new one"
    fresh.close()


def test_a_killed_program_leaves_no_stale_lock(base: Path, holders: list[Holder]) -> None:
    holders.append(Holder(base, "shared"))
    holders[0].server()
    os.kill(holders[0].process.pid, signal.SIGKILL)
    holders[0].process.wait()
    with running(base, own=True) as running_server:
        assert running_server.started_by_us
