"""The steps that the trails of one batch have in common are stored once; functions that changed come with the schema files."""

from sentinel.store.migrations import run_files

revision = "0049"
down_revision = "0048"


def upgrade() -> None:
    """Change them."""
    run_files(revision)


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
