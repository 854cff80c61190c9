"""One row for the budget of an owner."""

from sentinel.store.migrations import run_files

revision = "0028"
down_revision = "0027"


def upgrade() -> None:
    """Turn rows of usage into budgets with a slot for each limit."""
    run_files(revision)


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
