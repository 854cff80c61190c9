"""Patterns of a ledger entry without counted repetition."""

from sentinel.store.migrations import run_files

revision = "0030"
down_revision = "0029"


def upgrade() -> None:
    """Write the checks that every update of an entry walks as lengths and classes."""
    run_files(revision)


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
