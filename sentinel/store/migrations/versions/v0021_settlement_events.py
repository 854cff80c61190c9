"""Payments of orders, and what settlement systems tell about refunds afterwards."""

from sentinel.store.migrations import run_files

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    """Add the payment of an order and the table of events."""
    run_files(revision)


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
