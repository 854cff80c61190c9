"""The authority as it would be without committing many guards together: the `sentinel` command with batches of one row.

python -m tests.bench.row_by_row serve --port 7860
"""

from __future__ import annotations

import importlib
import importlib.util

from sentinel.cli.main import main

COMMITTERS = ("sentinel.store.group_commit:GroupCommit", "sentinel.store.batch_commit:BatchCommitter")


def committers() -> list[type]:
    """Those of `COMMITTERS` that there are."""
    found = [name.partition(":") for name in COMMITTERS if importlib.util.find_spec(name.partition(":")[0])]
    return [getattr(importlib.import_module(module), committer) for module, _, committer in found]


def commit_each_row_alone() -> None:
    """From now on every commit of this process and of its forks takes one row. Raises `SystemExit` where that cannot be said."""
    for committer in committers():
        if "most" not in (defaults := committer.__init__.__kwdefaults__):
            raise SystemExit(
                f"{committer.__name__} has no `most` any more: say here how its batches are made one row long"
            )
        defaults["most"] = 1


if __name__ == "__main__":
    commit_each_row_alone()
    main()
