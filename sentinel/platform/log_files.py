"""Log files that a running program appends to, kept short."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from sentinel.platform.private_files import FILE_MODE

LOG_LIMIT_BYTES = 10 * 1024 * 1024


def _open_private(path: Path, flags: int) -> int:
    return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)


def bound_log(path: Path, opener: Callable[[Path, int], int] = _open_private) -> None:
    """Move a log of more than LOG_LIMIT_BYTES to `<name>.log.1`, in place of the one moved last.

    The program goes on at the beginning, and what it logs at that moment may be lost. A log that cannot be moved, as on
    a full disk, stays as it is. `opener` opens a path with the flags of `os.open`, and makes it if it is missing.
    """
    with suppress(OSError):
        if path.stat().st_size <= LOG_LIMIT_BYTES:
            return
        earlier = opener(path.with_suffix(".log.1"), os.O_WRONLY | os.O_TRUNC)
        with os.fdopen(earlier, "wb") as kept, os.fdopen(opener(path, os.O_RDWR), "r+b") as log:
            shutil.copyfileobj(log, kept)
            kept.flush()
            log.truncate(0)
