"""The trace and span that a guard came from are kept with its decision."""

from sentinel.store.migrations import run_files

revision = "0033"
down_revision = "0032"


def upgrade() -> None:
    """Add an empty column; what was decided before names no trace."""
    run_files(revision)


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
