"""What a run says: its figures, the ratios beside their bars, and what each request cost each program, as tables."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.bench.chart import chart

RESULTS = Path(__file__).parent / "RESULTS.md"
CHART = Path(__file__).parent / "results.svg"
BEGIN, END = "<!-- newest run: begin -->", "<!-- newest run: end -->"

QUIET = 10.0
"""The percentage of the machine that others may use before a run says so."""

Figures = Mapping[str, list[float]]


@dataclass(frozen=True)
class Run:
    """One run: where, how long, and each figure's list of rounds."""

    machine: dict[str, str]
    rounds: int
    seconds: int
    figures: Figures

    def as_json(self) -> dict[str, object]:
        """The run as it is kept."""
        return {"machine": self.machine, "rounds": self.rounds, "seconds": self.seconds, "figures": self.figures}


@dataclass(frozen=True)
class Bar:
    """Something wanted: `of` the figures, round by round, at least or at most `bar`, better `goal`."""

    title: str
    of: Callable[[Figures], list[float]]
    bar: float | None
    goal: float | None
    at_most: bool = False
    digits: int = 2

    def verdict(self, figures: Figures) -> str:
        """ "goal", "green" or "red", by the median of the rounds; "–" without a bar."""
        found = statistics.median(self.of(figures))
        if self.bar is None or self.goal is None:
            return "–"
        if self.at_most:
            return "goal" if found <= self.goal else "green" if found <= self.bar else "**red**"
        return "goal" if found >= self.goal else "green" if found >= self.bar else "**red**"


def _ratio(one: str, *others: str) -> Callable[[Figures], list[float]]:
    """One figure to another, or to the mean of others, of the same round."""

    def of(figures: Figures) -> list[float]:
        below = [statistics.mean(values) for values in zip(*(figures[name] for name in others), strict=True)]
        return [a / b for a, b in zip(figures[one], below, strict=True)]

    return of


def _sum(*names: str) -> Callable[[Figures], list[float]]:
    return lambda figures: [sum(values) for values in zip(*(figures[name] for name in names), strict=True)]


def cpu_of(name: str) -> Callable[[Figures], list[float]]:
    """CPU microseconds of a guard: the authority's and PostgreSQL's."""
    return _sum(f"{name} authority µs", f"{name} PostgreSQL µs")


BARS = (
    Bar("guard 32 / Cerbos 32", _ratio("guard 32", "Cerbos 32"), 1.5, 2.0),
    Bar("guard 128 / Cerbos 128", _ratio("guard 128", "Cerbos 128"), 2.0, 3.0),
    Bar("guard 32 / minimal 32", _ratio("guard 32", "minimal 32"), 0.8, 1.3),
    Bar("p50 at 1 connection / Cerbos'", _ratio("guard 1 p50", "Cerbos 1 p50"), 1.2, 0.9, at_most=True),
    Bar("p99 at 32 / Cerbos'", _ratio("guard 32 p99", "Cerbos 32 p99"), 1.0, 0.6, at_most=True),
    Bar("hot account / many", _ratio("guard 32 hot", "guard 32"), 0.9, 1.0),
    Bar("CPU a guard at 32, authority + PostgreSQL, µs", cpu_of("guard 32"), 350, 250, at_most=True, digits=0),
    Bar("write-ahead log a guard at 32, bytes", _sum("guard 32 WAL B"), 3000, 3000, at_most=True, digits=0),
    Bar("synchronous_commit on / off", lambda figures: [1 / ratio for ratio in _ratio("guard 32 not waiting", "guard 32 before", "guard 32 after")(figures)], 0.85, 0.9),
    Bar("guard with 500 viewers / without", _ratio("guard with 500 viewers", "guard without viewers"), 0.9, 0.95),
    Bar("refunds a second, one worker", _sum("refunds/s"), 2500, 5000, digits=0),
    Bar("orders a second", _sum("orders 24"), 1000, 2000, digits=0),
    Bar("orders p99, ms", _sum("orders 24 p99"), 60, 30, at_most=True, digits=0),
    Bar("redelivery / first delivery", _ratio("redelivery 24", "orders 24"), 3.0, 3.0),
    Bar("guard 128 / minimal 128", _ratio("guard 128", "minimal 128"), None, None),
    Bar("guard 32 hot / minimal 32 hot", _ratio("guard 32 hot", "minimal 32 hot"), None, None),
    Bar("guard 32 / each guard committed alone", _ratio("guard 32", "row by row 32"), None, None),
    Bar("mix of verdicts / all allowed", _ratio("mix 32", "guard 32"), None, None),
    Bar("repeats / first guards", _ratio("repeats 32", "guard 32"), None, None),
    Bar("check / guard", _ratio("check 32", "guard 32"), None, None),
)  # fmt: skip

