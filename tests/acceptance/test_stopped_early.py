"""`sentinel demo` and `sentinel serve` told to stop while they start: nothing more is begun, nothing is left behind."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from sentinel.store.embedded import running
from sentinel.store.embedded.layout import Layout
from tests.acceptance.demos import OnceRun, demo_folder, port_options
from tests.support.busy import long_enough
from tests.support.ports import free_port, listens
from tests.support.served_programs import clean_env, eventually, module, processes_naming

pytestmark = pytest.mark.slow


def begun(folder: Path) -> set[str]:
    """The children there have been, by the name of the file their output goes to."""
    return {one.stem for one in (folder / "log").glob("*.log")}


def has_come(folder: Path, moment: str) -> bool:
    """Whether a start is at a moment: PostgreSQL's programs at work, or a child begun."""
    if moment == "initdb":
        return any((folder / "postgres").glob("*.new-*"))
    if moment == "server":
        return any((folder / "postgres").glob("[0-9]*/postmaster.pid"))
    return moment in begun(folder)


def frozen(process: subprocess.Popen[str], folder: Path) -> set[str]:
    """Stop it where it is, until it is sent a signal to go on; the children there have been. The test may stand still meanwhile."""
    process.send_signal(signal.SIGSTOP)
    stat = Path(f"/proc/{process.pid}/stat")
    assert eventually(lambda: stat.read_text().rpartition(")")[2].split()[0] in "TZ", within=20, every=0.005)
    return begun(folder)


def database_of(once: OnceRun, folder: Path) -> None:
    """A folder that has its database, and whose small refunds are still to be begun: its children come after no initdb."""
    once.copy_to(folder)
    (folder / "demo_small_refunds").unlink()
    shutil.rmtree(folder / "log")


# When the signals come, which, and what is not begun after them.
EARLY = [
    ("initdb", [signal.SIGTERM], {"authority", "console", "orders", "enqueue"}),
    ("server", [signal.SIGINT, signal.SIGINT], {"authority", "console", "orders", "enqueue"}),
    ("authority", [signal.SIGTERM], {"refund-agent", "worker", "gates"}),
    ("refund-agent", [signal.SIGINT, signal.SIGINT], {"worker", "gates"}),
    ("gates", [signal.SIGTERM], {"facts"}),
]


@pytest.mark.parametrize(("moment", "numbers", "not_begun"), EARLY, ids=[one[0] for one in EARLY])
def test_a_signal_while_it_starts_begins_nothing_more_and_leaves_nothing(
    moment: str, numbers: list[int], not_begun: set[str], once: OnceRun
) -> None:
    ports = (free_port(), free_port(), free_port(), free_port())
    with demo_folder("early") as folder:
        if moment not in ("initdb", "server"):
            database_of(once, folder)
        process = subprocess.Popen(
            module("sentinel.cli.main", "demo", "--json", "--data-dir", str(folder), *port_options(*ports)),
            env=clean_env(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        try:
            assert eventually(lambda: has_come(folder, moment), within=40, every=0.005)
            before = frozen(process, folder)
            for number in numbers:
                process.send_signal(number)
                process.send_signal(signal.SIGCONT)
                time.sleep(0.02)
            _, said = process.communicate(timeout=long_enough(30))
        finally:
            process.kill()
            process.wait()
        assert (process.returncode, said) == (0, "")
        assert not (begun(folder) - before) & not_begun
        assert eventually(lambda: not processes_naming(str(folder)), within=3)
        assert not any(map(listens, ports))
        assert not any(one.exists() for one in Layout.of(folder).socket_dirs())
        assert not any((folder / "postgres").glob("*.new-*"))


def test_serve_told_to_stop_while_its_database_starts_leaves_nothing() -> None:
    with demo_folder("served") as folder:
        with running(folder):
            pass
        process = subprocess.Popen(
            module("sentinel.cli.main", "serve"), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, env=clean_env(SENTINEL_DATA_DIR=str(folder), SENTINEL_PORT=str(free_port())),
        )  # fmt: skip
        try:
            assert eventually(lambda: has_come(folder, "server"), within=40, every=0.005)
            process.terminate()
            assert process.wait(long_enough(30)) == 0
        finally:
            process.kill()
            process.wait()
        assert eventually(lambda: not processes_naming(str(folder)), within=3)
        assert not any(one.exists() for one in Layout.of(folder).socket_dirs())
        assert not any((folder / "postgres").glob("*.new-*"))
