"""Keys: when each was last used; known browsers end."""

from pathlib import Path

from alembic import op

revision = "0006"
down_revision = "0005"

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Run the file."""
    op.get_bind().exec_driver_sql((_SQL / "0006_keys.sql").read_text().replace("%", "%%"))


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
