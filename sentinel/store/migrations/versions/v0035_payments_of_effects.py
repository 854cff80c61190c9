"""The payment that an effect is asked of is kept with its record; a payment that its settlement system does not know is a finding."""

from sentinel.store.migrations import run_files

revision = "0035"
down_revision = "0034"


def upgrade() -> None:
    """Add the column; what is on record at Stripe gets the payment that its order names."""
    run_files(revision)


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
