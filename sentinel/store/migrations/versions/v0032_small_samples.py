"""The planner looks at 3,000 rows of a table."""

from sentinel.store.migrations import run_files

revision = "0032"
down_revision = "0031"


def upgrade() -> None:
    """Set the statistics target of every column and every computed index column."""
    run_files(revision)


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
