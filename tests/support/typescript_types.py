"""The TypeScript client's types of the wire, from the authority's OpenAPI document: `python -m tests.support.typescript_types make | check`.

openapi-typescript writes them. The file's head has the digest of what it was made from, so that a stale one is found without Node.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from sentinel.authority.app import PREFIXES, create_app
from sentinel.authority.settings import Settings
from sentinel.platform.http.rate_limit import SharedRateLimit
from tests.support.adapter_environments import NotInstalled
from tests.support.node import CLIENT, client_modules, run_node

TYPES = CLIENT / "src" / "openapi.ts"
_GENERATOR = "openapi-typescript"


def document() -> dict[str, Any]:
    """The authority's OpenAPI document, of the routes that agents call, under their first prefix."""
    # The routes alone make the document: nothing is asked of a database.
    edge = create_app(Settings(), MagicMock(), SharedRateLimit(per_second=1, burst=1))
    whole = json.loads(edge.flask.test_client().get("/openapi.json").data)
    paths = {path: item for path, item in whole["paths"].items() if path.startswith(f"{PREFIXES[0]}/")}
    schemas = whole["components"]["schemas"]
    used = dict(sorted((name, schemas[name]) for name in _named_by(paths, schemas)))
    return {"openapi": whole["openapi"], "info": whole["info"], "paths": paths, "components": {"schemas": used}}


def _named_by(part: Any, schemas: dict[str, Any]) -> set[str]:
    """The schemas that a part of the document refers to, and those that they refer to."""
    found: set[str] = set()
    waiting = [part]
    while waiting:
        names = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(waiting.pop()))) - found
        found |= names
        waiting += [schemas[name] for name in names]
    return found


def head() -> str:
    """The first line of the file: what it is made from."""
    told = {name: part for name, part in document().items() if name != "info"}
    locked = json.loads((CLIENT / "package-lock.json").read_text())["packages"][f"node_modules/{_GENERATOR}"]
    digest = hashlib.sha256(json.dumps([told, locked["version"]], sort_keys=True).encode()).hexdigest()
    return f"// Made by `make docs` from the authority's OpenAPI document. sha256:{digest}\n"


def render() -> str:
    """The whole file. Raises `NotInstalled` without Node or its packages."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "openapi.json").write_text(json.dumps(document()))
        program = str(client_modules() / _GENERATOR / "bin" / "cli.js")
        done = run_node("node", program, f"{folder}/openapi.json", "--output", f"{folder}/out.ts", folder=CLIENT)
        assert done.returncode == 0, done.stderr
        return head() + (Path(folder) / "out.ts").read_text()


def main(what: str) -> int:
    """Exit code 0, 1 where the file is stale, or 3 with the reason where there is no Node to make it. What was made from the same document is not made again."""
    is_fresh = TYPES.exists() and TYPES.read_text().startswith(head())
    if what == "make" and not is_fresh:
        try:
            TYPES.write_text(render())
        except NotInstalled as error:
            print(f"Error: {error}", file=sys.stderr)
            return 3
        is_fresh = True
    if not is_fresh:
        print(f"Error: {TYPES.relative_to(CLIENT.parents[1])} is stale; run make docs", file=sys.stderr)
    return 0 if is_fresh else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
