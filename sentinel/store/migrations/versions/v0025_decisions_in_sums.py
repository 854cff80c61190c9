"""Batches with their sums."""

from sentinel.store.migrations import run_files

revision = "0025"
down_revision = "0024"


def upgrade() -> None:
    """Make the row types that a batch arrives in."""
    run_files(revision)


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
