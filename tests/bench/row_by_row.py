"""The authority as it would be without committing many guards together: the `sentinel` command with batches of one row.

python -m tests.bench.row_by_row serve --port 7860
"""

from __future__ import annotations

import importlib
import importlib.util

from sentinel.cli.main import main

COMMITTERS = ("sentinel.store.group_commit:GroupCommit", "sentinel.store.batch_commit:BatchCommitter")


def commit_each_row_alone() -> None:
    """From now on every commit of this process and of its forks takes one row. Raises `SystemExit` where that cannot be said."""
    for name in COMMITTERS:
        module, _, committer = name.partition(":")
        if importlib.util.find_spec(module):
            defaults = getattr(importlib.import_module(module), committer).__init__.__kwdefaults__
            if "most" not in defaults:
                raise SystemExit(f"{committer} has no `most` any more: say here how its batches are made one row long")
            defaults["most"] = 1


if __name__ == "__main__":
    commit_each_row_alone()
    main()
