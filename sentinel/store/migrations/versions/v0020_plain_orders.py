"""Plain orders are taken with their score, and shipped, as sets."""

from sentinel.store.migrations import run_files

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    """Let a review begin as SCORED and an effect as done, under their triggers."""
    run_files(revision)


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
