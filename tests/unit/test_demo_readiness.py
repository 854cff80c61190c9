"""A program of the demo that does not come up: its own refusal is passed on."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from sentinel.demo.processes import DemoFailed, wait_ready


class Ended:
    """Stands for the child processes: the console has ended."""

    def ended(self) -> str:
        return "console"


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ("starting\nError: port 7861 is already in use\n\n", ", which ends: Error: port 7861 is already in use"),
        ("", ""),
        (None, ""),
    ],
)
def test_the_last_line_of_its_log_is_told(tmp_path: Path, log: str | None, told: str) -> None:
    file = tmp_path / "console.log"
    if log is not None:
        file.write_text(log)
    with pytest.raises(DemoFailed) as caught:
        wait_ready(Ended(), {"console": ["http://127.0.0.1:1/readyz"]}, tmp_path, threading.Event())  # type: ignore[arg-type]
    assert str(caught.value) == f"console ended at once; see {file}{told}"
