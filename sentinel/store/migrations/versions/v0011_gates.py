"""Gates: what went wrong takes a new report."""

from pathlib import Path

from alembic import op

revision = "0011"
down_revision = "0010"

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Run the file."""
    op.get_bind().exec_driver_sql((_SQL / "0011_gates.sql").read_text().replace("%", "%%"))


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
