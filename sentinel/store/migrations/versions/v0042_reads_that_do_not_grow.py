"""Indexes for what was read in full."""

from sentinel.store.migrations import run_files

revision = "0042"
down_revision = "0041"


def upgrade() -> None:
    """Make them, some in place of others."""
    run_files(revision)


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
