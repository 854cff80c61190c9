"""Names that an engineer would search for: keys at a limit, an analyst's decision, resolutions of doubts."""

from sentinel.store.migrations import run_files

revision = "0038"
down_revision = "0037"


def upgrade() -> None:
    """Rename the table of keys at a limit, and drop the functions whose parameters have other names now."""
    run_files(revision)


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
