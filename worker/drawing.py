"""The drawing of the ledger's states, made from the table in `states.py`: Mermaid text and a plain SVG."""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

from worker.states import CLAIMED, FAILED, TERMINAL, TRANSITIONS, WAITING, LedgerState

MERMAID_FILE, SVG_FILE = "ledger-states.md", "ledger-states.svg"

_PLACES = {
    LedgerState.NEW: (110, 190),
    LedgerState.GUARDING: (390, 190),
    LedgerState.ALLOWED: (760, 190),
    LedgerState.EXECUTED: (1040, 190),
    LedgerState.APPROVAL_REQUIRED: (390, 50),
    LedgerState.DENIED: (230, 330),
    LedgerState.ERROR: (550, 330),
}
_WIDTH, _HEIGHT, _HALF_W, _HALF_H, _GAP = 1150, 390, 88, 20, 11
_FILL = {"terminal": "#e5e7eb", "waiting": "#fde68a", "claimed": "#bfdbfe", "free": "#ffffff"}


def draw_mermaid() -> str:
    """A page with a Mermaid state diagram."""
    lines = [
        "# The states of a ledger row",
        "",
        "Made by `worker states draw` from `worker/states.py`; a test keeps this page equal to it.",
        "",
        "```mermaid",
        "stateDiagram-v2",
        "    direction LR",
        f"    [*] --> {LedgerState.NEW}",
        *(f"    {state} --> {to}: {event}" for (state, event), to in TRANSITIONS.items()),
        *(f"    {state} --> [*]" for state in LedgerState if state in TERMINAL),
        "```",
        "",
    ]
    return "\n".join(lines)


def draw_svg() -> str:
    """The same as a picture."""
    arrows = "".join(
        _self_arrow(start, label) if start is end else _arrow(start, end, label)
        for (start, end), label in _labels().items()
    )
    boxes = "".join(_box(state) for state in LedgerState)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"'
        ' font-family="system-ui, sans-serif" font-size="13">\n'
        "<title>The states of a ledger row</title>\n"
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0L10 5L0 10z" fill="#374151"/></marker></defs>\n'
        f"{arrows}{boxes}</svg>\n"
    )


def write_drawings(folder: Path) -> list[Path]:
    """Write both into `folder`; returns the files."""
    files = {folder / MERMAID_FILE: draw_mermaid(), folder / SVG_FILE: draw_svg()}
    for file, text in files.items():
        file.write_text(text, encoding="utf-8")
    return list(files)


def _labels() -> dict[tuple[LedgerState, LedgerState], str]:
    found: dict[tuple[LedgerState, LedgerState], str] = {}
    for (start, event), end in TRANSITIONS.items():
        found[start, end] = f"{found[start, end]}, {event}" if (start, end) in found else str(event)
    return found


def _kind(state: LedgerState) -> str:
    if state in TERMINAL | FAILED:
        return "terminal"
    if state in WAITING:
        return "waiting"
    return "claimed" if state in CLAIMED else "free"


def _box(state: LedgerState) -> str:
    x, y = _PLACES[state]
    return (
        f'<rect x="{x - _HALF_W}" y="{y - _HALF_H}" width="{2 * _HALF_W}" height="{2 * _HALF_H}" rx="8"'
        f' fill="{_FILL[_kind(state)]}" stroke="#374151"/>'
        f'<text x="{x}" y="{y + 5}" text-anchor="middle" fill="#111827">{escape(state)}</text>\n'
    )


def _arrow(start: LedgerState, end: LedgerState, label: str) -> str:
    (x1, y1), (x2, y2) = _PLACES[start], _PLACES[end]
    length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
    # Two arrows between the same boxes run side by side, each shifted to its own right.
    off_x, off_y = -(y2 - y1) / length * _GAP, (x2 - x1) / length * _GAP
    if (end, start) not in _labels():
        off_x = off_y = 0.0
    from_x, from_y = _edge(x1, y1, x2, y2)
    to_x, to_y = _edge(x2, y2, x1, y1)
    text_x = (from_x + to_x) / 2 + off_x * 1.6
    text_y = (from_y + to_y) / 2 + off_y * 1.6 + (4 if off_y > 0 else -2)
    anchor = "middle" if abs(x2 - x1) > abs(y2 - y1) else ("end" if off_x < 0 or x2 < x1 else "start")
    return (
        f'<line x1="{from_x + off_x:.1f}" y1="{from_y + off_y:.1f}" x2="{to_x + off_x:.1f}" y2="{to_y + off_y:.1f}"'
        ' stroke="#374151" marker-end="url(#tip)"/>'
        f'<text x="{text_x:.1f}" y="{text_y:.1f}" text-anchor="{anchor}" fill="#374151">{escape(label)}</text>\n'
    )


def _self_arrow(state: LedgerState, label: str) -> str:
    x, y = _PLACES[state]
    left, top, right = x + _HALF_W - 50, y - _HALF_H, x + _HALF_W - 10
    return (
        f'<path d="M{left} {top}C{left} {top - 46} {right} {top - 46} {right} {top}" fill="none" stroke="#374151"'
        ' marker-end="url(#tip)"/>'
        f'<text x="{right + 4}" y="{top - 26}" fill="#374151">{escape(label)}</text>\n'
    )


def _edge(x1: int, y1: int, x2: int, y2: int) -> tuple[float, float]:
    """Where the line from the first centre to the second leaves the first box."""
    dx, dy = x2 - x1, y2 - y1
    scale = min(_HALF_W / abs(dx) if dx else 9e9, _HALF_H / abs(dy) if dy else 9e9)
    return x1 + dx * scale, y1 + dy * scale
