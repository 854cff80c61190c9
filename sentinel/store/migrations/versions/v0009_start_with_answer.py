"""A start with the answer: a permission is redeemed in the commit that gives it."""

from pathlib import Path

from alembic import op

revision = "0009"
down_revision = "0008"

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Run the file."""
    op.get_bind().exec_driver_sql((_SQL / "0009_start_with_answer.sql").read_text().replace("%", "%%"))


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
