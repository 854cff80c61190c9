"""The server's settings. Given on the command line, so that no file in the data folder overrides them."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from sentinel.store.embedded.failures import EmbeddedError

PORT = 5432
_MIB = 1024 * 1024
_NAME = re.compile(r"[a-z_][a-z0-9_.]*")
# Settings that a caller may not change: this package guarantees durability, isolation, and where files and sockets are.
_FIXED = frozenset(
    (
        *("fsync", "full_page_writes", "synchronous_commit", "zero_damaged_pages", "ignore_checksum_failure"),
        *("listen_addresses", "port", "unix_socket_directories", "unix_socket_permissions", "hba_file", "ident_file"),
        *("data_directory", "config_file", "external_pid_file", "logging_collector"),
    )
)


def server_options(socket_dir: Path, overrides: Mapping[str, str]) -> list[str]:
    """The `-c name=value` arguments: ours, then the caller's. Raises `EmbeddedError` for a setting that is fixed."""
    options = _ours(socket_dir)
    for name, value in overrides.items():
        key = name.lower()
        if key in _FIXED or not _NAME.fullmatch(key):
            raise EmbeddedError(f"the setting {name} of the embedded server cannot be changed: leave it out")
        options[key] = str(value)
    return [part for name, value in options.items() for part in ("-c", f"{name}={value}")]


def _ours(socket_dir: Path) -> dict[str, str]:
    options = {
        "listen_addresses": "",
        "port": str(PORT),
        "unix_socket_directories": _quoted(socket_dir),
        "logging_collector": "off",
        "fsync": "on",
        "full_page_writes": "on",
        "synchronous_commit": "on",
        "max_connections": "216",
        "jit": "off",
        "shared_buffers": f"{shared_buffers_mib(_memory_bytes())}MB",
        # Keeps WAL segments of a burst for the next one: a new segment is 16 MiB of zeros, written while commits wait.
        "min_wal_size": "1GB",
        "max_wal_size": "2GB",
        "checkpoint_timeout": "15min",
        # A new table grows fast: analyse it soon, or plans made while it was empty stay in use.
        "autovacuum_naptime": "15s",
        "wal_compression": "on",
        "timezone": "UTC",
        "log_timezone": "UTC",
        "log_line_prefix": "%m [%p] ",
    }
    if sys.platform == "linux":
        # A client that is gone must not keep its locks until its statement ends; other systems refuse the setting.
        options["client_connection_check_interval"] = "1s"
    return options


def _quoted(socket_dir: Path) -> str:
    # The setting is a comma-separated list; quotes keep a space in TMPDIR part of the name.
    return '"' + str(socket_dir).replace('"', '""') + '"'


def shared_buffers_mib(memory_bytes: int) -> int:
    """256 MiB, or an eighth of a small machine's memory, and 16 MiB at least."""
    return max(16, min(256, memory_bytes // 8 // _MIB))


def _memory_bytes() -> int:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # A container's limit, where there is one ("max" when not).
    with suppress(OSError, ValueError):
        memory = min(memory, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return memory
