"""Functions alone: whose hands an account is in once its owner approved that another was shown a new password.

They come with the schema files, as in every migration.
"""

revision = "0048"
down_revision = "0047"


def upgrade() -> None:
    """No table changes; a program of this version does not start on a database with the earlier functions."""


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
