"""Small drawings of how things stood over the last hour, from the console's samples, with how they stand now at their end.

A drawing is a line and the area under it, made on the server: it is there without scripts. Where nobody measured for a
while it has a gap. What it shows is said in words beside it, for those who do not see it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ops_console.read_models.gauges import HOUR_SECONDS, Sample

WIDTH, HEIGHT = 240, 40
BOX = f"0 0 {WIDTH} {HEIGHT}"
"""What the paths are drawn in, as an SVG's `viewBox`."""
_TOP = 3
_GAP_SECONDS = 90.0
_LEAST_SECONDS = 180
Point = tuple[float, float]
"""Seconds ago, and what was measured then."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """`line` and `area` are SVG paths within `BOX`; `most` is the highest value drawn."""

    line: str
    area: str
    most: float


@dataclass(frozen=True, slots=True)
class Gauge:
    """One thing that is watched: how it stands, in words, where one sees more of it, and its drawing."""

    name: str
    address: str
    now: str
    about: str
    most: str
    drawing: Drawing


def seconds_drawn(samples: Sequence[Sample]) -> int:
    """How far back the drawings go: the hour, or while there is less, back to the first sample, and three minutes at least."""
    oldest = max((one.seconds_ago for one in samples), default=0.0)
    # The first sample of a whole hour may be a few seconds younger than the hour is.
    return HOUR_SECONDS if oldest > HOUR_SECONDS - _GAP_SECONDS else max(round(oldest), _LEAST_SECONDS)


def drawn(
    samples: Sequence[Sample], value: Callable[[Sample], float | None], *, now: float | None, least_top: float
) -> Drawing:
    """The values over `seconds_drawn`, oldest first, and `now`, if it is known.

    A value of `least_top` at least fills the height: a trifle is no peak.
    """
    points = [(one.seconds_ago, found) for one in samples if (found := value(one)) is not None]
    if now is not None or not points:
        points.append((0.0, now or 0.0))
    most = max(measured for _, measured in points)
    top, width = max(most, least_top), seconds_drawn(samples)
    runs = [[_place(ago / width, measured / top) for ago, measured in run] for run in _runs(points)]
    return Drawing("".join(map(_line, runs)), "".join(map(_area, runs)), most)


def _runs(points: Sequence[Point]) -> Iterator[list[Point]]:
    """The points in stretches without a gap."""
    run = [points[0]]
    for point in points[1:]:
        if run[-1][0] - point[0] > _GAP_SECONDS:
            yield run
            run = []
        run.append(point)
    yield run


def _place(ago: float, high: float) -> tuple[float, float]:
    """Where a share of the width, from the right, and of the height is in the box."""
    return WIDTH * (1 - min(ago, 1)), HEIGHT - (HEIGHT - _TOP) * high


def _line(run: Sequence[tuple[float, float]]) -> str:
    """A moment alone is a short stroke, so that it can be seen."""
    (x, y), *rest = run
    return f"M{x:.1f} {y:.1f}" + ("".join(f"L{x:.1f} {y:.1f}" for x, y in rest) or f"h{-2 if x > 2 else 2}")


def _area(run: Sequence[tuple[float, float]]) -> str:
    return f"M{run[0][0]:.1f} {HEIGHT}" + "".join(f"L{x:.1f} {y:.1f}" for x, y in run) + f"V{HEIGHT}Z"
