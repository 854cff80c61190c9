"""`make bench-check`: does a guard cost more CPU than it did on this machine?

Guards at 32 connections in short slices; what the authority and PostgreSQL spend on each, in the best third of the slices,
beside a fixed piece of work that says how fast the machine is at the moment. The first run on a machine keeps its figures in
`tests/bench/kept`, later ones are compared with them: more than 5 % is red (exit code 1). Figures that differ too much among
themselves judge nothing (exit code 2), nor do those of a machine that others use meanwhile.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.bench import templates
from tests.bench.generator import generate
from tests.bench.machine import describe_machine, machine_id
from tests.bench.place import AUTHORITY_PROGRAM, POSTGRESQL, Bench, running_bench
from tests.bench.report import QUIET

KEPT = Path(__file__).parent / "kept"
MAY_GROW = 0.05
MAY_DIFFER = 0.20
"""How far a middle slice may be above the best third."""
GREEN, RED, BUSY = 0, 1, 2


@dataclass(frozen=True)
class Slices:
    """CPU microseconds of a guard by slice and program, and of the yardstick beside it; percentages of the machine that others used."""

    machine: Mapping[str, str]
    authority: Sequence[float]
    postgresql: Sequence[float]
    yardstick: Sequence[float]
    others: Sequence[float]

    @property
    def both(self) -> list[float]:
        """Of both programs."""
        return [one + other for one, other in zip(self.authority, self.postgresql, strict=True)]

    def is_steady(self) -> bool:
        """Whether these figures can tell a few percent."""
        is_quiet = statistics.median(self.others) <= QUIET
        return is_quiet and statistics.median(self.both) <= (1 + MAY_DIFFER) * best(self.both)


def best(values: Sequence[float]) -> float:
    """The mean of the lowest third: what something costs when nothing else is in its way."""
    return statistics.mean(sorted(values)[: max(1, len(values) // 3)])


def growth(kept: Slices, now: Slices) -> float:
    """How much more a guard costs than it did, as a share, on a machine that were as fast as then."""
    speed = best(kept.yardstick) / best(now.yardstick)
    return speed * best(now.both) / best(kept.both) - 1


def judge(now: Slices, folder: Path, *, keep: bool = False) -> tuple[int, str]:
    """(exit code, what to say) of a run; its figures are kept where there are none of this machine, or with `keep`."""
    told = f"a guard costs {best(now.both):.0f} µs of CPU: authority {best(now.authority):.0f}, PostgreSQL {best(now.postgresql):.0f}"
    if not now.is_steady():
        others = statistics.median(now.others)
        return (
            BUSY,
            f"{told}; nothing is judged: others use {others:.0f} % of the machine or the slices differ too much. Try again when it is quiet",
        )
    file = folder / f"{machine_id(dict(now.machine))}.json"
    if keep or not file.exists():
        folder.mkdir(exist_ok=True)
        file.write_text(json.dumps(asdict(now), indent=1, ensure_ascii=False) + "\n")
        why = "kept as asked" if keep else "there were no figures of this machine"
        return GREEN, f"{told}; {why}: written to {file.parent.name}/{file.name}"
    kept = Slices(**json.loads(file.read_text()))
    grown = growth(kept, now)
    compared = f"{told}; {grown:+.1%} to the kept figures (authority {best(kept.authority):.0f}, PostgreSQL {best(kept.postgresql):.0f}, at the machine's speed of then)"
    if grown > MAY_GROW:
        return (
            RED,
            f"RED: {compared}. At most {MAY_GROW:+.0%} is allowed; where it is worth it: make bench-check KEEP=1",
        )
    return GREEN, f"green: {compared}"


def measure(bench: Bench, slices: int, seconds: int) -> Slices:
    """So many slices, after a warm-up."""
    generate(bench.port, templates.guards(bench.key), connections=32, seconds=3)
    machine = describe_machine()
    for number in range(slices):
        bench.guard("guard", templates.guards, connections=32, seconds=seconds)
        print(f"slice {number + 1} of {slices}: {bench.figures['guard'][-1]:,.0f}/s", file=sys.stderr, flush=True)
    figures = {name: [round(value, 2) for value in values] for name, values in bench.figures.items()}
    return Slices(
        machine,
        figures[f"guard {AUTHORITY_PROGRAM} µs"],
        figures[f"guard {POSTGRESQL} µs"],
        figures["guard yardstick µs"],
        figures["guard others %"],
    )


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="make bench-check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=12, help="slices; ROUNDS=n of make (12)")
    parser.add_argument("--seconds", type=int, default=2, help="whole seconds of each; SECONDS=n of make (2)")
    parser.add_argument("--keep", action="store_true", help="keep these figures for what comes; KEEP=1 of make")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    with running_bench() as bench:
        now = measure(bench, options.rounds, options.seconds)
    code, text = judge(now, KEPT, keep=options.keep)
    print(text)
    sys.exit(code)


if __name__ == "__main__":
    main()
