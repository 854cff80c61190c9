"""Writes the baseline migration from the schema's present text, and prints where. Run it only to make a new baseline.

`python -m tests.support.baseline`: what stands in `sentinel/store/schema/`, without comments and without the functions' bodies,
for which `sentinel migrate` puts their present text whatever the revision. From then on the file never changes (a test
holds its digest): what changes in `schema/` needs a migration beside it (docs/decisions/0046-one-present-schema.md).
"""

from __future__ import annotations

import re
import sys

from sentinel.store.migrate import BASELINE, FUNCTION, HEAD, SCHEMA, schema_text
from tests.support.old_databases import SCRIPTS

FILE = SCRIPTS / "sql" / f"{BASELINE}_baseline.sql"
_HEAD = """-- The schema as it was at revision {revision}, written from schema/ once. It never changes: what is now stands in schema/.
-- Functions are here by name, parameters and result alone.
set local check_function_bodies = off;

"""


def baseline() -> str:
    """The text of the baseline migration; alembic makes the table of revisions itself."""
    text = schema_text().replace((SCHEMA / "version.sql").read_text(), "")
    text = FUNCTION.sub(lambda found: re.sub(r"\$\$.*\$\$;$", "$$ $$;", found[0], flags=re.DOTALL), text)
    text = re.sub(r"[ \t]*--(?: .*)?$", "", text, flags=re.MULTILINE)
    return _HEAD.format(revision=BASELINE) + re.sub(r"\n{2,}", "\n", text).lstrip("\n")


if __name__ == "__main__":
    if HEAD != BASELINE:
        sys.exit("Error: there are migrations after the baseline; take them away and set BASELINE to HEAD first")
    FILE.write_text(baseline())
    print(FILE)
