"""The authority as it would be without committing many guards together: the `sentinel` command with batches of one row.

python -m tests.bench.row_by_row serve --port 7860
"""

from __future__ import annotations

from sentinel.cli.main import main
from sentinel.store.batch_commit import BatchCommitter

COMMITTERS = (BatchCommitter,)


def commit_each_row_alone() -> None:
    """From now on every commit of this process and of its forks takes one row. Raises `SystemExit` where that cannot be said."""
    for committer in COMMITTERS:
        if "most" not in (defaults := committer.__init__.__kwdefaults__):
            raise SystemExit(
                f"{committer.__name__} has no `most` any more: say here how its batches are made one row long"
            )
        defaults["most"] = 1


if __name__ == "__main__":
    commit_each_row_alone()
    main()
