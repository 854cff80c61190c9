"""Small charts of the last hour, from the console's samples, with the current value at their end.

A chart is a line and the area under it, drawn on the server, so it needs no scripts. Where no samples were taken for a
while it has a gap. The text beside it says the same for people who cannot see it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ops_console.read_models.gauges import HOUR_SECONDS, Sample

WIDTH, HEIGHT = 240, 40
BOX = f"0 0 {WIDTH} {HEIGHT}"
"""The SVG `viewBox` of the paths."""
_TOP = 3
_GAP_SECONDS = 90.0
_LEAST_SECONDS = 180
Point = tuple[float, float]
"""(seconds ago, the value measured then)."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """`line` and `area` are SVG paths within `BOX`; `most` is the highest value drawn."""

    line: str
    area: str
    most: float


@dataclass(frozen=True, slots=True)
class Gauge:
    """One gauge of the overview: its current value in words, the address of the page about it, and its chart."""

    name: str
    address: str
    now: str
    about: str
    most: str
    drawing: Drawing


def seconds_drawn(samples: Sequence[Sample]) -> int:
    """How many seconds back the charts go: an hour, or to the first sample if there is less, but three minutes at least."""
    oldest = max((one.seconds_ago for one in samples), default=0.0)
    # With samples of a whole hour, the oldest one may still be some seconds younger than an hour.
    return HOUR_SECONDS if oldest > HOUR_SECONDS - _GAP_SECONDS else max(round(oldest), _LEAST_SECONDS)


def drawn(
    samples: Sequence[Sample], value: Callable[[Sample], float | None], *, now: float | None, least_top: float
) -> Drawing:
    """Draw the values of the samples, oldest first, and the current value `now`, if it is known.

    The full height stands for the highest value, but at least for `least_top`, so that a small value does not look like
    a peak.
    """
    points = [(one.seconds_ago, found) for one in samples if (found := value(one)) is not None]
    if now is not None or not points:
        points.append((0.0, now or 0.0))
    most = max(measured for _, measured in points)
    top, width = max(most, least_top), seconds_drawn(samples)
    runs = [[_place(ago / width, measured / top) for ago, measured in run] for run in _runs(points)]
    return Drawing("".join(map(_line, runs)), "".join(map(_area, runs)), most)


def _runs(points: Sequence[Point]) -> Iterator[list[Point]]:
    """Split the points into runs without a gap."""
    run = [points[0]]
    for point in points[1:]:
        if run[-1][0] - point[0] > _GAP_SECONDS:
            yield run
            run = []
        run.append(point)
    yield run


def _place(ago: float, high: float) -> tuple[float, float]:
    """Return the coordinates in the box of a share of its width, from the right, and of its height, from the bottom."""
    return WIDTH * (1 - min(ago, 1)), HEIGHT - (HEIGHT - _TOP) * high


def _line(run: Sequence[tuple[float, float]]) -> str:
    """Return the SVG path of a run. A single point becomes a short stroke, so that it is visible."""
    (x, y), *rest = run
    return f"M{x:.1f} {y:.1f}" + ("".join(f"L{x:.1f} {y:.1f}" for x, y in rest) or f"h{-2 if x > 2 else 2}")


def _area(run: Sequence[tuple[float, float]]) -> str:
    return f"M{run[0][0]:.1f} {HEIGHT}" + "".join(f"L{x:.1f} {y:.1f}" for x, y in run) + f"V{HEIGHT}Z"
