"""A diagram generated from the code (`worker workflow draw`, `worker order-review lanes draw`) with the path taken
highlighted.

Nodes and edges of the SVG have ids ("at-…", "way-…"); highlighting adds a CSS class to the given ones, so no style is
written into the page. Names that are not in the diagram are ignored and never written into the page.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cache

from markupsafe import Markup, escape

from sentinel.platform.resources import drawing

WORKFLOW, LANES = "refund-workflow.svg", "order-lanes.svg"
_PART = re.compile(r'<g class="(at|way)" id="((?:at|way)-[^"]+)">(.*?)</g>', re.DOTALL)
_TOLD = re.compile(r'(<desc id="drawn-way">)(.*?)(</desc>)', re.DOTALL)


@cache
def _drawn(name: str) -> str:
    return drawing(name).read_text(encoding="utf-8")


def lit(name: str, *, places: Collection[str], ways: Collection[tuple[str, str]], end: str | None, told: str) -> Markup:
    """Return the diagram with the nodes `places` and the edges `ways` (from, to) highlighted, and `end` marked as the
    last node.

    `told` says the same in words; it replaces the diagram's description.
    """
    bright = {f"at-{place}" for place in places} | {f"way-{start}--{to}" for start, to in ways}

    def light(found: re.Match[str]) -> str:
        kind, part, inside = found.groups()
        if part not in bright:
            return found[0]
        classes = f"{kind} lit end" if part == f"at-{end}" else f"{kind} lit"
        return f'<g class="{classes}" id="{part}">{inside.replace("url(#tip)", "url(#tip-lit)")}</g>'

    drawn = _PART.sub(light, _drawn(name))
    # The diagram is our own file; only `told` has foreign text, and it is escaped.
    return Markup(_TOLD.sub(lambda found: f"{found[1]}{escape(told)}{found[3]}", drawn, count=1))  # noqa: S704
