"""What was begun in an outside system is not denied."""

from sentinel.store.migrations import run_files

revision = "0039"
down_revision = "0038"


def upgrade() -> None:
    """Have the trigger look at every entry that is denied."""
    run_files(revision)


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
