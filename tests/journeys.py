"""Counts how many product files three requests pass, and how often each moves between files.

`python -m tests.journeys` prints one table; `--files` adds the files of each journey, `--json` prints the same as data.

The journeys are a guard request (answered ALLOW), a refund row from NEW to EXECUTED with its report, and an order of the
low lane from its webhook to its answer. Authority, worker and order intake run in this process on a fresh database, and the
two ask the authority over HTTP. Each journey runs four times; the first is left out, and of the
others the one that passes the fewest files is counted, so that what threads do by the clock is not.

A file is passed when one of its functions is entered, in whatever thread; code that runs at import is not counted, nor are
generated files and libraries. A move is a call whose nearest caller of ours, libraries between the two left out, is in
another file, and the first call of a thread. Continuing a generator or a coroutine is not a call.
"""

from __future__ import annotations

import argparse
import contextlib
import dis
import inspect
import json
import logging
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import structlog
from rich.console import Console
from rich.table import Table

from sentinel.cli.scratch import listening
from sentinel.store.embedded import remove, running
from sentinel.store.migrate import migrate
from tests.support.fixtures import Fixtures, guard_body, make_fixtures
from tests.support.ledger_fixtures import CLEAN, LedgerFixtures, new_row
from tests.support.order_fixtures import make_intake, order_body
from tests.support.workflow_fixtures import OrderFacts

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("sentinel/", "worker/", "ops_console/")
RUNS = 4
STAND_INS = ("sentinel/platform/http/in_process.py",)
"""What asks an app in this process where a network would; its callers count as if the network had called."""
_PAUSES = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


@dataclass
class Passed:
    """What one journey passed: calls by file, and moves between files."""

    files: Counter[str] = field(default_factory=Counter)
    moves: int = 0


class Tracer:
    """A profile function for every thread that starts after it was installed; it counts while a journey is open."""

    def __init__(self) -> None:
        self._passed: Passed | None = None
        self._lock = threading.Lock()
        self._names: dict[CodeType, str | None] = {}

    def install(self) -> None:
        """Watch this thread and all that start from now on."""
        threading.setprofile(self.event)
        sys.setprofile(self.event)

    @contextlib.contextmanager
    def counting(self) -> Iterator[Passed]:
        """Count what is called in the block."""
        passed = self._passed = Passed()
        try:
            yield passed
        finally:
            self._passed = None

    def event(self, frame: FrameType, event: str, _: object) -> None:
        """What `sys.setprofile` takes."""
        passed = self._passed
        if passed is None or event != "call" or (entered := self._file(frame.f_code)) is None or is_continued(frame):
            return
        caller = frame.f_back
        while caller is not None and self._file(caller.f_code) is None:
            caller = caller.f_back
        with self._lock:
            passed.files[entered] += 1
            passed.moves += caller is None or self._file(caller.f_code) != entered

    def _file(self, code: CodeType) -> str | None:
        """The product file of a function, or None for anything else."""
        if code not in self._names:
            path = Path(code.co_filename)
            name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""
            ours = name.startswith(PACKAGES) and name not in STAND_INS and code.co_name != "<module>"
            self._names[code] = name if ours else None
        return self._names[code]


def is_continued(frame: FrameType) -> bool:
    """Whether a generator or coroutine goes on after a pause: its call was counted when its body was entered."""
    return bool(frame.f_code.co_flags & _PAUSES) and frame.f_lasti > _body_of(frame.f_code)


@cache
def _body_of(code: CodeType) -> int:
    """Where the body of a generator or coroutine begins: its first RESUME after the object was made."""
    names = ((one.offset, one.opname) for one in dis.get_instructions(code))
    made = next(offset for offset, name in names if name == "RETURN_GENERATOR")
    return next(offset for offset, name in names if name == "RESUME" and offset > made)


@dataclass(frozen=True)
class Journey:
    """What is counted, and what has to be there before it. Both are called with a name that no run before had."""

    run: Callable[[str], None]
    prepare: Callable[[str], None] = lambda name: None


@contextlib.contextmanager
def journeys() -> Iterator[dict[str, Journey]]:
    """Each journey by its title, on servers that run for the block."""
    # Not made here: as root the server runs as another account, which could not enter a folder of ours.
    base = Path(tempfile.gettempdir()) / f"sentinel-journeys-{secrets.token_hex(6)}"
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, base, ignore_errors=True)
        stack.callback(remove, base)
        url = stack.enter_context(running(base, own=True)).admin_url
        migrate(url)
        fixtures = make_fixtures(url)
        stack.callback(fixtures.close)
        authority = stack.enter_context(listening(fixtures.app))
        yield {
            "guard request": _guard_request(fixtures),
            "refund row": _refund_row(fixtures, authority, stack),
            "order": _order(fixtures, authority, stack),
        }


