"""A server that the proxy starts as a process, and the agents that share it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.adapters.proxy_processes import python_of
from tests.support.adapter_environments import REPO, environment_variables


def test_a_process_that_is_silent_while_it_acts_is_not_ended_for_others(tmp_path: Path) -> None:
    command = [python_of("mcp_proxy"), "-m", "tests.adapters.busy_server", str(tmp_path / "notes")]
    done = subprocess.run(command, cwd=REPO, env=environment_variables(), capture_output=True, text=True, timeout=120, check=False)  # fmt: skip
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
    }  # fmt: skip
