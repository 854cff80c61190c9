"""A run as one picture: decisions a second by connections, and what one costs, beside the rivals'. Plain SVG."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

Figures = Mapping[str, list[float]]

WIDTH, HEIGHT = 880, 350
TOP, FLOOR = 70, 320
INK, FAINT = "#374151", "#d1d5db"
GROUPS = (1, 8, 32, 128)
SERIES = (
    ("guard", "sentinel, durable", "#1d4ed8"),
    ("Cerbos", "Cerbos, not durable", "#d97706"),
    ("minimal", "pgbench, smallest durable guard", "#6b7280"),
)
PROGRAMS = (
    ("authority", "authority", "#1d4ed8"),
    ("Cerbos", "Cerbos", "#d97706"),
    ("PostgreSQL", "PostgreSQL", "#0f766e"),
)


def chart(figures: Figures) -> str | None:
    """The picture; None where a rival was not measured."""
    wanted = [f"{name} {group}" for name, _, _ in SERIES for group in GROUPS]
    if not all(name in figures for name in wanted):
        return None
    said = ", ".join(f"{name} {statistics.median(figures[name]):,.0f}" for name in wanted)
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="t" aria-describedby="d" font-family="system-ui, sans-serif" font-size="12" fill="{INK}">',
        '<title id="t">Decisions a second, and what one costs</title>',
        f'<desc id="d">Decisions a second by connections: {said}.</desc>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        *_rates(figures), *_costs(figures),
        "</svg>", "",
    ])  # fmt: skip


def _rates(figures: Figures) -> list[str]:
    left, right = 70, 540
    most = _round_up(max(max(figures[f"{name} {group}"]) for name, _, _ in SERIES for group in GROUPS))
    lines = [
        _text(left - 40, 24, "Decisions a second, by connections", bold=True),
        *_legend(left - 40, 44, [(label, colour) for _, label, colour in SERIES], 170),
        *_grid(left, right, most),
    ]
    step = (right - left) / len(GROUPS)
    for place, group in enumerate(GROUPS):
        start = left + place * step + 14
        width = (step - 28) / len(SERIES)
        lines.append(_text(left + (place + 0.5) * step, FLOOR + 18, str(group), "middle"))
        for number, (name, _, colour) in enumerate(SERIES):
            values = figures[f"{name} {group}"]
            x = start + number * width
            lines.append(_bar(x, width - 3, 0, statistics.median(values), most, colour))
            middle = x + (width - 3) / 2
            lines.append(
                f'<path d="M{middle:.1f} {_y(min(values), most):.1f}V{_y(max(values), most):.1f}" stroke="{INK}" stroke-width="1"/>'
            )
    return lines


def _costs(figures: Figures) -> list[str]:
    left, right = 650, 860
    stacks = [("sentinel", "guard 32"), ("Cerbos", "Cerbos 32"), ("pgbench", "minimal 32")]
    cost = {
        (name, program): statistics.median(figures.get(f"{name} {program} µs", [0.0]))
        for _, name in stacks
        for program, _, _ in PROGRAMS
    }
    most = _round_up(max(sum(cost[name, program] for program, _, _ in PROGRAMS) for _, name in stacks))
    lines = [
        _text(left - 40, 24, "CPU a decision at 32, µs", bold=True),
        *_legend(left - 40, 44, [(label, colour) for _, label, colour in PROGRAMS], 85),
        *_grid(left, right, most),
    ]
    step = (right - left) / len(stacks)
    for place, (label, name) in enumerate(stacks):
        below = 0.0
        for program, _, colour in PROGRAMS:
            if cost[name, program]:
                lines.append(
                    _bar(left + place * step + 12, step - 24, below, below + cost[name, program], most, colour)
                )
                below += cost[name, program]
        middle = left + (place + 0.5) * step
        lines += [
            _text(middle, _y(below, most) - 5, f"{below:,.0f}", "middle"),
            _text(middle, FLOOR + 18, label, "middle"),
        ]
    return lines


def _grid(left: float, right: float, most: float) -> list[str]:
    lines = []
    for part in range(5):
        value = most * part / 4
        y = _y(value, most)
        lines.append(f'<path d="M{left} {y:.1f}H{right}" stroke="{FAINT}" stroke-width="1"/>')
        lines.append(_text(left - 6, y + 4, f"{value:,.0f}", "end"))
    return lines


def _legend(left: float, y: float, entries: list[tuple[str, str]], apart: float) -> list[str]:
    lines = []
    for place, (label, colour) in enumerate(entries):
        x = left + place * apart
        lines.append(f'<rect x="{x:.1f}" y="{y - 9}" width="10" height="10" fill="{colour}"/>')
        lines.append(_text(x + 14, y, label))
    return lines


def _bar(x: float, width: float, low: float, high: float, most: float, colour: str) -> str:
    top = _y(high, most)
    return f'<rect x="{x:.1f}" y="{top:.1f}" width="{width:.1f}" height="{_y(low, most) - top:.1f}" fill="{colour}"/>'


def _y(value: float, most: float) -> float:
    return FLOOR - (FLOOR - TOP) * value / most


def _text(x: float, y: float, text: str, anchor: str = "start", *, bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{weight}>{text}</text>'


def _round_up(value: float) -> float:
    """The next number that four lines divide nicely."""
    step = 10 ** (len(str(int(value))) - 1) / 2
    return (int(value / step) + 1) * step
