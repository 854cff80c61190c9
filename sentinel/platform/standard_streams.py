"""A program's standard streams: what standard error does not take is lost, and no character ends a command."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import Any


class _LossyFile(io.FileIO):
    """The file of standard error. What it does not take (a full disk, a reader that is gone) is lost: neither what a
    program does nor its exit code depends on it.
    """

    def write(self, data: Any, /) -> int:
        """Write the bytes, or lose them."""
        try:
            return super().write(data)
        except OSError:
            return len(data)


def prepare_standard_streams() -> None:
    """Make the streams usable for a command: `lose_unwritten_errors`, and closed standard input is empty.

    Closed standard output is not replaced: what a hook answers must not vanish.
    """
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 - until the process ends
    lose_unwritten_errors()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            # What a terminal's encoding does not have is escaped: it must not end a command that has done its work.
            stream.reconfigure(errors="backslashreplace")


def lose_unwritten_errors() -> None:
    """Have standard error lose what cannot be written to it. Only the interpreter's own stream, not what a test collects."""
    if sys.stderr is None:
        _use(_LossyFile(os.open(os.devnull, os.O_WRONLY), "w"), "utf-8", "backslashreplace")
    elif type(sys.stderr) is io.TextIOWrapper and not _is_lossy(sys.stderr):
        _use(_LossyFile(sys.stderr.fileno(), "w", closefd=False), sys.stderr.encoding, sys.stderr.errors)


def _use(file: _LossyFile, encoding: str, errors: str | None) -> None:
    sys.stderr = io.TextIOWrapper(io.BufferedWriter(file), encoding, errors, line_buffering=True)


def _is_lossy(stream: io.TextIOWrapper) -> bool:
    return isinstance(getattr(stream.buffer, "raw", None), _LossyFile)


def flush_streams() -> None:
    """Write out what standard output and error still buffer, as far as they take it; a stream that is closed has nothing."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.flush()


def drop_output() -> None:
    """Discard what standard output still buffers and gets from now on: writing it at the end of the process would fail again."""
    if sys.stdout is None:
        return  # closed from the start: it neither has nor gets anything
    with contextlib.suppress(OSError, ValueError):
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, sys.stdout.fileno())
        os.close(sink)
