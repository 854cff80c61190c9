"""Tables, types and triggers have names that are searched for."""

from sentinel.store.migrations import run_files

revision = "0024"
down_revision = "0023"


def upgrade() -> None:
    """Rename them."""
    run_files(revision)


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
