"""The drawings of the three tables (ledger states, refund workflow, order lanes), each as a Mermaid page and as an SVG.

Every box and arrow of an SVG is a group with a class and an id made of the names in the table (`at-…`, `way-…--…`), by
which the console highlights the path that a row or an order took.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TypeVar

import click

from worker.orders.lanes import FINAL, LaneState
from worker.orders.lanes import TRANSITIONS as LANE_TRANSITIONS
from worker.orders.lanes import WAITING as LANE_WAITING
from worker.orders.order import Lane, ReviewStatus
from worker.refunds.rows import CLAIMED, FAILED, TERMINAL, TRANSITIONS, WAITING, LedgerState
from worker.refunds.workflow.graph import FIRST, SUCCESSORS, StepName

_INK, _HIGHLIGHT, _FAINT = "#374151", "#1d4ed8", "#9ca3af"
S = TypeVar("S")

_SIDE_BY_SIDE = 10
"""How far two opposite arrows between the same boxes are shifted, each to its own right, in pixels."""


@dataclass(frozen=True, slots=True)
class Box:
    """A node; `x` and `y` are its centre, `below` is a second, fainter line of text."""

    x: int
    y: int
    text: str
    below: str = ""
    fill: str = "#ffffff"
    stroke_width: int = 1
    dashes: str = ""


@dataclass(frozen=True, slots=True)
class Arrow:
    """An arrow from box to box. Without a `path` (SVG path data) it is straight, its label beside its middle."""

    start: str
    end: str
    label: str = ""
    path: str = ""
    label_at: tuple[float, float] = (0.0, 0.0)
    ink: str = _INK
    dashes: str = ""


@dataclass(frozen=True, slots=True)
class Diagram:
    """A drawing. `name` is the files' name without suffix; `size`, and `half` the size of every box, are in pixels."""

    name: str
    title: str
    description: str
    made_by: str
    mermaid_lines: tuple[str, ...]
    size: tuple[int, int]
    half: tuple[int, int]
    boxes: Mapping[str, Box]
    arrows: tuple[Arrow, ...]

    def mermaid(self) -> str:
        """Render a Markdown page with the Mermaid diagram."""
        return "\n".join([f"# {self.title}", "", self.made_by, "", "```mermaid", *self.mermaid_lines, "```", ""])

    def svg(self) -> str:
        """Render the SVG."""
        arrows = "".join(map(self._arrow, self.arrows))
        boxes = "".join(self._box(name, box) for name, box in self.boxes.items())
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.size[0]} {self.size[1]}" role="img"'
            ' aria-labelledby="drawn" aria-describedby="drawn-way" font-family="system-ui, sans-serif" font-size="13">\n'
            f'<title id="drawn">{self.title}</title>\n<desc id="drawn-way">{self.description}</desc>\n'
            f"<defs>{_tip('tip', _INK, 8)}{_tip('tip-lit', _HIGHLIGHT, 4)}</defs>\n{arrows}{boxes}</svg>\n"
        )

    def write(self, folder: Path) -> list[Path]:
        """Write both files into `folder`; return their paths."""
        files = {folder / f"{self.name}.md": self.mermaid(), folder / f"{self.name}.svg": self.svg()}
        for file, text in files.items():
            file.write_text(text, encoding="utf-8")
        return list(files)

    def _box(self, name: str, box: Box) -> str:
        half_w, half_h = self.half
        dashes = f' stroke-dasharray="{box.dashes}"' if box.dashes else ""
        below = f'<text x="{box.x}" y="{box.y + 14}" text-anchor="middle" fill="#6b7280">{box.below}</text>'
        return (
            f'<g class="at" id="at-{name}"><rect x="{box.x - half_w}" y="{box.y - half_h}" width="{2 * half_w}"'
            f' height="{2 * half_h}" rx="8" fill="{box.fill}" stroke="{_INK}" stroke-width="{box.stroke_width}"{dashes}/>'
            f'<text x="{box.x}" y="{box.y + (0 if box.below else 5)}" text-anchor="middle" fill="#111827">{escape(box.text)}</text>'
            f"{below if box.below else ''}</g>\n"
        )

    def _arrow(self, arrow: Arrow) -> str:
        path, (x, y), anchor = (arrow.path, arrow.label_at, "middle") if arrow.path else self._straight(arrow)
        dashes = f' stroke-dasharray="{arrow.dashes}"' if arrow.dashes else ""
        # The label's white rim keeps it legible where arrows cross.
        label = (
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{_INK}" stroke="#ffffff" stroke-width="4"'
            f' paint-order="stroke">{escape(arrow.label)}</text>'
        )
        return (
            f'<g class="way" id="way-{arrow.start}--{arrow.end}"><path d="{path}" fill="none" stroke="{arrow.ink}"{dashes}'
            f' marker-end="url(#tip)"/>{label if arrow.label else ""}</g>\n'
        )

    def _straight(self, arrow: Arrow) -> tuple[str, tuple[float, float], str]:
        """(path data, position of the label, its text anchor): the label is beside a steep arrow, else above or below its middle."""
        start, end = self.boxes[arrow.start], self.boxes[arrow.end]
        dx, dy = end.x - start.x, end.y - start.y
        has_opposite = any(other.start == arrow.end and other.end == arrow.start for other in self.arrows)
        shift = _SIDE_BY_SIDE / (dx**2 + dy**2) ** 0.5 if has_opposite else 0.0
        off_x, off_y = -dy * shift, dx * shift
        (x1, y1), (x2, y2) = self._border(start, end), self._border(end, start)
        path = f"M{x1 + off_x:.1f} {y1 + off_y:.1f}L{x2 + off_x:.1f} {y2 + off_y:.1f}"
        x, y = (x1 + x2) / 2 + off_x, (y1 + y2) / 2 + off_y
        if abs(dx) >= abs(dy):
            return path, (x, y + (14 if off_y > 0 else -5)), "middle"
        return (path, (x - 6, y), "end") if off_x < 0 or dx < 0 else (path, (x + 6, y), "start")

    def _border(self, box: Box, towards: Box) -> tuple[float, float]:
        """The point where the line between two centres leaves the first box."""
        dx, dy = towards.x - box.x, towards.y - box.y
        scale = min(self.half[0] / abs(dx) if dx else 9e9, self.half[1] / abs(dy) if dy else 9e9)
        return box.x + dx * scale, box.y + dy * scale


