"""Where the tests' PostgreSQL keeps its files, and what a suite that was killed has left there."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import uuid
from pathlib import Path

from sentinel.store.embedded import EmbeddedError, remove

PARENTS = (Path("/dev/shm"), Path(tempfile.gettempdir()))
"""In memory, and on a disk."""
_NAME = "sentinel-tests-"
_ROOM_BYTES = 6 * 1024**3


def new_folder() -> Path:
    """A folder for the server: in memory where there is room, for on a disk dropping a test's database takes 0.6 s.

    Not pytest's own folder: as root the server runs as another account, which could not enter it.
    """
    memory, disk = PARENTS
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > _ROOM_BYTES
    return (memory if roomy else disk) / f"{_NAME}{os.getpid()}-{uuid.uuid4().hex[:6]}"


def remove_left_behind(parents: tuple[Path, ...] = PARENTS) -> None:
    """Remove the folders of processes that are gone: a hundred megabytes each, of memory."""
    for parent in parents:
        for folder in parent.glob(f"{_NAME}*-*"):
            owner = folder.name.removeprefix(_NAME).partition("-")[0]
            if owner.isdecimal() and _is_gone(int(owner)):
                with contextlib.suppress(EmbeddedError, OSError):
                    remove(folder)
                    shutil.rmtree(folder, ignore_errors=True)


def _is_gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        pass
    return False