LEGEND = (
    "*guard n*: guards over HTTP on n keep-alive connections, each under a fresh key, of 100,000 accounts. *minimal n*: pgbench"
    " with the smallest durable guard transaction (`minimal_guard.sql`), n clients. *Cerbos n*: the same rules over HTTP,"
    " its decision log in its local store; it keeps no limits and does not wait for the disk. *mix*: 10 % need a person,"
    " 10 % are denied. *repeats*: recorded answers. *not waiting*: synchronous_commit off, between *before* and *after*."
    " *row by row*: each guard committed alone. Medians of the rounds [least–most]. CPU and write-ahead log are per"
    " request, without full pages (no checkpoint falls into a run); *generator* is what asks."
)


def bars_table(figures: Figures) -> list[str]:
    """Every ratio that this run can tell, beside its bar and its goal."""
    lines = ["| round by round | median | not resolved below | goal | |", "|---|---:|---:|---:|---|"]
    for bar in BARS:
        try:
            found = bar.of(figures)
        except KeyError:  # left out of this run
            continue
        sign = "≤ " if bar.at_most else ""
        wanted = [f"{sign}{limit:,.{bar.digits}f}" if limit is not None else "–" for limit in (bar.bar, bar.goal)]
        lines.append(
            f"| {bar.title} | {spread(found, bar.digits)} | {wanted[0]} | {wanted[1]} | {bar.verdict(figures)} |"
        )
    return lines


def figures_table(figures: Figures) -> list[str]:
    """Rates and latencies, with CPU by program and write-ahead log where they were taken."""
    lines = [
        "| measured | per second | p50 ms | p99 ms | authority µs | PostgreSQL µs | worker µs | Cerbos µs | generator µs | WAL B |",
        "|---|" + "---:|" * 9,
    ]
    for name in figures:
        if re.search(r" (p50|p99|µs|B|%)$", name):
            continue
        cells = [spread(figures.get(f"{name}{what}"), digits) for what, digits in (
            ("", 0), (" p50", 1), (" p99", 1), (" authority µs", 0), (" PostgreSQL µs", 0), (" worker µs", 0), (" Cerbos µs", 0), (" load µs", 0), (" WAL B", 0))]  # fmt: skip
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def spread(values: list[float] | None, digits: int) -> str:
    """The median, and between what it lay."""
    if not values:
        return "–"
    middle = f"{statistics.median(values):,.{digits}f}"
    return middle if len(values) == 1 else f"{middle} [{min(values):,.{digits}f}–{max(values):,.{digits}f}]"


def text_of(run: Run) -> str:
    """The run as a section of RESULTS.md."""
    where = "; ".join(f"{name} {value}" for name, value in run.machine.items())
    others = [value for name, values in run.figures.items() if name.endswith(" others %") for value in values]
    used = statistics.median(others) if others else 0.0
    busy = (
        f" **Not quiet**: others used {used:.0f} % of the machine meanwhile, so rates and latencies say little."
        if used > QUIET
        else ""
    )
    return "\n".join(
        [
            f"{where}; {run.rounds} rounds of {run.seconds} s.{busy}",
            "",
            *bars_table(run.figures),
            "",
            LEGEND,
            "",
            *figures_table(run.figures),
            "",
        ]
    )


def write(run: Run, folder: Path, *, whole: bool, keep: bool) -> str:
    """The text of a run, put into `folder` and with `keep` into RESULTS.md, the chart beside it. Raises `SystemExit` where a part of a run would be kept."""
    text = text_of(run)
    (folder / "latest.md").write_text(text)
    if whole and (drawn := chart(run.figures)):
        (folder / "latest.svg").write_text(drawn)
    if keep:
        if not whole or not drawn:
            raise SystemExit("only a whole run is kept, with Cerbos in it")
        CHART.write_text(drawn)
        before, _, rest = RESULTS.read_text().partition(BEGIN)
        RESULTS.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{rest.partition(END)[2]}")
    return text
