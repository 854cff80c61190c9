"""Standard error that takes no line (a full disk, a reader that is gone) costs lines of the log and nothing else."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys

import pytest
import urllib3

from sentinel.store.database import AUTHORITY, EXPORTER
from tests.support.fixtures import Fixtures
from tests.support.logins import program_url
from tests.support.ports import free_port
from tests.support.served_programs import SECRET, clean_env, end, eventually, module, request

FULL = ["sh", "-c", 'exec "$@" 2>/dev/full', "sh"]


def answered(url: str) -> str:
    """What is answered with 200; "" otherwise."""
    with contextlib.suppress(urllib3.exceptions.HTTPError, OSError):
        reply = request("GET", url)
        return reply.body.decode() if reply.status == 200 else ""
    return ""


def test_an_authority_starts_and_reloads_where_its_log_takes_no_line(fixtures: Fixtures) -> None:
    port, health = free_port(), free_port()
    env = {"SENTINEL_DATABASE_URL": program_url(fixtures.url, AUTHORITY), "SENTINEL_SECRET_KEYS": SECRET,
           "SENTINEL_PORT": str(port), "SENTINEL_HEALTH_PORT": str(health)}  # fmt: skip
    process = subprocess.Popen(
        [*FULL, *module("sentinel.cli.main", "serve")], env=clean_env(**env), stdin=subprocess.DEVNULL
    )

    def reloads() -> float:
        assert process.poll() is None, "it ended"
        found = re.search(
            r'^sentinel_policy_reloads_total\{result="loaded"\} (\S+)',
            answered(f"http://127.0.0.1:{health}/metrics"),
            re.M,
        )
        return float(found[1]) if found else -1.0

    try:
        assert eventually(
            lambda: process.poll() is not None or answered(f"http://127.0.0.1:{health}/readyz"), within=30
        )
        before = reloads()
        process.send_signal(signal.SIGHUP)
        assert eventually(lambda: reloads() > before >= 0, within=30)
        assert eventually(lambda: answered(f"http://127.0.0.1:{health}/readyz"), within=30)
    finally:
        assert end(process, within=30) == 0


@pytest.mark.parametrize("where", ["/dev/full", "&-"])
def test_a_sender_starts_where_its_log_takes_no_line(fixtures: Fixtures, where: str) -> None:
    health = free_port()
    env = {"SENTINEL_EXPORT_DATABASE_URL": program_url(fixtures.url, EXPORTER), "SENTINEL_EXPORT_SECRETS": SECRET,
           "SENTINEL_EXPORT_HEALTH_PORT": str(health)}  # fmt: skip
    to_log = [*FULL[:2], FULL[2].replace("/dev/full", where), FULL[3]]
    process = subprocess.Popen(
        [*to_log, *module("sentinel.cli.main", "export")], env=clean_env(**env), stdin=subprocess.DEVNULL
    )
    try:
        found = eventually(
            lambda: process.poll() is not None or answered(f"http://127.0.0.1:{health}/readyz"), within=30
        )
        assert found and found is not True, "it ended"
    finally:
        assert end(process, within=30) == 0


@pytest.mark.parametrize(
    "begun", ["configure_logs('info')", "configure_logs('info'); buffer_log_lines(lambda write: write())"]
)
def test_a_line_that_cannot_be_written_raises_nothing(begun: str) -> None:
    code = (
        "import structlog\nfrom sentinel.platform.logs import buffer_log_lines, configure_logs, write_events\n"
        f"{begun}\nlog = structlog.get_logger()\n"
        "for _ in range(20_000): log.error('lost', why='x' * 50)\nwrite_events('lost', [{}] * 3)\nprint('done')"
    )
    done = subprocess.run(
        [*FULL, sys.executable, "-c", code], env=clean_env(), capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "done\n")
