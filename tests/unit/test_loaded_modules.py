"""What a start does not load: a command waits for its imports every time."""

from __future__ import annotations

import subprocess
import sys

import pytest

SERVING = ("flask", "werkzeug", "apispec")
LOGGING = ("structlog", "rich", "zxcvbn")


@pytest.mark.parametrize(
    ("program", "unwanted"),
    [
        ("sentinel.cli.keys", (*SERVING, *LOGGING)),
        ("sentinel.cli.halts", (*SERVING, *LOGGING)),
        ("worker.retail_refund_agent", SERVING),
        ("worker.cli", (*SERVING, *LOGGING, "psycopg")),
        ("ops_console.app", ("requests", "zxcvbn")),
    ],
)
def test_what_serves_no_http_does_not_load_what_serving_needs(program: str, unwanted: tuple[str, ...]) -> None:
    code = f"import sys, {program}; print(*sorted({set(unwanted)!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []
