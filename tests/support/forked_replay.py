"""`sentinel gates run` whose replay is forked from it with everything imported, where a replay's start is not the claim.

`python -m tests.support.forked_replay …` in place of `python -m sentinel.cli.main …`, as a `WarmProcess`. The imports are a third of
what a run of few cases takes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from types import SimpleNamespace
from typing import Any, NoReturn

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
            _run({"argv": args[1:], "env": dict(env)}, [p2cread, c2pwrite])
        self._child_created = True
        os.close(p2cread)
        os.close(c2pwrite)


def _run(request: dict[str, Any], pipes: list[int]) -> NoReturn:
    """Run the command and end with its exit status: nothing of the process that was forked may be done a second time."""
    status: Any = 1
    try:
        become(request, pipes)
    except SystemExit as ended:
        status = ended.code or 0
    except BaseException:
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    gates.subprocess = SimpleNamespace(  # type: ignore[attr-defined]
        Popen=ForkedReplay, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired
    )
    main.main()
