"""Logs: one JSON object a line on standard error, with the request's and the operation's ids and no customer data."""

from __future__ import annotations

import atexit
import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from datetime import UTC, datetime
from typing import Any, BinaryIO, cast

import orjson
import structlog

from sentinel.platform.standard_streams import lose_unwritten_errors

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def _with_request_id(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    flask = sys.modules.get("flask")  # a program that has not loaded Flask has no request
    if "request_id" not in event and flask is not None and flask.has_request_context():
        from sentinel.platform.http.problems import request_id

        event["request_id"] = request_id()
    return event


def _line(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> bytes:
    # JSON escapes control characters; the two line separators it leaves alone are escaped too: one event, one line.
    return orjson.dumps(event, default=str).replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")


class BufferedLogStream:
    """A log stream that buffers a few milliseconds of lines into one write.

    `schedule` arranges that a function is called shortly after; it may be called from any thread. Lines left at the
    process's end are written then; a killed process loses those of the last few milliseconds.
    """

    def __init__(self, stream: BinaryIO, schedule: Callable[[Callable[[], None]], object]) -> None:
        self._stream = stream
        self._schedule = schedule
        self._lines: list[bytes] = []
        self._lock = threading.Lock()
        atexit.register(self.write_out)

    def write(self, line: bytes) -> int:
        """Buffer a line; the first one schedules `write_out`."""
        with self._lock:
            self._lines.append(line)
            is_first = len(self._lines) == 1
        if is_first:
            self._schedule(self.write_out)
        return len(line)

    def flush(self) -> None:
        """Do nothing: a logger flushes after every line, and `write_out` comes later."""

    def write_out(self) -> None:
        """Write the buffered lines."""
        with self._lock:
            lines, self._lines = self._lines, []
        if lines:
            self._stream.write(b"".join(lines))
            self._stream.flush()


def write_events(event: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Log many events of one name at level info under one timestamp, each a line as `info(event, **row)` writes it."""
    if not structlog.get_logger().is_enabled_for(logging.INFO):
        return
    told = {"event": event, "level": "info", "timestamp": datetime.now(UTC).isoformat().replace("+00:00", "Z")}
    lines = b"\n".join(_line(None, "info", {**row, **told}) for row in rows)
    structlog.get_config()["logger_factory"]().info(lines)


def buffer_log_lines(schedule: Callable[[Callable[[], None]], object]) -> None:
    """Have the loggers that are made from now on write through `BufferedLogStream`."""
    lines = cast(BinaryIO, BufferedLogStream(sys.stderr.buffer, schedule))
    structlog.configure(**{**structlog.get_config(), "logger_factory": structlog.BytesLoggerFactory(file=lines)})


def configure_logs(level: str) -> None:
    """Set up structlog for this process; the standard library's loggers join at warning and above."""
    lose_unwritten_errors()
    structlog.configure(**_lines_on_stderr(level), cache_logger_on_first_use=True)
    logging.basicConfig(level=max(LEVELS[level], logging.WARNING), stream=sys.stderr, force=True, format="%(message)s")


@contextlib.contextmanager
def logs_of_command() -> Iterator[None]:
    """Have structlog write to standard error while a command runs, so that its standard output is its answer alone."""
    lose_unwritten_errors()
    before = structlog.get_config()
    structlog.configure(**_lines_on_stderr("info"))
    try:
        yield
    finally:
        structlog.configure(**before)


def _lines_on_stderr(level: str) -> dict[str, Any]:
    return {
        "processors": [
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _with_request_id,
            # Frames without their local variables: those hold requests, and requests hold customer data.
            structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False)),
            _line,
        ],
        "wrapper_class": structlog.make_filtering_bound_logger(LEVELS[level]),
        "logger_factory": structlog.BytesLoggerFactory(file=sys.stderr.buffer),
    }
