"""Receivers of events, how far each is, and dead letters."""

from sentinel.store.migrations import run_files

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    """Add the receivers and the dead letters."""
    run_files(revision)


def downgrade() -> None:
    """What was promised to a receiver is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
