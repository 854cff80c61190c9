"""The operators' command: process refund rows under the authority's decisions.

Runs as `python worker/retail_refund_agent.py` and as `retail-refund-agent`. Exit status: 0 nothing failed, 1 a row failed,
2 usage or settings, 3 the authority or the database gave no answer, a single run was told to end before it was done, or no worker
takes rows of another agent: rows wait, and nothing is wrong with them.
"""

from __future__ import annotations

import gc
import signal
import sys
from pathlib import Path

if __name__ == "__main__":
    # As for every command, but before the imports: what they load is no garbage.
    gc.set_threshold(20_000, 20, 50)
    # When this runs as a file, Python puts the file's own folder first on the path, where it would shadow other
    # modules: replace it by the folder above.
    _here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != _here]
    sys.path.insert(0, str(_here.parent))
    _interrupts = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if _interrupts:
        # Let Ctrl-C during the imports end the process without a traceback: no work has begun.
        signal.signal(signal.SIGINT, signal.SIG_DFL)

import contextlib
import itertools
import json
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import click

from sentinel.client import Client
from sentinel.core.errors import SentinelError
from sentinel.core.wording import counted
from sentinel.platform.command_line import OneLineCommand, exit_code, terminal_text
from sentinel.platform.logs import logs_of_command
from sentinel.platform.standard_streams import drop_output
from sentinel.store.database import WORKER
from sentinel.store.safety import database_status
from worker.failpoints import BadFailpoint, FailpointHit, Failpoints
from worker.key_check import KeyCheck
from worker.presentation import out, print_simulation, run_json, run_lines, run_table
from worker.refunds.agent import Agent, OnRow
from worker.refunds.build import (
    make_agent,
    open_client,
    open_key_check,
    open_ledger,
    open_simulator,
    refuse_unsafe_database,
    refuse_wrong_key,
)
from worker.refunds.ledger import Ledger, LedgerUnavailable
from worker.refunds.metrics import WorkerMetrics
from worker.refunds.settings import WorkerSettings, read_settings
from worker.refunds.workflow.runner import RowResult, RunResult

if TYPE_CHECKING:
    from sentinel.platform.http.readiness import Readiness

_log = logging.getLogger("worker.loop")

FAILED, MISUSED, OUTSIDE = 1, 2, 3
_END_WITHIN_SECONDS = 1.9
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_DRY_RUN_ROWS, _MOST_ROWS = 1000, 1_000_000_000

_EXAMPLES = """
\b
Examples:
  retail-refund-agent --dry-run              what would be decided; changes nothing
  retail-refund-agent --once                 process what is due, print what happened
  retail-refund-agent --once --limit 10 --json
  retail-refund-agent --loop                 keep working until stopped
"""


