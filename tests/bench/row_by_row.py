"""The authority as it would be without committing many guards together: the `sentinel` command with batches of one row.

python -m tests.bench.row_by_row serve --port 7860
"""

from __future__ import annotations

from sentinel.cli.main import main
from sentinel.store.group_commit import GroupCommit


def commit_each_row_alone() -> None:
    """From now on every commit of this process and of its forks takes one row. Raises `SystemExit` where there is no such limit."""
    defaults = GroupCommit.__init__.__kwdefaults__
    if "most" not in defaults:
        raise SystemExit("GroupCommit has no `most` any more: say here how its batches are made one row long")
    defaults["most"] = 1


if __name__ == "__main__":
    commit_each_row_alone()
    main()
