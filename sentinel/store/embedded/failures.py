"""`EmbeddedError`, and how a failure of the embedded PostgreSQL becomes one line."""

from __future__ import annotations

import errno
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from sentinel.core.errors import SentinelError

# When only a part could be written, PostgreSQL gives the hint, without the system's message.
_DISK_FULL = ("No space left on device", "Check free disk space", "Disk quota exceeded")
# With less than this free the disk counts as full even without a message: the log is on the same disk.
_NEARLY_FULL_BYTES = 256 * 1024
_PREFIX = re.compile(r"^\d{4}-\d\d-\d\d [\d:.]+ \S+ \[\d+\]\s*")
_NOISE = re.compile(r"^(HINT|DETAIL|STATEMENT|CONTEXT):|^LOG:\s+database system is shut down")


class EmbeddedError(SentinelError):
    """The embedded PostgreSQL cannot run. `detail` is one line: what is wrong and what to do."""

    code = "embedded-postgres"


class StartGivenUp(EmbeddedError):
    """The start was cancelled before the server answered; nothing of it is left."""

    def __init__(self) -> None:
        super().__init__("the start was cancelled while PostgreSQL was starting")


def never_stop() -> bool:
    """`should_stop` of a start that is never cancelled."""
    return False


def disk_full(where: Path) -> EmbeddedError:
    """The refusal when the disk that holds `where` has no room."""
    return EmbeddedError(
        f"no space left on the disk that holds {where}: free some space (a new database needs about 60 MB, "
        "and its write-ahead log more) and start again"
    )


def from_output(output: str, what: str, where: Path) -> EmbeddedError:
    """The refusal for a PostgreSQL program that ended early; `output` is what it printed."""
    if any(sign in output for sign in _DISK_FULL) or _is_nearly_full(where):
        return disk_full(where)
    return EmbeddedError(f"{what} failed: {last_meaningful_line(output)}")


def last_meaningful_line(output: str) -> str:
    """The last complaint in PostgreSQL's own words, without time, process id, hints and details."""
    lines = [_PREFIX.sub("", line).strip() for line in output.splitlines()]
    telling = [line for line in lines if line and not _NOISE.match(line)]
    grave = [line for line in telling if re.search(r"\b(FATAL|PANIC|ERROR|error):", line)]
    return (grave or telling or ["it ended without a message"])[-1]


def _is_nearly_full(where: Path) -> bool:
    try:
        return shutil.disk_usage(where).free < _NEARLY_FULL_BYTES
    except OSError:
        return False


@contextmanager
def postgres_errors_in_one_line(where: Path) -> Iterator[None]:
    """Turn what the operating system or the driver raises into an `EmbeddedError`."""
    try:
        yield
    except psycopg.errors.DiskFull as error:
        raise disk_full(where) from error
    except psycopg.Error as error:
        # A server that cannot write its log of changes (WAL) ends without an answer.
        if _is_nearly_full(where):
            raise disk_full(where) from error
        raise EmbeddedError(f"PostgreSQL in {where} refused: {last_meaningful_line(str(error))}") from error
    except OSError as error:
        raise _from_os_error(error, where) from error


def _from_os_error(error: OSError, where: Path) -> EmbeddedError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return disk_full(where)
    reason = error.strerror or str(error)
    place = error.filename or where
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        reason, first = "is a file, not a folder", "move it away"
    else:
        first = "make it" if error.errno == errno.ENOENT else "correct its permissions"
    advice = f"{first}, or give another folder with SENTINEL_DATA_DIR"
    return EmbeddedError(f"cannot use {place}: {reason}; {advice}")
