"""Tasks that are polled and cancelled in inconvenient orders."""

from __future__ import annotations

import json

from tests.adapters.proxy_processes import run_beside_proxy


def test_a_cancelled_task_stays_so_and_polls_at_once_agree() -> None:
    done = run_beside_proxy("-m", "tests.adapters.task_polls")
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == {
        "later": ["cancelled", "completed", "completed", "cancelled"], "still there": True,
        "refused between polls": ["working", "working", "completed", "completed", "cancelled"],
        "two polls of a refused call": ["working", "working"], "cancelled before it was refused": ["cancelled", "cancelled"],
        "asked again": ["cancelled"], "cancelled while it was asked": ["cancelled", "cancelled"],
        "cancelled before it was sent, connecting": ["cancelled", "cancelled"],
        "cancelled before it was sent, unguarded": ["cancelled", "cancelled"],
        "cancelled after it was sent": ["completed", "completed"],
        "shared room": [4, 2, 1],
        "one too many": ["Too many cancelled tasks; this task is not cancelled", "completed"],
        "started": ["other", "third", "waits", "sent", "full"],
        "calls": ["other", "third", "waits", "sent", "full"],
    }  # fmt: skip
