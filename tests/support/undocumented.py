"""Routes of an app that say nothing to its OpenAPI document."""

from __future__ import annotations

from flask import Flask


def undocumented_routes(app: Flask, *, pages: str = "") -> list[str]:
    """Routes without documentation. Those of the blueprint `pages` are for people, not programs."""
    return [
        str(rule)
        for rule in app.url_map.iter_rules()
        if rule.endpoint.rpartition(".")[2] != "static"
        and not (pages and rule.endpoint.startswith(pages + "."))
        and not hasattr(app.view_functions[rule.endpoint], "documentation")
    ]
