"""The drawing of the lanes, made from the table in `lanes.py`: Mermaid text and a plain SVG.

Every standing and every way in the SVG is a group with a class and an id made of lane and status (`at-…`, `way-…--…`), by
which the console lights the way that an order took.
"""

from __future__ import annotations

from pathlib import Path

from worker.order_review.lanes import FINAL, TRANSITIONS, WAITING, Standing
from worker.order_review.model import Lane, ReviewStatus

MERMAID_FILE, SVG_FILE = "order-lanes.md", "order-lanes.svg"
_S = ReviewStatus
_COLUMNS = {_S.RECEIVED: 80, _S.SCORED: 290, _S.DECIDED: 546, _S.QUEUED: 776, _S.STARTED: 1016, _S.FULFILLED: 1240,
            _S.HELD: 1240, _S.REFUND_FILED: 1240, _S.SHOP_REFUSED: 1016, _S.REFUND_REFUSED: 1016}  # fmt: skip
_ROWS = {Lane.LOW: 34, None: 302, Lane.MEDIUM: 302, Lane.HIGH: 570}
_BELOW = {_S.HELD: 84, _S.REFUND_FILED: 196, _S.SHOP_REFUSED: 112, _S.REFUND_REFUSED: 196}
_WIDTH, _HEIGHT, _HALF_W, _HALF_H = 1320, 684, 76, 22
_LANE_FILL = {None: "#ffffff", Lane.LOW: "#dcfce7", Lane.MEDIUM: "#fef3c7", Lane.HIGH: "#fee2e2"}
_INK, _LIT = "#374151", "#1d4ed8"


def draw_mermaid() -> str:
    """A page with a Mermaid state diagram."""
    lines = [
        "# The lanes of an order",
        "",
        "Made by `worker order-review lanes draw` from `worker/order_review/lanes.py`; a test keeps this page equal to it. From the"
        " high lane, and from a denial in any lane, nothing leads to FULFILLED.",
        "",
        "```mermaid",
        "stateDiagram-v2",
        "    direction LR",
        f"    [*] --> {_name(Standing(None, _S.RECEIVED))}",
        *(f"    {_name(start)} --> {_name(to)}: {event}" for (start, event), to in TRANSITIONS.items()),
        *(f"    {_name(each)} --> [*]" for each in _standings() if each.status in FINAL),
        "```",
        "",
    ]
    return "\n".join(lines)


def draw_svg() -> str:
    """The same as a picture: one row per lane."""
    arrows = "".join(_arrow(start, to, label) for (start, to), label in _labels().items())
    boxes = "".join(map(_box, _standings()))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-labelledby="drawn"'
        ' aria-describedby="drawn-way" font-family="system-ui, sans-serif" font-size="13">\n'
        '<title id="drawn">The lanes of an order</title>\n'
        '<desc id="drawn-way">From left to right; one row per lane, low above, high below.</desc>\n'
        f"<defs>{_tip('tip', _INK, 8)}{_tip('tip-lit', _LIT, 4)}</defs>\n{arrows}{boxes}</svg>\n"
    )


def write_drawings(folder: Path) -> list[Path]:
    """Write both into `folder`; returns the files."""
    files = {folder / MERMAID_FILE: draw_mermaid(), folder / SVG_FILE: draw_svg()}
    for file, text in files.items():
        file.write_text(text, encoding="utf-8")
    return list(files)


def _standings() -> list[Standing]:
    found = {each: None for (start, _), to in TRANSITIONS.items() for each in (start, to)}
    return list(found)


def _tip(name: str, ink: str, size: int) -> str:
    return (
        f'<marker id="{name}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="{size}" markerHeight="{size}" orient="auto">'
        f'<path d="M0 0L10 5L0 10z" fill="{ink}"/></marker>'
    )


def _id(standing: Standing) -> str:
    return f"{standing.lane or 'none'}-{standing.status}"


def _name(standing: Standing) -> str:
    return f"{standing.lane}_{standing.status}" if standing.lane else str(standing.status)


def _labels() -> dict[tuple[Standing, Standing], str]:
    found: dict[tuple[Standing, Standing], str] = {}
    for (start, event), to in TRANSITIONS.items():
        found[start, to] = f"{found[start, to]}, {event}" if (start, to) in found else str(event)
    return found


def _place(standing: Standing) -> tuple[int, int]:
    return _COLUMNS[standing.status], _ROWS[standing.lane] + (_BELOW.get(standing.status, 0) if standing.lane else 0)


def _box(standing: Standing) -> str:
    x, y = _place(standing)
    width = 3 if standing.status in FINAL else 1
    dashes = ' stroke-dasharray="5 3"' if standing.status in WAITING else ""
    lane = (
        f'<text x="{x}" y="{y + 14}" text-anchor="middle" fill="#6b7280">{standing.lane}</text>'
        if standing.lane
        else ""
    )
    return (
        f'<g class="at" id="at-{_id(standing)}"><rect x="{x - _HALF_W}" y="{y - _HALF_H}" width="{2 * _HALF_W}" height="{2 * _HALF_H}" rx="8"'
        f' fill="{_LANE_FILL[standing.lane]}" stroke="{_INK}" stroke-width="{width}"{dashes}/>'
        f'<text x="{x}" y="{y + (0 if lane else 5)}" text-anchor="middle" fill="#111827">{standing.status}</text>{lane}</g>\n'
    )


def _arrow(start: Standing, to: Standing, label: str) -> str:
    (x1, y1), (x2, y2) = _place(start), _place(to)
    if start.status == to.status and {start.lane, to.lane} == {Lane.LOW, Lane.HIGH}:
        # Around the lane between them.
        side = x1 + _HALF_W
        course = f"M{side} {y1}L{side + 22} {y1}L{side + 22} {y2}L{side} {y2}"
        return _way(start, to, course, label, (side + 22, (y1 + y2) // 2 + 70))
    back = (to, start) in _labels()
    shift = (8 if x1 < x2 or y1 < y2 else -8) if back else 0
    from_x, from_y = _edge(x1, y1, x2, y2)
    to_x, to_y = _edge(x2, y2, x1, y1)
    course = f"M{from_x:.1f} {from_y + shift:.1f}L{to_x:.1f} {to_y + shift:.1f}"
    below = shift + 14 if shift > 0 else shift - 5
    return _way(start, to, course, label, ((from_x + to_x) / 2, (from_y + to_y) / 2 + below))


def _way(start: Standing, to: Standing, course: str, label: str, label_at: tuple[float, float]) -> str:
    # The label's rim keeps it legible where ways cross.
    return (
        f'<g class="way" id="way-{_id(start)}--{_id(to)}"><path d="{course}" fill="none" stroke="{_INK}" marker-end="url(#tip)"/>'
        f'<text x="{label_at[0]:.1f}" y="{label_at[1]:.1f}" text-anchor="middle" fill="{_INK}" stroke="#ffffff" stroke-width="4"'
        f' paint-order="stroke">{label}</text></g>\n'
    )


def _edge(x1: int, y1: int, x2: int, y2: int) -> tuple[float, float]:
    """Where the line from the first centre to the second leaves the first box."""
    dx, dy = x2 - x1, y2 - y1
    scale = min(_HALF_W / abs(dx) if dx else 9e9, _HALF_H / abs(dy) if dy else 9e9)
    return x1 + dx * scale, y1 + dy * scale
