"""Starts and reports in sets."""

from sentinel.store.migrations import run_files

revision = "0027"
down_revision = "0026"


def upgrade() -> None:
    """Make the type of an operation and its state."""
    run_files(revision)


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
