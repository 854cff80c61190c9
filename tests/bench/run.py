"""`make bench`: the authority beside what people would otherwise use, interleaved in one run.

Guards over HTTP beside pgbench with the smallest durable guard transaction and beside Cerbos with the same rules, at 1, 8, 32
and 128 connections; then one hot account, repeats, a mix of verdicts, the same authority committing each guard alone and
without waiting for the disk, checks, viewers of the board, refunds and orders. PostgreSQL, the programs and the generator of
load share this machine: absolute figures are this machine's of this hour, and the ratios, taken round by round, are the result.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.bench import cerbos, minimal, report, templates
from tests.bench import orders as order_load
from tests.bench.board import board_viewers
from tests.bench.cpu import tree_cpu_seconds
from tests.bench.generator import HOW_TO_GET, ask_each, generate, has_wrk
from tests.bench.machine import describe_machine
from tests.bench.place import POSTGRESQL, WARM_SECONDS, Bench, ask, running_bench
from tests.bench.refunds import private_fees, refunds
from tests.bench.templates import Template

OUT = Path(__file__).parent / "out"
REPEATED = 500
CONNECTIONS = (1, 8, 32, 128)

Step = tuple[str, Callable[[], None]]


def cerbos_checks(bench: Bench, server: cerbos.Cerbos, connections: int, seconds: int) -> None:
    """One closed loop over Cerbos."""
    name = f"Cerbos {connections}"
    generate(server.port, templates.cerbos_checks(), connections=connections, seconds=WARM_SECONDS)
    before = tree_cpu_seconds(server.pid)
    measured = generate(server.port, templates.cerbos_checks(), connections=connections, seconds=seconds)
    bench.keep(name, measured, {"Cerbos": tree_cpu_seconds(server.pid) - before})


def minimal_guards(bench: Bench, clients: int, seconds: int, *, hot: bool = False) -> None:
    """One run of pgbench."""
    measured, grown = minimal.run(bench.minimal_url, clients=clients, seconds=seconds, spent=bench.spent, hot=hot)
    bench.keep(f"minimal {clients}{' hot' * hot}", measured, {POSTGRESQL: grown[POSTGRESQL]}, grown["WAL"])


def repeats(bench: Bench, seconds: int) -> None:
    """Guards that were asked before: each gets the recorded answer."""
    template = templates.guards(bench.key, wrap=REPEATED)
    ask_each(bench.port, template)
    bench.guard("repeats 32", lambda _: template, connections=32, seconds=seconds)


def not_waiting_for_the_disk(bench: Bench, seconds: int) -> None:
    """Guards with synchronous_commit on, then off, then on: the two sides of one moment."""
    for name, waiting in (("guard 32 before", True), ("guard 32 not waiting", False), ("guard 32 after", True)):
        with contextlib.nullcontext() if waiting else bench.without_waiting_for_the_disk(templates.guards(bench.key)):
            bench.guard(name, templates.guards, connections=32, seconds=seconds)


def row_by_row(bench: Bench, seconds: int) -> None:
    """Guards of an authority that commits each of them alone."""
    with bench.row_by_row():
        bench.guard("row by row 32", templates.guards, connections=32, seconds=seconds)


def orders(bench: Bench, seconds: int) -> None:
    """Orders through an intake: first deliveries, and the same ones again."""
    place = order_load.Place(bench.orders_url, bench.port, bench.tenant_id, bench.key)
    for name, result in zip(("orders 24", "redelivery 24"), order_load.measure(place, seconds), strict=True):
        bench.note(name, result.per_second)
        bench.note(f"{name} p50", result.percentile(0.50))
        bench.note(f"{name} p99", result.percentile(0.99))


def answers_are_right(bench: Bench, server: cerbos.Cerbos | None) -> None:
    """Ask each kind once: what is measured must be what it is called. Raises `SystemExit`."""
    wanted = {"ALLOW": templates.guards(bench.key), "APPROVAL_REQUIRED": templates.guards(bench.key, values=("200.00",)),
              "DENY": templates.guards(bench.key, values=("2000.00",))}  # fmt: skip
    for verdict, template in wanted.items():
        if (said := ask(bench.port, template.at(0)).get("decision")) != verdict:
            raise SystemExit(f"the authority says {said} where {verdict} is meant")
    if server and (told := cerbos.probe(server.port, templates.cerbos_checks())) != (
        "EFFECT_ALLOW",
        "within_policy_limit",
    ):
        raise SystemExit(f"Cerbos says {told}")


def plan(bench: Bench, server: cerbos.Cerbos | None, seconds: int, rows: int, turn: int) -> list[Step]:
    """Every measurement of one round, in order; who of the rivals begins moves on by `turn`."""
    steps: list[Step] = []
    for number in CONNECTIONS:
        rivals: list[Step] = [
            (f"minimal {number}", lambda n=number: minimal_guards(bench, n, seconds)),  # type: ignore[misc]
            (
                f"guard {number}",
                lambda n=number: bench.guard(f"guard {n}", templates.guards, connections=n, seconds=seconds),
            ),  # type: ignore[misc]
        ]
        if server is not None:
            rivals.append((f"Cerbos {number}", lambda n=number: cerbos_checks(bench, server, n, seconds)))  # type: ignore[misc]
        start = turn % len(rivals)
        steps += rivals[start:] + rivals[:start]
    more: Sequence[tuple[str, Callable[[str], Template]]] = (
        ("guard 32 hot", templates.hot_guards),
        ("mix 32", templates.mixed_guards),
        ("check 32", templates.checks),
    )
    steps += [
        (name, lambda n=name, make=make: bench.guard(n, make, connections=32, seconds=seconds))  # type: ignore[misc]
        for name, make in more
    ]
    steps += [
        ("minimal 32 hot", lambda: minimal_guards(bench, 32, seconds, hot=True)),
        ("repeats 32", lambda: repeats(bench, seconds)),
        ("guard 32 not waiting", lambda: not_waiting_for_the_disk(bench, seconds)),
        ("row by row 32", lambda: row_by_row(bench, seconds)),
        ("guard with 500 viewers", lambda: board_viewers(bench, seconds)),
        ("refunds/s", lambda: refunds(bench, rows)),
        ("private fees/s", lambda: private_fees(bench, rows)),
        ("orders 24", lambda: orders(bench, seconds)),
    ]
    return steps


def go_through(bench: Bench, server: cerbos.Cerbos | None, options: argparse.Namespace) -> None:
    """All rounds, told on standard error."""
    answers_are_right(bench, server)
    for turn in range(options.rounds):
        bench.new_key()
        for name, step in plan(bench, server, options.seconds, options.rows, turn):
            if any(only in name for only in options.only):
                # What the one before left for the kernel to write would be written during this one, whose commits wait behind it.
                os.sync()
                began = time.monotonic()
                step()
                took = time.monotonic() - began
                print(
                    f"round {turn + 1} of {options.rounds}: {name}: {bench.figures[name][-1]:,.0f}/s ({took:.0f} s)",
                    file=sys.stderr,
                    flush=True,
                )


def parsed() -> argparse.Namespace:
    """The command's options."""
    parser = argparse.ArgumentParser(
        prog="make bench BENCH=…", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds; ROUNDS=n of make (3)")
    parser.add_argument(
        "--seconds", type=int, default=4, help="whole seconds of each measurement; SECONDS=n of make (4)"
    )
    parser.add_argument("--rows", type=int, default=8000, help="rows of the refund worker, some seconds' work (8000)")
    parser.add_argument(
        "--only", action="append", help="only measurements whose name contains this; may be given again"
    )
    parser.add_argument("--without-cerbos", action="store_true", help="neither fetch nor run Cerbos")
    parser.add_argument("--keep", action="store_true", help="put the tables and the chart into tests/bench/RESULTS.md")
    options = parser.parse_args()
    options.only, options.whole = options.only or [""], not options.only
    return options


def main() -> None:
    """Run the rounds, print and keep the tables."""
    options = parsed()
    # An end from outside is one like any other: everything that was started is stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    machine = describe_machine()
    print("\n".join(f"{name}: {value}" for name, value in machine.items()), file=sys.stderr)
    if not has_wrk():
        print(HOW_TO_GET, file=sys.stderr)
    with contextlib.ExitStack() as stack:
        server = None
        try:
            server = None if options.without_cerbos else stack.enter_context(cerbos.running_cerbos())
        except cerbos.NotToBeHad as why:
            print(f"without Cerbos: {why}", file=sys.stderr)
        bench = stack.enter_context(running_bench())
        go_through(bench, server, options)
    run = report.Run(machine, options.rounds, options.seconds, bench.figures)
    OUT.mkdir(exist_ok=True)
    (OUT / "latest.json").write_text(json.dumps(run.as_json(), indent=1, ensure_ascii=False))
    print(report.write(run, OUT, whole=options.whole, keep=options.keep))


if __name__ == "__main__":
    main()
