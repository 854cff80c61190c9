"""Delete an embedded server with everything that belongs to it (`make clean`)."""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

from sentinel.store.embedded import locks, process
from sentinel.store.embedded.failures import EmbeddedError, postgres_errors_in_one_line
from sentinel.store.embedded.layout import RELOCATION_PARENTS, Layout, delete_socket_dir

_WAIT_SECONDS = 10.0


def remove(base_dir: Path) -> None:
    """Stop a server that was left behind, and delete its data, log and socket folders, relocated ones too.

    The base folder itself is deleted only if nothing else is in it. Raises `EmbeddedError` while a living
    process runs the server, and if something cannot be deleted. It is no error if there is nothing to delete.
    """
    layout = Layout.of(base_dir)
    with postgres_errors_in_one_line(layout.run_dir):
        if layout.run_dir.is_dir():
            _remove_under_locks(layout)
        _delete_relocated(layout)
        _delete_sockets(layout.socket_dirs())
        with suppress(OSError):
            layout.base.rmdir()


def _remove_under_locks(layout: Layout) -> None:
    start_lock = locks.wait_lock(layout.run_dir / locks.START_LOCK, _WAIT_SECONDS)
    keeper = locks.try_lock(layout.run_dir / locks.KEEPER_LOCK) if start_lock else None
    if start_lock is None or keeper is None:
        if start_lock is not None:
            start_lock.close()
        raise EmbeddedError(
            f"the database in {layout.run_dir} is in use: stop the program that runs it, then clean again"
        )
    try:
        for home in (layout.run_dir, *layout.relocated()):
            _stop_servers(home)
        shutil.rmtree(layout.run_dir)
    finally:
        keeper.close()
        start_lock.close()


def _stop_servers(home: Path) -> None:
    for data_dir in (path for path in home.iterdir() if path.name.isdigit()):
        socket_dir = process.recorded_socket_dir(data_dir)
        process.clear_leftovers(data_dir)
        # The path is from a file that the server's account may write: only a folder with our prefix is trusted.
        if socket_dir is not None and socket_dir.name.startswith("snt-"):
            _delete_sockets([socket_dir])


def _delete_relocated(layout: Layout) -> None:
    for folder in layout.relocated():
        _stop_servers(folder)
        shutil.rmtree(folder)
    for parent in RELOCATION_PARENTS:
        with suppress(OSError):
            parent.rmdir()


def _delete_sockets(folders: list[Path]) -> None:
    for folder in folders:
        with suppress(FileNotFoundError):
            info = folder.lstat()
            if stat.S_ISDIR(info.st_mode) and (os.geteuid() == 0 or info.st_uid == os.geteuid()):
                delete_socket_dir(folder)
