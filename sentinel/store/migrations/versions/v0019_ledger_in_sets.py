"""The ledger moves its rows in sets: what every move paid for is paid where it is needed."""

from sentinel.store.migrations import run_files

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    """Leave what every update changes out of the indexes."""
    run_files(revision)


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
