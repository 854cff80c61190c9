"""An order's vote may name the approval that was shown; a replay takes its own time."""

from sentinel.store.migrations import run_files

revision = "0041"
down_revision = "0040"


def upgrade() -> None:
    """Drop the functions whose parameters are others now."""
    run_files(revision)


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
