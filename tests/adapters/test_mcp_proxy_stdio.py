"""A server that the proxy starts as a process, and the agents that share it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.adapters.proxy_processes import run_beside_proxy


def test_a_process_that_is_silent_while_it_acts_is_not_ended_for_others(tmp_path: Path) -> None:
    done = run_beside_proxy("-m", "tests.adapters.busy_server", str(tmp_path / "notes"))
    assert done.returncode == 0, done.stderr[-3000:]
    worked = "done: create_refund"
    assert json.loads(done.stdout) == {
        "first": worked, "meanwhile": ["unavailable: Busy"] * 2, "done": worked, "after": worked,
        # Whose call took too long waits no more, so the process may be ended for the next one.
        "lost": "MCPError -32001", "again": worked, "effects": ["warm", "acting", "after", "lost", "again"],
        # Who gives up leaves no process behind that nobody knows: the next one gets it.
        "given up": {
            "starting": [worked, {"started": 1, "running": 1}], "replaced": [worked, {"started": 2, "running": 1}], "closed": 0,
            "does not start": "unavailable: MCPError -32000",
        },
        # An error is an answer: the process is neither ended for the next call nor taken for busy.
        "lists nothing": [worked, worked, worked, 1],
    }  # fmt: skip
