"""Creates files for data, logs and reports with mode 0640 at most, whatever the umask."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path
from typing import BinaryIO

FILE_MODE, FOLDER_MODE = 0o640, 0o750


def open_private(path: Path, *, append: bool = False) -> BinaryIO:
    """Open a file for writing, emptied, or at its end with `append`. Access of others to an existing file is removed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_APPEND if append else os.O_TRUNC)
    file = os.fdopen(os.open(path, flags, FILE_MODE), "ab" if append else "wb")
    _close_to_others(path, FILE_MODE)
    return file


def write_private(path: Path, content: bytes) -> None:
    """Write `content` to the file, replacing what it held."""
    with open_private(path) as file:
        file.write(content)


def replace_private(path: Path, content: bytes) -> None:
    """Replace the file atomically, readable by its owner only: even after a power cut it is the new or the old one as a whole."""
    new, made = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # 0600
    try:
        with os.fdopen(new, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(new)
        Path(made).replace(path)
    except BaseException:
        Path(made).unlink()
        raise
    sync_folder(path.parent)


def private_folder(path: Path) -> None:
    """Make the folder if it is missing; access of others to an existing one is removed."""
    path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    _close_to_others(path, FOLDER_MODE)


def sync_folder(path: Path) -> None:
    """Flush the folder's entries to the disk, so that new and changed names survive a power cut."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _close_to_others(path: Path, most: int) -> None:
    mode = stat.S_IMODE(path.stat().st_mode)
    is_ours = stat.S_ISREG(path.stat().st_mode) or path.is_dir()  # and not a terminal or a pipe
    if not is_ours or not mode & ~most:
        return
    with contextlib.suppress(PermissionError):  # it belongs to another account, which alone may change its mode
        path.chmod(mode & most)
