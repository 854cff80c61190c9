"""The payment that an effect was begun with is kept with its record; a payment that its settlement system does not know is a finding."""

from sentinel.store.migrations import run_files

revision = "0035"
down_revision = "0034"


def upgrade() -> None:
    """Add an empty column; an effect that was begun before takes its order's payment at its next try, once."""
    run_files(revision)


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
