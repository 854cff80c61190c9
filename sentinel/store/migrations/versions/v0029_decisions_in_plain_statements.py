"""Less to begin for each decision."""

from sentinel.store.migrations import run_files

revision = "0029"
down_revision = "0028"


def upgrade() -> None:
    """Replace the checks of states by domains and one check, and the sums of limits by sums of budgets."""
    run_files(revision)


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
