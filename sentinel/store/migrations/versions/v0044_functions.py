"""Who holds an account that an administrator changed, when it is confirmed, what can be collected, what decides; all of it is functions."""

revision = "0044"
down_revision = "0043"


def upgrade() -> None:
    """No table changes; a program of this version does not start on a database with the earlier functions."""


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
