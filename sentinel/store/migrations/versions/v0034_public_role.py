"""The public's listener has a role of its own; it comes with deploy/roles.sql, which is run after every migration."""

revision = "0034"
down_revision = "0033"


def upgrade() -> None:
    """No table changes; a program of this version does not start on a database without the role."""


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
