"""How things stood, for the drawings of the last hour on the overview."""

from pathlib import Path

from alembic import op

revision = "0014"
down_revision = "0013"

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Run the file."""
    op.get_bind().exec_driver_sql((_SQL / "0014_gauge_samples.sql").read_text().replace("%", "%%"))


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
