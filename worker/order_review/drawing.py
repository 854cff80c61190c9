"""The drawing of the lanes, made from the table in `lanes.py`: Mermaid text and a plain SVG."""

from __future__ import annotations

from pathlib import Path

from worker.order_review.lanes import FINAL, TRANSITIONS, WAITING, Standing
from worker.order_review.model import Lane, ReviewStatus

MERMAID_FILE, SVG_FILE = "order-lanes.md", "order-lanes.svg"
_S = ReviewStatus
_COLUMNS = {_S.RECEIVED: 90, _S.SCORED: 270, _S.DECIDED: 470, _S.QUEUED: 670, _S.STARTED: 890, _S.FULFILLED: 1110,
            _S.HELD: 1110, _S.REFUND_FILED: 1110}  # fmt: skip
_ROWS = {Lane.LOW: 90, None: 300, Lane.MEDIUM: 300, Lane.HIGH: 540}
_BELOW = {_S.HELD: 70, _S.REFUND_FILED: 140}
_WIDTH, _HEIGHT, _HALF_W, _HALF_H = 1210, 620, 72, 22
_LANE_FILL = {None: "#ffffff", Lane.LOW: "#dcfce7", Lane.MEDIUM: "#fef3c7", Lane.HIGH: "#fee2e2"}
_INK = "#374151"


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
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"'
        ' font-family="system-ui, sans-serif" font-size="12">\n<title>The lanes of an order</title>\n'
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto">'
        f'<path d="M0 0L10 5L0 10z" fill="{_INK}"/></marker></defs>\n{arrows}{boxes}</svg>\n'
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
        f'<rect x="{x - _HALF_W}" y="{y - _HALF_H}" width="{2 * _HALF_W}" height="{2 * _HALF_H}" rx="8"'
        f' fill="{_LANE_FILL[standing.lane]}" stroke="{_INK}" stroke-width="{width}"{dashes}/>'
        f'<text x="{x}" y="{y + (0 if lane else 5)}" text-anchor="middle" fill="#111827">{standing.status}</text>{lane}\n'
    )


def _arrow(start: Standing, to: Standing, label: str) -> str:
    (x1, y1), (x2, y2) = _place(start), _place(to)
    back = (to, start) in _labels()
    shift = (8 if x1 < x2 or y1 < y2 else -8) if back else 0
    from_x, from_y = _edge(x1, y1, x2, y2)
    to_x, to_y = _edge(x2, y2, x1, y1)
    middle_x, middle_y = (from_x + to_x) / 2, (from_y + to_y) / 2 - 4 + (shift * 1.7 if back else 0)
    return (
        f'<line x1="{from_x:.1f}" y1="{from_y + shift:.1f}" x2="{to_x:.1f}" y2="{to_y + shift:.1f}" stroke="{_INK}"'
        f' marker-end="url(#tip)"/><text x="{middle_x:.1f}" y="{middle_y:.1f}" text-anchor="middle" fill="{_INK}">{label}</text>\n'
    )


def _edge(x1: int, y1: int, x2: int, y2: int) -> tuple[float, float]:
    """Where the line from the first centre to the second leaves the first box."""
    dx, dy = x2 - x1, y2 - y1
    scale = min(_HALF_W / abs(dx) if dx else 9e9, _HALF_H / abs(dy) if dy else 9e9)
    return x1 + dx * scale, y1 + dy * scale
