"""`python -m sentinel.store.embedded FOLDER`: delete the embedded server of a data folder; for `make clean`."""

from __future__ import annotations

import sys
from pathlib import Path

from sentinel.core.errors import SentinelError
from sentinel.store.embedded import remove

if __name__ == "__main__":
    try:
        remove(Path(sys.argv[1]))
    except SentinelError as error:
        sys.exit(f"Error: {error.detail}")
