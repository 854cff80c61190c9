"""Order review: reviews in lanes, deliveries, effects in the shop, alerts, and the analysts' side of it."""

from pathlib import Path

from alembic import op

revision = "0003"
down_revision = "0002"

_SQL = Path(__file__).parent.parent / "sql"
_FILES = ("0003_orders.sql", "0003_orders_console.sql", "0003_orders_functions.sql")


def upgrade() -> None:
    """Run the files in order."""
    for name in _FILES:
        op.get_bind().exec_driver_sql((_SQL / name).read_text().replace("%", "%%"))


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
