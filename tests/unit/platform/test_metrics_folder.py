"""The folder in which the processes of a server share their counters: it stays until the process that made it leaves."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from sentinel.platform.serving.server import metrics_folder


def fork_and_exit_here() -> None:
    """Fork a process that ends as gunicorn's do, by `SystemExit` through the frames of the one that forked it; return in the latter alone."""
    child = os.fork()
    if child == 0:
        raise SystemExit(0)
    os.waitpid(child, 0)


def test_a_process_that_ends_in_order_leaves_the_folder_to_the_others() -> None:
    """The finding: SIGTERM to one process removed the folder of all; the next one could not start, and the program halted."""
    maker = os.getpid()
    try:
        with metrics_folder():
            folder = Path(os.environ["PROMETHEUS_MULTIPROC_DIR"])
            fork_and_exit_here()
            assert folder.is_dir()
    finally:
        if os.getpid() != maker:
            os._exit(0)
    assert not folder.exists() and "PROMETHEUS_MULTIPROC_DIR" not in os.environ


def test_the_folder_is_locked_as_long_as_it_is_used() -> None:
    """The finding: after ten days without a scrape it was cleared as an old file of /tmp, and no process could be replaced."""
    with metrics_folder():
        another = os.open(os.environ["PROMETHEUS_MULTIPROC_DIR"], os.O_RDONLY | os.O_DIRECTORY)
        try:
            with pytest.raises(BlockingIOError):
                fcntl.flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(another)
