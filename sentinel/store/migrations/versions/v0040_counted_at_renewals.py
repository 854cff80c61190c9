"""When velocity breakers counted an operation again at its renewals, and how far the sequencer is with what was restored."""

from sentinel.store.migrations import run_files

revision = "0040"
down_revision = "0039"


def upgrade() -> None:
    """Add the columns of both, and drop the functions whose parameters or results are others now."""
    run_files(revision)


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
