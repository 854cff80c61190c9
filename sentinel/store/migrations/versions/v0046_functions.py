"""Functions alone: what is dated after what came before it where the clock was set back, and holds that were put off without a call.

They come with the schema files, as in every migration.
"""

revision = "0046"
down_revision = "0045"


def upgrade() -> None:
    """No table changes; a program of this version does not start on a database with the earlier functions."""


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
