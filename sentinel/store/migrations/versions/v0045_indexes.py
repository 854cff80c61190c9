"""Indexes by tenant and by agent, for pages that read the rows of others too; functions that changed come with the schema files."""

from sentinel.store.migrations import run_files

revision = "0045"
down_revision = "0044"


def upgrade() -> None:
    """Make them."""
    run_files(revision)


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
