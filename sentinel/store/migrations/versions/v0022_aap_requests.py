"""Requests of the Agent Approval Protocol."""

from sentinel.store.migrations import run_files

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    """Add the table of requests."""
    run_files(revision)


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