@click.command(cls=OneLineCommand, epilog=_EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--once", is_flag=True, help="Process what is due, then end.")
@click.option("--loop", is_flag=True, help="Keep processing until SIGTERM or Ctrl-C.")
@click.option("--dry-run", is_flag=True, help="Show what would be decided; change nothing.")
@click.option(
    "--limit", type=click.IntRange(min=1, max=_MOST_ROWS), metavar="N",
    help=f"Process at most N rows, or show N with --dry-run (default there: {_DRY_RUN_ROWS}).",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table; with --loop a line per row.")
@click.option(
    "--api-key-file", type=click.Path(path_type=Path, dir_okay=False),
    help="File with the agent's key, instead of SENTINEL_REFUND_AGENT_API_KEY.",
)  # fmt: skip
def main(limit: int | None, as_json: bool, api_key_file: Path | None, **modes: bool) -> None:
    """Process refund rows of the ledger, each only as the authority decides.

    Exit codes: 0 nothing failed, 1 a row failed, 2 wrong usage or settings, 3 rows wait and nothing is wrong with them: the
    authority or the database gave no answer, a single run was ended early, or no worker takes rows of another agent.
    """
    said = [mode.replace("_", "-") for mode, is_said in modes.items() if is_said]
    if len(said) != 1:
        raise click.UsageError(f"give {'only one of ' if said else ''}--once, --loop or --dry-run")
    (mode,) = said
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s", stream=sys.stderr
    )
    _log.setLevel(logging.INFO)
    with refusals(), logs_of_command():
        settings = read_settings(api_key_file=api_key_file)
        failpoints = Failpoints.parse(settings.failpoint, allowed=settings.failpoints_allowed)
        sys.exit(_run(settings, mode, limit, as_json, failpoints))


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Turn expected failures into one line on stderr and an exit status."""
    try:
        yield
    except (BadFailpoint, LedgerUnavailable, FailpointHit, SentinelError) as error:
        click.echo(f"error: {terminal_text(str(error) or type(error).__name__)}", err=True)
        sys.exit(_status(error))
    except UnicodeEncodeError:
        # Half of a pair of surrogates: what Python makes of a word of a command line that is not UTF-8.
        click.echo("error: a text among the arguments is not UTF-8", err=True)
        sys.exit(MISUSED)


def _status(error: Exception) -> int:
    if isinstance(error, SentinelError):
        return exit_code(error)
    return MISUSED if isinstance(error, BadFailpoint) else OUTSIDE if isinstance(error, LedgerUnavailable) else FAILED


def _run(
    settings: WorkerSettings, mode: str, limit: int | None, as_json: bool, failpoints: Failpoints
) -> int:  # fmt: skip
    gc.freeze()  # objects loaded so far are never freed: keep the garbage collector from scanning them
    with (
        open_ledger(settings) as ledger,
        open_client(settings, ledger.tenant_id) as client,
        open_key_check(settings, ledger) as key,
    ):
        refuse_unsafe_database(ledger)
        refuse_wrong_key(key)
        if mode == "dry-run":
            return _dry_run(settings, ledger, client, key, limit or _DRY_RUN_ROWS, as_json)
        if mode == "loop":
            return _loop(settings, ledger, client, key, limit, _row_printer(as_json), failpoints)
        agent = make_agent(settings, ledger, client, failpoints=failpoints, only_agent=key.bound_agent)
        outcome = RunResult()
        try:
            with _ends_on_signal(agent, unfinished=OUTSIDE):
                agent.run_once(limit, outcome)
        except LedgerUnavailable as error:
            if not outcome.rows:
                raise
            outcome.trouble = outcome.trouble or str(error)  # and what was done before is printed
    _print_run(outcome, as_json)
    if (why := outcome.why_outside) is not None:
        click.echo(f"error: {terminal_text(why)}", err=True)
    return FAILED if outcome.row_failed else OUTSIDE if why is not None else 0


def _dry_run(
    settings: WorkerSettings, ledger: Ledger, client: Client, key: KeyCheck, limit: int, as_json: bool
) -> int:  # fmt: skip
    """Print what would be decided about due rows, and on stderr which rows are not shown; return the exit status."""
    agent = key.bound_agent()
    with open_simulator(settings, ledger, client) as simulator:
        found = simulator.simulate_due(limit + 1, agent)
        rows, is_more = found[:limit], len(found) > limit
        overdrawn = simulator.overdrawn_orders(rows)
    lapsed = ledger.count_lapsed(agent)
    if is_more:
        click.echo(f"There are more than these {limit}; --limit shows more.", err=True)
    if lapsed:
        text = counted(lapsed, "row whose claim has expired is", "rows whose claim has expired are")
        click.echo(f"{text} processed first and {'is' if lapsed == 1 else 'are'} not shown.", err=True)
    if as_json:
        orders = [order.as_json() for order in overdrawn]
        said = {"rows": [row.as_json() for row in rows], "overdrawn_orders": orders, "more": is_more, "lapsed": lapsed}
        click.echo(json.dumps(said))
    else:
        print_simulation(rows, overdrawn)
    return OUTSIDE if any(row.decision is None for row in rows) else 0


def _loop(
    settings: WorkerSettings, ledger: Ledger, client: Client, key: KeyCheck, limit: int | None, show: OnRow,
    failpoints: Failpoints,
) -> int:  # fmt: skip
    """Run until stopped, with a health listener where a port is set; return the exit status."""

    done = itertools.count()

    def done_with(row: RowResult) -> None:
        next(done)
        metrics.count(row)
        show(row)

    agent = make_agent(settings, ledger, client, failpoints=failpoints, on_row=done_with, only_agent=key.bound_agent)
    metrics = WorkerMetrics(ledger, lambda: agent.reaches_authority)
    with contextlib.ExitStack() as stack:
        if settings.health_port:
            # Import the web server only where it is needed: a single run starts several times faster without it.
            from sentinel.platform.http.ready_gauge import ReadyGauge
            from sentinel.platform.serving.health import create_app, serving

            readiness = readiness_of(ledger, key)
            metrics.register(ReadyGauge("worker_ready", readiness))
            app = create_app("worker.refunds", readiness, metrics.exposition)
            stack.enter_context(serving(app, settings.health_host, settings.health_port, "WORKER_HEALTH_PORT"))
        # Being stopped is the normal end of a loop, so the status is 0; the next run takes up unfinished rows.
        stack.enter_context(_ends_on_signal(agent, unfinished=0))
        _log.info(
            "working as %s, asking %s; up to %d batches of %d rows at once",
            settings.agent_id, settings.authority_url, settings.lanes, settings.batch,
        )  # fmt: skip
        agent.run_loop(limit)
    _log.info("stopped; rows done: %d", next(done))
    return 0


def readiness_of(ledger: Ledger, key: KeyCheck) -> Readiness:
    """The checks of /readyz: database and schema, and whether the authority accepts the key as this worker's. They show
    no row, customer or key."""
    from sentinel.platform.http.readiness import Readiness, database_checks

    def checks() -> Mapping[str, bool]:
        fault = key.fault()
        standing = database_checks(lambda: database_status(ledger.pool, WORKER))
        return {**standing, "authority": fault is None or fault.is_from_authority, "key": fault is None}

    return Readiness(checks)


def _print_run(outcome: RunResult, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(run_json(outcome)))
        return
    console = out()
    if outcome.rows:
        console.print(run_table(outcome.rows))
    for line in run_lines(outcome):
        console.print(line)


def _row_printer(as_json: bool) -> OnRow:
    """Make a callback that prints one line per row, whole lines even from several threads.

    A row that cannot be printed (a full disk, a reader that is gone) is processed like any other, and counted.
    """
    lock = threading.Lock()
    is_failing = False

    def show(row: RowResult) -> None:
        nonlocal is_failing
        said = row.detail or row.what_next
        text = json.dumps(row.as_json()) if as_json else terminal_text(
            f"{row.ledger_entry_id}  {row.money}  {row.decision or '-'}  {row.reason_code or '-'}  {row.state}  {said}"
        )  # fmt: skip
        with lock:
            try:
                click.echo(text)
                is_failing = False
            except OSError as error:
                if not is_failing:
                    _log.warning("rows are processed and not printed: %s", error.strerror)
                is_failing = True
                if isinstance(error, BrokenPipeError):
                    drop_output()

    return show


def _cut_off(status: int) -> None:
    # Take no lock and flush nothing, so that no hanging thread can block the exit.
    if status:
        os.write(2, b"error: cut off before its rows were done; their leases bring them back\n")
    os._exit(status)


@contextlib.contextmanager
def _ends_on_signal(agent: Agent, *, unfinished: int) -> Iterator[None]:
    """End the run on SIGTERM, SIGINT or SIGHUP within two seconds, whatever hangs; unfinished rows are due again once
    their lease expires.

    `unfinished` is the exit status of a run that had to be cut off.
    """
    heard, tell = os.pipe()
    os.set_blocking(tell, False)

    def end() -> None:
        told = os.read(heard, 1)
        while told and told[0] not in _ENDING:
            told = os.read(heard, 1)
        if told:
            overdue = threading.Timer(_END_WITHIN_SECONDS, _cut_off, [unfinished])
            overdue.daemon = True
            overdue.start()
            agent.request_stop()

    # A signal handler runs in the main thread, in the middle of its work, and would deadlock on a lock that the main
    # thread holds, such as that of the event it is waiting for. So the interpreter only writes the signal's number to a
    # pipe, and a thread started beforehand acts on it.
    ending = threading.Thread(target=end, daemon=True, name="ends-on-signal")
    ending.start()
    # Set the pipe before the handlers, and reset it after them: a signal with the empty handler but no pipe would be
    # lost.
    told_before = signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    before = {number: signal.signal(number, _do_nothing) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(told_before)
        os.close(tell)
        ending.join(_END_WITHIN_SECONDS)
        os.close(heard)


def _do_nothing(_number: int, _frame: object) -> None:
    """Do nothing: only for signals with a Python handler does the interpreter write to the wakeup pipe."""


if __name__ == "__main__":
    if _interrupts:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    main()
