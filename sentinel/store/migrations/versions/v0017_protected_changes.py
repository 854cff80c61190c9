"""What gives somebody power waits for a second administrator."""

from sentinel.store.migrations import run_files

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    """Add the protected changes, and who shut an account out."""
    run_files(revision)


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
