"""Control of accounts, what can be collected and decides, budgets held again, parts' windows, "not executed" for every key; indexes.

The functions come with the schema files, as in every migration.
"""

from sentinel.store.migrations import run_files

revision = "0044"
down_revision = "0043"


def upgrade() -> None:
    """Create the indexes."""
    run_files(revision)


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