def _guard_request(fixtures: Fixtures) -> Journey:
    """Asked for the first time, answered ALLOW with a permit."""

    def run(name: str) -> None:
        assert fixtures.guard(guard_body(name))["decision"] == "ALLOW"

    return Journey(run)


def _refund_row(fixtures: Fixtures, authority: str, stack: contextlib.ExitStack) -> Journey:
    """A retail row that the policy allows, by one run of the worker: claimed, asked about, executed, reported."""
    ledger = LedgerFixtures(fixtures.url, fixtures.tenant_id)
    stack.callback(ledger.close)
    agents: list[Any] = []

    def prepare(name: str) -> None:
        # A worker that has read its files and has not asked for the switches yet: those it knows are good for half a second.
        made = ledger.agent(authority, key=fixtures.key)
        agents.append(stack.enter_context(made))
        agents[-1].run_once()
        paid_at = datetime.now(UTC) - timedelta(days=1)
        ledger.ledger.add_orders([OrderFacts(f"order_{name}", paid_at, 90_000, "USD")])
        ledger.add(new_row(name, 100, order_ref=f"order_{name}", risk=CLEAN))

    def run(name: str) -> None:
        agents[-1].run_once()
        assert ledger.state(name) == "EXECUTED"

    return Journey(run, prepare)


def _order(fixtures: Fixtures, authority: str, stack: contextlib.ExitStack) -> Journey:
    """A signed order of the low lane, fulfilled by the simulated shop; its report is the background's."""
    orders = make_intake(fixtures, authority)
    stack.callback(orders.review.pool.close)

    def run(name: str) -> None:
        answer = orders.deliver(order_body(name))
        assert (answer.status_code, answer.json["status"]) == (200, "fulfilled")

    return Journey(run)


def measure() -> dict[str, Passed]:
    """What each journey passes."""
    tracer, found = Tracer(), {}
    tracer.install()
    with journeys() as by_title:
        for title, journey in by_title.items():
            runs = []
            for turn in range(RUNS):
                name = f"{title.split()[0]}-{turn}"
                journey.prepare(name)
                with tracer.counting() as passed:
                    journey.run(name)
                runs.append(passed)
            found[title] = min(runs[1:], key=lambda one: (len(one.files), one.moves))
    sys.setprofile(None)
    threading.setprofile(None)
    return found


@dataclass
class Size:
    """How many files of a kind the product has, and how many lines in all."""

    files: int
    lines: int


def sizes() -> dict[str, Size]:
    """The product's own Python and SQL as git knows it: the three packages, and the SQL in deploy/."""
    listed = subprocess.run(
        ["git", "ls-files", *PACKAGES, "deploy"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    found = {}
    for kind in ("py", "sql"):
        texts = [(ROOT / name).read_text() for name in listed if name.endswith(f".{kind}") and (ROOT / name).is_file()]
        found[kind] = Size(len(texts), sum(text.count("\n") for text in texts))
    return found


def show(found: dict[str, Passed], size: dict[str, Size], *, with_files: bool) -> None:
    """One table, and each journey's files with their calls where they are wanted."""
    table = Table("", "files", "moves between files", "calls", "lines")
    for title, passed in found.items():
        table.add_row(title, str(len(passed.files)), str(passed.moves), str(passed.files.total()), "")
    for kind, title in (("py", "product Python"), ("sql", "product SQL")):
        table.add_row(title, f"{size[kind].files:,}", "", "", f"{size[kind].lines:,}")
    console = Console()
    console.print(table)
    for title, passed in found.items() if with_files else ():
        console.print(f"\n{title}: calls by file")
        for name, calls in sorted(passed.files.items()):
            console.print(f"{calls:6} {name}", highlight=False)


def main() -> None:
    """The command."""
    options = argparse.ArgumentParser(prog="python -m tests.journeys", description=__doc__.splitlines()[0])
    options.add_argument("--files", action="store_true", help="also list the files of each journey")
    options.add_argument("--json", action="store_true", help="print data instead of a table")
    chosen = options.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    found, size = measure(), sizes()
    if chosen.json:
        counted = {title: {"files": dict(sorted(p.files.items())), "moves": p.moves} for title, p in found.items()}
        print(json.dumps({"journeys": counted, "sizes": {kind: asdict(one) for kind, one in size.items()}}, indent=2))
    else:
        show(found, size, with_files=chosen.files)


if __name__ == "__main__":
    main()
