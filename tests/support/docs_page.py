"""The documentation page of any of the programs, without a browser."""

from __future__ import annotations

import re
from typing import Any


def require_docs_page(client: Any, *, home: str | None = None) -> None:
    """`client` (Flask's) shows its API's document as a page, with all that the page needs, and nothing from elsewhere.

    The address alone leads to `home`, or is no page.
    """
    first = client.get("/")
    assert (first.status_code, first.headers.get("Location")) == ((302, home) if home else (404, None))
    page = client.get("/docs")
    assert page.status_code == 200
    assert page.headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self';")
    assert "unsafe" not in page.headers["Content-Security-Policy"]
    needed = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert {name.rpartition("/")[2] for name in needed} >= {
        "swagger-ui-bundle.js",
        "swagger-ui.css",
        "docs.js",
        "openapi.json",
    }
    for name in needed:
        with client.get(f"/{name}") as given:
            assert given.status_code == 200, name
