"""Operators are deactivated, dead letters and reports discarded: columns, constraints and functions by these names."""

from sentinel.store.migrations import run_files

revision = "0043"
down_revision = "0042"


def upgrade() -> None:
    """Rename them."""
    run_files(revision)


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
