"""What decisions share once, and rows that name it by its number."""

from sentinel.store.migrations import run_files

revision = "0031"
down_revision = "0030"


def upgrade() -> None:
    """Make events and operations views over narrower rows; what was decided before keeps its texts whole."""
    run_files(revision)


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
