"""The refund workflow: what its gates look at, a person's third verdict, switches, confirm cards, effects and wrong executions."""

from pathlib import Path

from alembic import op

revision = "0002"
down_revision = "0001"

_SQL = Path(__file__).parent.parent / "sql"
_FILES = (
    "0002_workflow.sql",
    "0002_guard.sql",
    "0002_switches.sql",
    "0002_confirmations.sql",
    "0002_effects.sql",
    "0002_reconcile.sql",
)


def upgrade() -> None:
    """Run the files in order."""
    for name in _FILES:
        op.get_bind().exec_driver_sql((_SQL / name).read_text().replace("%", "%%"))


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
