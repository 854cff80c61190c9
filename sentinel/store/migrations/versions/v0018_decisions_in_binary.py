"""Decisions arrive in binary, and totals leave the index of what permits hold."""

from sentinel.store.migrations import run_files

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    """Make the types of a batch, and the indexes of budgets."""
    run_files(revision)


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
