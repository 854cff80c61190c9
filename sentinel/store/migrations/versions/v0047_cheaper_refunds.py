"""Fewer index entries and moves from page to page for each refund; functions that changed come with the schema files."""

from sentinel.store.migrations import run_files

revision = "0047"
down_revision = "0046"


def upgrade() -> None:
    """Change them."""
    run_files(revision)


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
