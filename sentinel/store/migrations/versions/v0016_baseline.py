"""The baseline: the whole schema as it was at the first release. An empty database is made from `schema/` instead."""

from sentinel.store.migrations import run_files

revision = "0016"
down_revision = None


def upgrade() -> None:
    """Make everything but the functions' bodies."""
    run_files(revision)


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from the baseline; restore a backup instead.")
