"""A person's word is about the state that was shown: functions that take it have new signatures, and decided approvals two indexes."""

from sentinel.store.migrations import run_files

revision = "0036"
down_revision = "0035"


def upgrade() -> None:
    """Drop the old signatures, and add the indexes."""
    run_files(revision)


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
