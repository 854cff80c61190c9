"""Functions alone: control of accounts, what can be collected and decides, budgets held again, parts' windows, "not executed" for every key, attempts at a shop.

They come with the schema files, as in every migration.
"""

revision = "0044"
down_revision = "0043"


def upgrade() -> None:
    """No table changes; a program of this version does not start on a database with the earlier functions."""


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
