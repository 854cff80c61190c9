"""Dead letters that nobody wants any more are put away; receivers of a setting end with it; what one agent asked, has decided or due, has an index."""

from sentinel.store.migrations import run_files

revision = "0037"
down_revision = "0036"


def upgrade() -> None:
    """Add who put a letter away, when and why, which the index of open letters leaves out, when a receiver of a setting was served,
    and the indexes."""
    run_files(revision)


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