def _tip(name: str, ink: str, size: int) -> str:
    return (
        f'<marker id="{name}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="{size}" markerHeight="{size}" orient="auto">'
        f'<path d="M0 0L10 5L0 10z" fill="{ink}"/></marker>'
    )


def _merged(steps: Iterable[tuple[S, str, S]]) -> dict[tuple[S, S], str]:
    """Join parallel steps: (start, end) → the events that lead from one to the other, as one label."""
    labels: dict[tuple[S, S], str] = {}
    for start, event, end in steps:
        labels[start, end] = f"{labels[start, end]}, {event}" if (start, end) in labels else event
    return labels


def ledger_states() -> Diagram:
    """The diagram of a ledger row's states (`refunds/rows.py`)."""
    places = {
        LedgerState.NEW: (110, 190), LedgerState.GUARDING: (390, 190), LedgerState.ALLOWED: (760, 190),
        LedgerState.EXECUTED: (1040, 190), LedgerState.APPROVAL_REQUIRED: (390, 50), LedgerState.DENIED: (150, 330),
        LedgerState.ERROR: (700, 330),
    }  # fmt: skip
    half = (88, 20)

    def fill(state: LedgerState) -> str:
        if state in TERMINAL | FAILED:
            return "#e5e7eb"
        if state in WAITING:
            return "#fde68a"
        return "#bfdbfe" if state in CLAIMED else "#ffffff"

    def arrow(start: LedgerState, end: LedgerState, label: str) -> Arrow:
        if start is not end:
            return Arrow(start, end, label)
        x, top = places[start][0] + half[0] - 50, places[start][1] - half[1]
        loop = f"M{x} {top}C{x} {top - 46} {x + 40} {top - 46} {x + 40} {top}"
        return Arrow(start, end, label, loop, (x + 76, top - 26))

    labels = _merged((start, str(event), end) for (start, event), end in TRANSITIONS.items())
    return Diagram(
        "ledger-states", "The states of a ledger row", "From a new row on the left to an executed one on the right.",
        "Made by `worker states draw` from `worker/refunds/rows.py`; a test keeps this page equal to it.",
        (
            "stateDiagram-v2", "    direction LR", f"    [*] --> {LedgerState.NEW}",
            *(f"    {state} --> {to}: {event}" for (state, event), to in TRANSITIONS.items()),
            *(f"    {state} --> [*]" for state in LedgerState if state in TERMINAL),
        ),
        (1150, 390), half, {state: Box(*places[state], state, fill=fill(state)) for state in LedgerState},
        tuple(arrow(start, end, label) for (start, end), label in labels.items()),
    )  # fmt: skip


