"""File locks that end with the process, so that a killed one leaves no stale lock.

Four files in `<base>/postgres`: `start.lock` is held while deciding (start, join, stop, remove),
`keeper.lock` by the process whose child the server is, `owner.lock` by the one program that lasts,
`users.lock` is shared by the commands that joined.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sentinel.store.embedded.failures import never_stop
from sentinel.store.embedded.layout import open_ours

START_LOCK, KEEPER_LOCK, OWNER_LOCK, USERS_LOCK = "start.lock", "keeper.lock", "owner.lock", "users.lock"
_POLL_SECONDS = 0.02


@dataclass
class FileLock:
    """A lock that is held until `close` or the end of the process."""

    fd: int

    def close(self) -> None:
        """Release the lock, by closing and not by unlocking: a forked child closing its copy must not free ours."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def note(self, text: str) -> None:
        """Write `text`, the holder's process id, into the lock file."""
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, text.encode(), 0)


def try_lock(path: Path, *, shared: bool = False) -> FileLock | None:
    """The lock on `path`, or None if another process holds it. Creates the file."""
    fd = open_ours(path, os.O_RDWR)
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        if _still_there(fd, path):
            return FileLock(fd)
    except BlockingIOError:
        pass
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return None


def wait_lock(path: Path, seconds: float, *, should_stop: Callable[[], bool] = never_stop) -> FileLock | None:
    """The exclusive lock on `path`, or None after `seconds` or once `should_stop` returns True."""
    deadline = time.monotonic() + seconds
    while (lock := try_lock(path)) is None and time.monotonic() < deadline and not should_stop():
        time.sleep(_POLL_SECONDS)
    return lock


def _still_there(fd: int, path: Path) -> bool:
    # `remove` may have deleted the file between our open and our lock: such a lock guards nothing.
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False
