"""A drawing of the code's own (`worker workflow draw`, `worker order-review lanes draw`) with the way that was taken lit.

The drawing names each place and each way by an id; lighting puts a class on those that are asked for, so that no style is
written into the page. Names that the drawing does not have light nothing; nothing of theirs is written.
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
    """The drawing with `places` and `ways` (from, to) lit and `end`, where it stands, marked. `told` says the same in words."""
    bright = {f"at-{place}" for place in places} | {f"way-{start}--{to}" for start, to in ways}

    def light(found: re.Match[str]) -> str:
        kind, part, inside = found.groups()
        if part not in bright:
            return found[0]
        classes = f"{kind} lit end" if part == f"at-{end}" else f"{kind} lit"
        return f'<g class="{classes}" id="{part}">{inside.replace("url(#tip)", "url(#tip-lit)")}</g>'

    drawn = _PART.sub(light, _drawn(name))
    # Our own drawing, made from our own table; what comes from outside is only `told`, and escaped.
    return Markup(_TOLD.sub(lambda found: f"{found[1]}{escape(told)}{found[3]}", drawn, count=1))  # noqa: S704
