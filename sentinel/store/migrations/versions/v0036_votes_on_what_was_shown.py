"""A person's decision is about the state that was shown (new signatures); decided approvals have indexes, keys count their open questions."""

from sentinel.store.migrations import run_files

revision = "0036"
down_revision = "0035"


def upgrade() -> None:
    """Drop the old signatures, add the column, its constraint and trigger, and the indexes, and mend the ledger's rows that ended before."""
    run_files(revision)


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