def refund_workflow() -> Diagram:
    """The diagram of the refund workflow (`refunds/workflow/graph.py`): the steps downwards on the left, a person on the right."""
    person = StepName.TRANSFER_TO_HUMAN
    column = [step for step in StepName if step is not person]
    half, gap = (96, 17), 54
    places = {step: (216, 30 + n * gap) for n, step in enumerate(column)}
    places[person] = (520, places[StepName.GATE_COMMON][1] + 3 * gap)
    fills = {person: "#fde68a", StepName.ASK_AUTHORITY: "#bfdbfe", StepName.EXECUTE_BY_SYSTEM: "#bbf7d0"}

    def path(start: StepName, end: StepName) -> str:
        (x1, y1), (x2, y2) = places[start], places[end]
        if end is person:
            return f"M{x1 + half[0]} {y1}L{x2 - half[0]} {y2}"
        if start is person:
            return f"M{x1} {y1 + half[1]}L{x1} {y2}L{x2 + half[0]} {y2}"
        if y2 - y1 == gap:
            return f"M{x1} {y1 + half[1]}L{x2} {y2 - half[1]}"
        # An arrow that skips boxes, or leads back up, runs on their left, the further out the more it skips.
        side, out = x1 - half[0], min(110, 30 + 12 * abs(y2 - y1) // gap)
        return f"M{side} {y1}L{side - out} {y1}L{side - out} {y2}L{side} {y2}"

    steps = [(step, end) for step in StepName for end in sorted(SUCCESSORS[step], key=list(StepName).index)]
    return Diagram(
        "refund-workflow", "The refund workflow",
        "The steps from top to bottom; from every one but the last a way leads to a person.",
        "Made by `worker workflow draw` from `worker/refunds/workflow/graph.py`; a test keeps this page equal to it. Every step may"
        " also end the run for now: a row that waits, is refused, or is given up.",
        ("flowchart TD", *(f"    {start} --> {end}" for start, end in steps)),
        (624, 2 * 30 + (len(column) - 1) * gap), half,
        {step: Box(*places[step], step, fill=fills.get(step, "#ffffff")) for step in StepName},
        tuple(
            Arrow(start, end, path=path(start, end), ink=_FAINT if end is person else _INK, dashes="5 4" if end is FIRST else "")
            for start, end in steps
        ),
    )  # fmt: skip


_S = ReviewStatus
_LANE_X = {_S.RECEIVED: 80, _S.SCORED: 290, _S.DECIDED: 546, _S.QUEUED: 776, _S.STARTED: 1050, _S.FULFILLED: 1330,
           _S.HELD: 1330, _S.REFUND_FILED: 1330, _S.SHOP_REFUSED: 1050, _S.REFUND_REFUSED: 1050}  # fmt: skip
_LANE_Y = {Lane.LOW: 34, None: 302, Lane.MEDIUM: 302, Lane.HIGH: 570}
_LANE_BELOW = {_S.HELD: 84, _S.REFUND_FILED: 196, _S.SHOP_REFUSED: 112, _S.REFUND_REFUSED: 196}
_LANE_FILL = {None: "#ffffff", Lane.LOW: "#dcfce7", Lane.MEDIUM: "#fef3c7", Lane.HIGH: "#fee2e2"}


def order_lanes() -> Diagram:
    """The diagram of an order's lanes (`orders/lanes.py`), one row per lane."""
    half = (76, 22)

    def name(at: LaneState) -> str:
        return f"{at.lane or 'none'}-{at.status}"

    def mermaid_name(at: LaneState) -> str:
        return f"{at.lane}_{at.status}" if at.lane else str(at.status)

    def box(at: LaneState) -> Box:
        y = _LANE_Y[at.lane] + (_LANE_BELOW.get(at.status, 0) if at.lane else 0)
        return Box(
            _LANE_X[at.status], y, at.status, at.lane or "", _LANE_FILL[at.lane], 3 if at.status in FINAL else 1,
            "5 3" if at.status in LANE_WAITING else "",
        )  # fmt: skip

    def arrow(start: LaneState, end: LaneState, label: str) -> Arrow:
        if (start.status, end.status) == (_S.QUEUED, _S.REFUND_FILED):
            # Run below the boxes in between, which wait for a person.
            x1, x2, low = box(start).x, box(end).x, box(end).y + half[1]
            under = f"M{x1} {box(start).y + half[1]}L{x1} {low + 24}L{x2} {low + 24}L{x2} {low}"
            return Arrow(name(start), name(end), label, under, (x1 + 60, low + 19))
        if start.status != end.status or {start.lane, end.lane} != {Lane.LOW, Lane.HIGH}:
            return Arrow(name(start), name(end), label)
        # Run around the lane between the two.
        side, y1, y2 = box(start).x + half[0], box(start).y, box(end).y
        around = f"M{side} {y1}L{side + 22} {y1}L{side + 22} {y2}L{side} {y2}"
        return Arrow(name(start), name(end), label, around, (side + 22, (y1 + y2) // 2 + 70))

    places = list(dict.fromkeys(each for (start, _), end in LANE_TRANSITIONS.items() for each in (start, end)))
    labels = _merged((start, str(event), end) for (start, event), end in LANE_TRANSITIONS.items())
    return Diagram(
        "order-lanes", "The lanes of an order", "From left to right; one row per lane, low above, high below.",
        "Made by `worker order-review lanes draw` from `worker/orders/lanes.py`; a test keeps this page equal to it. From the"
        " high lane, and from a denial in any lane, nothing leads to FULFILLED.",
        (
            "stateDiagram-v2", "    direction LR", f"    [*] --> {mermaid_name(LaneState(None, _S.RECEIVED))}",
            *(f"    {mermaid_name(a)} --> {mermaid_name(b)}: {event}" for (a, event), b in LANE_TRANSITIONS.items()),
            *(f"    {mermaid_name(each)} --> [*]" for each in places if each.status in FINAL),
        ),
        (1410, 684), half, {name(at): box(at) for at in places},
        tuple(arrow(start, end, label) for (start, end), label in labels.items()),
    )  # fmt: skip


def draw_command(what: str, diagram: Callable[[], Diagram]) -> click.Command:
    """Make the command `draw`, which writes the files of a diagram."""

    @click.command("draw", help=f"Write the drawing of {what} (Mermaid and SVG) into a folder.")
    @click.option(
        "--folder",
        type=click.Path(path_type=Path, file_okay=False, exists=True),
        default=Path("deploy"),
        show_default=True,
    )
    def draw(folder: Path) -> None:
        for file in diagram().write(folder):
            click.echo(str(file))

    return draw


@click.group()
def states() -> None:
    """The table of a row's states."""


states.add_command(draw_command("the states", ledger_states))
