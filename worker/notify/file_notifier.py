"""Notifier that appends to a file: one JSON line per message, synced to disk before it counts as delivered."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import orjson

from worker.notify.messages import Message
from worker.notify.notifier import Delivered, Failed

FILE_NAME = "confirmations.jsonl"


class FileNotifier:
    """Appends to `confirmations.jsonl` in a folder; links are secrets, so only this account can read them."""

    name = "file"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def deliver(self, message: Message) -> Delivered | Failed:
        """Append a whole line or nothing."""
        line = orjson.dumps(
            {
                "confirmation_id": str(message.confirmation_id), "to": message.contact, "language": message.language,
                "subject": message.subject, "text": message.text, "link": message.link,
            }, option=orjson.OPT_APPEND_NEWLINE,
        )  # fmt: skip
        try:
            self._append(line)
        except OSError as error:
            return Failed(f"file: {os.strerror(error.errno) if error.errno else type(error).__name__}")
        return Delivered()

    def _append(self, line: bytes) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # No following of links: the folder may be one that others can write to.
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(self._folder / FILE_NAME, flags, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            before = os.fstat(file).st_size
            try:
                _write_all(file, _on_a_line_of_its_own(file, before, line))
                os.fsync(file)
            except OSError:
                os.ftruncate(file, before)
                raise
        finally:
            os.close(file)
        _sync_folder(self._folder)


def _on_a_line_of_its_own(file: int, size: int, line: bytes) -> bytes:
    """A crash may have left half a line behind: it must not swallow this one."""
    cut_off = size > 0 and os.pread(file, 1, size - 1) != b"\n"
    return b"\n" + line if cut_off else line


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


def _sync_folder(folder: Path) -> None:
    """A new file's name is on disk only when its folder is."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
