"""`sentinel gates run` whose replay is forked from it with everything imported, where a replay's start is not the claim.

`python -m tests.support.forked_replay …` in place of `python -m sentinel.cli.main …`, as a `WarmProcess`. The imports are a third of
what a run of few cases takes.
"""

from __future__ import annotations

import atexit
import os
import subprocess
from types import SimpleNamespace
from typing import Any

from sentinel.cli import gates, main
from tests.support.warm_process import become

PROGRAM = "tests.support.forked_replay"


class ForkedReplay(subprocess.Popen[bytes]):
    """`Popen([python, "-m", module])` with an `env`, standard input and output piped, and this process's standard error."""

    def _execute_child(self, args: list[str], *rest: Any) -> None:
        env, (p2cread, p2cwrite, c2pread, c2pwrite) = rest[5], rest[9:13]
        self.pid = os.fork()
        if not self.pid:
            os.close(p2cwrite)
            os.close(c2pread)
            atexit._clear()  # what the process that was forked does at its end is its own
            become({"argv": args[1:], "env": dict(env)}, [p2cread, c2pwrite])
        self._child_created = True
        os.close(p2cread)
        os.close(c2pwrite)


if __name__ == "__main__":
    gates.subprocess = SimpleNamespace(  # type: ignore[attr-defined]
        Popen=ForkedReplay, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired
    )
    main.main()
