"""A file that is read again whenever it changed: its last reading costs one look-up of the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")


class ReloadedFile(Generic[T]):
    """What `load` makes of the file at `path`, which may be missing. Safe for threads."""

    def __init__(self, path: Path, load: Callable[[Path], T]) -> None:
        self.path = path
        self._load = load
        self._read: tuple[object, T] | None = None

    @property
    def current(self) -> T:
        """What the file says now; `load` is called once per change."""
        stamp = self._stamp()
        if self._read is None or self._read[0] != stamp:
            self._read = (stamp, self._load(self.path))
        return self._read[1]

    def _stamp(self) -> object:
        try:
            found = self.path.stat()
        except OSError as error:
            return (error.errno,)
        return (found.st_mtime_ns, found.st_size, found.st_ino)
