"""An order's budget, final answers, bound approvals, and what goes with them: the tables; functions stand in `schema/`."""

from pathlib import Path

from alembic import op

revision = "0015"
down_revision = "0014"

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Run the files 0015_*.sql, one per subject, in the order of their names."""
    for file in sorted(_SQL.glob("0015_*.sql")):
        op.get_bind().exec_driver_sql(file.read_text().replace("%", "%%"))


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
