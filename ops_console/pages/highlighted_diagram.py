"""A diagram generated from the code (`worker workflow draw`, `worker order-review lanes draw`) with the path taken
highlighted.

Nodes and edges of the SVG have ids ("at-…", "way-…"); highlighting adds a CSS class to the given ones, so no style is
written into the page. Names that are not in the diagram are ignored and never written into the page.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from markupsafe import Markup, escape

from sentinel.platform.resources import drawing

WORKFLOW, LANES = "refund-workflow.svg", "order-lanes.svg"
_GROUP = re.compile(r'<g class="(at|way)" id="((?:at|way)-[^"]+)">(.*?)</g>', re.DOTALL)
_DESCRIPTION = re.compile(r'(<desc id="drawn-way">)(.*?)(</desc>)', re.DOTALL)


@dataclass(frozen=True, slots=True)
class PathTaken:
    """One run's path through the workflow, or an order's through its lanes: its nodes, its edges (from, to), the last node,
    and the same as a sentence.
    """

    nodes: tuple[str, ...]
    edges: tuple[tuple[str, str], ...]
    last: str | None
    description: str


@cache
def _drawn(name: str) -> str:
    return drawing(name).read_text(encoding="utf-8")


def highlight(name: str, path: PathTaken) -> Markup:
    """Return the diagram with the path's nodes and edges highlighted, and its last node marked.

    The path's description replaces the diagram's own.
    """
    highlighted = {f"at-{node}" for node in path.nodes} | {f"way-{start}--{to}" for start, to in path.edges}

    def light(found: re.Match[str]) -> str:
        kind, part, inside = found.groups()
        if part not in highlighted:
            return found[0]
        classes = f"{kind} lit end" if part == f"at-{path.last}" else f"{kind} lit"
        return f'<g class="{classes}" id="{part}">{inside.replace("url(#tip)", "url(#tip-lit)")}</g>'

    drawn = _GROUP.sub(light, _drawn(name))
    # The diagram is our own file; only the description has foreign text, and it is escaped.
    return Markup(_DESCRIPTION.sub(lambda found: f"{found[1]}{escape(path.description)}{found[3]}", drawn, count=1))  # noqa: S704
