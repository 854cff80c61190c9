"""The drawing of the workflow's graph, made from `graph.py`: Mermaid text and a plain SVG.

Every step and every way in the SVG is a group with a class and an id made of the steps' names (`at-…`, `way-…--…`), by which
the console lights the way that a row took.
"""

from __future__ import annotations

from pathlib import Path

from worker.workflow.graph import FIRST, SUCCESSORS, StepName

MERMAID_FILE, SVG_FILE = "refund-workflow.md", "refund-workflow.svg"

_PERSON = StepName.TRANSFER_TO_HUMAN
_COLUMN = tuple(step for step in StepName if step is not _PERSON)
_X, _PERSON_X, _STEP_Y, _TOP = 216, 520, 54, 30
_HALF_W, _HALF_H = 96, 17
_INK, _LIT = "#374151", "#1d4ed8"
_FILL = {_PERSON: "#fde68a", StepName.ASK_AUTHORITY: "#bfdbfe", StepName.EXECUTE_BY_SYSTEM: "#bbf7d0"}


def draw_mermaid() -> str:
    """A page with a Mermaid flow chart."""
    arrows = [f"    {step} --> {following}" for step in StepName for following in _following(step)]
    return "\n".join([
        "# The refund workflow", "",
        "Made by `worker workflow draw` from `worker/workflow/graph.py`; a test keeps this page equal to it. Every step may"
        " also end the run for now: a row that waits, is refused, or is given up.", "",
        "```mermaid", "flowchart TD", *arrows, "```", "",
    ])  # fmt: skip


def draw_svg() -> str:
    """The same as a picture: the way down on the left, the way to a person on the right."""
    places = {step: (_X, _TOP + n * _STEP_Y) for n, step in enumerate(_COLUMN)}
    middle = places[StepName.GATE_COMMON][1] + 3 * _STEP_Y
    places[_PERSON] = (_PERSON_X, middle)
    height = 2 * _TOP + (len(_COLUMN) - 1) * _STEP_Y
    arrows = "".join(_arrow(places, step, following) for step in StepName for following in _following(step))
    boxes = "".join(_box(step, *places[step]) for step in StepName)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_PERSON_X + _HALF_W + 8} {height}" role="img"'
        ' aria-labelledby="drawn" aria-describedby="drawn-way" font-family="system-ui, sans-serif" font-size="14">\n'
        '<title id="drawn">The refund workflow</title>\n'
        '<desc id="drawn-way">The steps from top to bottom; from every one but the last a way leads to a person.</desc>\n'
        f"<defs>{_tip('tip', _INK, 8)}{_tip('tip-lit', _LIT, 4)}</defs>\n{arrows}{boxes}</svg>\n"
    )


def write_drawings(folder: Path) -> list[Path]:
    """Write both into `folder`; returns the files."""
    files = {folder / MERMAID_FILE: draw_mermaid(), folder / SVG_FILE: draw_svg()}
    for file, text in files.items():
        file.write_text(text, encoding="utf-8")
    return list(files)


def _following(step: StepName) -> list[StepName]:
    return sorted(SUCCESSORS[step], key=list(StepName).index)


def _tip(name: str, ink: str, size: int) -> str:
    return (
        f'<marker id="{name}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="{size}" markerHeight="{size}" orient="auto">'
        f'<path d="M0 0L10 5L0 10z" fill="{ink}"/></marker>'
    )


def _box(step: StepName, x: int, y: int) -> str:
    return (
        f'<g class="at" id="at-{step}"><rect x="{x - _HALF_W}" y="{y - _HALF_H}" width="{2 * _HALF_W}" height="{2 * _HALF_H}" rx="8"'
        f' fill="{_FILL.get(step, "#ffffff")}" stroke="{_INK}"/>'
        f'<text x="{x}" y="{y + 5}" text-anchor="middle" fill="#111827">{step}</text></g>\n'
    )


def _arrow(places: dict[StepName, tuple[int, int]], start: StepName, end: StepName) -> str:
    dashes = ' stroke-dasharray="5 4"' if end is FIRST else ""
    ink = "#9ca3af" if end is _PERSON else _INK
    return (
        f'<g class="way" id="way-{start}--{end}"><path d="{_course(places, start, end)}" fill="none" stroke="{ink}"{dashes}'
        ' marker-end="url(#tip)"/></g>\n'
    )


def _course(places: dict[StepName, tuple[int, int]], start: StepName, end: StepName) -> str:
    (x1, y1), (x2, y2) = places[start], places[end]
    if end is _PERSON:
        return f"M{x1 + _HALF_W} {y1}L{x2 - _HALF_W} {y2}"
    if start is _PERSON:
        return f"M{x1} {y1 + _HALF_H}L{x1} {y2}L{x2 + _HALF_W} {y2}"
    if y2 - y1 == _STEP_Y:
        return f"M{x1} {y1 + _HALF_H}L{x2} {y2 - _HALF_H}"
    # Past other boxes, or back to the start, along the left; the further the longer its way out.
    out = min(110, 30 + 12 * abs(y2 - y1) // _STEP_Y)
    side = x1 - _HALF_W
    return f"M{side} {y1}L{side - out} {y1}L{side - out} {y2}L{side} {y2}"
