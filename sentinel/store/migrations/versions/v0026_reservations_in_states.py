"""Reservations in the states of their operations."""

from sentinel.store.migrations import run_files

revision = "0026"
down_revision = "0025"


def upgrade() -> None:
    """Move what permits reserve."""
    run_files(revision)


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
