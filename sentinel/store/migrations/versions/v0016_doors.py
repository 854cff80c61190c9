"""The doors: roles, operators, throttles, identifiers of the public; functions stand in `schema/`."""

from pathlib import Path

from alembic import op

revision = "0016"
down_revision = "0015"

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Run the files 0016_*.sql, one per subject, in the order of their names."""
    for file in sorted(_SQL.glob("0016_*.sql")):
        op.get_bind().exec_driver_sql(file.read_text().replace("%", "%%"))


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
