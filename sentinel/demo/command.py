"""`sentinel demo`: starts every program on this machine with a demo ledger."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import click
import psycopg

from sentinel.authority.settings import CHECKPOINTS
from sentinel.cli.scratch_databases import SERVER as SCRATCH_SERVER
from sentinel.core.errors import EngineUnavailable, SentinelError
from sentinel.demo.access import DemoAccess, prepare
from sentinel.demo.database import demo_database
from sentinel.demo.ledger import demo_rows, not_entered
from sentinel.demo.orders import SECRET_FILE, DemoOrderSource, order_source, post_demo_orders
from sentinel.demo.processes import (
    DemoFailed,
    DemoSender,
    DemoStopped,
    Processes,
    raise_if_stopped,
    reserve_port,
    wait_ready,
)
from sentinel.demo.small_refunds import SmallRefunds
from sentinel.demo.summary import Ready, print_ready, print_stopped, reloaded_text
from sentinel.export.settings import SECRET_FILE as EXPORT_SECRET
from sentinel.platform.logs import configure_logs
from sentinel.platform.private_files import write_private
from sentinel.platform.resources import policies_dir
from sentinel.platform.secret_files import SUFFIX, secret_from_file
from sentinel.platform.settings import CONFIRM_SECRET_FILE, data_dir_secret
from sentinel.platform.standard_streams import flush_streams
from sentinel.store import address
from sentinel.store.database import first_line


@dataclass(frozen=True, slots=True)
class Ports:
    """Where the programs listen, on 127.0.0.1."""

    authority: int
    console: int
    orders: int
    board: int

    def url(self, name: str) -> str:
        """The address of one of them, by the field's name."""
        return f"http://127.0.0.1:{getattr(self, name)}"


def _port(option: str, variable: str, standard: int, of: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the option of a program's port; the environment variable is used where it is not given."""
    return click.option(
        option, type=click.IntRange(1, 65535), envvar=variable, default=standard,
        help=f"Port of {of}.  [{variable}, default {standard}]",
    )  # fmt: skip


@click.command()
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    default=None,
    help="Folder for the database and all other files of the demo.  [SENTINEL_DATA_DIR, default var]",
)
@_port("--port", "SENTINEL_PORT", 7860, "the authority")
@_port("--console-port", "SENTINEL_CONSOLE_PORT", 7861, "the console")
@_port("--orders-port", "SENTINEL_ORDERS_PORT", 7862, "the order intake")
@click.option(
    "--board-port",
    type=click.IntRange(1, 65535),
    envvar="SENTINEL_BOARD_PORT",
    help="Port of the public board.  [SENTINEL_BOARD_PORT, default 7863, else a free one]",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON line when ready, nothing else on standard output."
)
@click.option("--once", is_flag=True, help="Start, process the ledger once with the refund agent, and stop.")
def command(data_dir: Path | None, *, as_json: bool, once: bool, board_port: int | None, **given: int) -> None:
    """Start an embedded PostgreSQL, the authority, the refund worker, the order intake, the console and the public board.

    Includes a demo ledger, a simulated shop and a few orders in each lane. Runs until Ctrl-C or SIGTERM, and then stops all
    programs. Starting again continues with the same data; SIGHUP reloads the policies. Uses the database of
    SENTINEL_DATABASE_URL, where it is set, instead of the embedded one. Ctrl-C and SIGTERM also end a start in progress.
    """
    configure_logs("info")
    data_dir = data_dir or address.data_dir()
    reserved = contextlib.ExitStack()
    board_port = board_port or _reserved_port(7863, reserved)
    ports = Ports(given["port"], given["console_port"], given["orders_port"], board_port)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    # Set from the start: without a handler SIGHUP would end this process and leave the others running.
    reload = threading.Event()
    signal.signal(signal.SIGHUP, lambda *_: reload.set())
    _require_ports(ports)

    def say(text: str) -> None:
        if not as_json:
            click.echo(text, err=True)

    with (
        reserved,
        _no_failure_once_stopped(stop, data_dir),
        demo_database(data_dir, say, stop) as database,
        contextlib.ExitStack() as stack,
    ):
        processes = Processes(data_dir / "log", stop)
        stack.callback(processes.stop)
        access = prepare(database.admin_url, data_dir, stop)
        urls = database.program_urls()
        env = _environment(urls, data_dir, access, ports)
        health = _health_addresses(env, ports, reserved)
        _start_all(processes, env, access, ports, data_dir, stop, say)
        source = order_source(ports.url("orders"), env["orders"]["ORDERS_DEMO_SECRET"])
        posting = threading.Thread(target=_post_orders, args=(source, access, data_dir, stop, say), daemon=True)
        posting.start()
        small = SmallRefunds(processes, env["worker"], env["console"] | database.scratch, access, data_dir, say)
        if once:
            small.begin()
        failed = processes.run(
            "refund-agent", _module("worker.retail_refund_agent", "--once"), env["worker"], show=not as_json
        )
        if not once:
            processes.start("worker", _module("worker.retail_refund_agent", "--loop"), env["worker"])
        while posting.is_alive():
            raise_if_stopped(stop)
            posting.join(0.05)
        if not once or as_json:
            _announce(access, ports, source, database.admin_url, urls, health, as_json=as_json)
        if once:
            stack.close()
            if not (as_json or failed):
                print_stopped()
            sys.exit(failed)
        # The launch gate takes some seconds; the demo is ready without it and its rows follow.
        threading.Thread(target=_begin_small_refunds, args=(small,), daemon=True, name="small-refunds").start()
        sender = DemoSender(processes, env["export"], urls["export"])
        _keep_running(processes, sender, data_dir, urls["authority"], stop, reload, say)
        say("Stopping.")
    if stop.is_set():
        # Skip the interpreter's clean-up, which can take most of a second on a busy machine.
        flush_streams()
        os._exit(0)


def _keep_running(
    processes: Processes, sender: DemoSender, data_dir: Path, authority_url: str, stop: threading.Event, reload: threading.Event,
    say: Callable[[str], None],
) -> None:  # fmt: skip
    """Until asked to stop, start the sender once it is needed, reload policies at SIGHUP, restart ended children, and keep logs short.

    `authority_url` is the URL of the authority's database.
    """
    while not stop.wait(0.5):
        sender.start_if_wanted()
        processes.bound_logs()
        if reload.is_set():
            reload.clear()
            processes.signal("authority", signal.SIGHUP)
            say(reloaded_text(Path(os.environ.get("SENTINEL_POLICIES_DIR") or policies_dir()), authority_url))
        for name in processes.restart_ended():
            click.echo(f"{name} ended and was started again; see {data_dir / 'log' / f'{name}.log'}", err=True)


@contextlib.contextmanager
def _no_failure_once_stopped(stop: threading.Event, data_dir: Path) -> Iterator[None]:
    """Ignore failures once the demo was asked to stop. Raises `DemoFailed` for a file that cannot be used, e.g. another
    account's, and `EngineUnavailable` for an error of the database's driver.
    """
    try:
        yield
    except DemoStopped:
        pass
    except (SentinelError, BrokenPipeError):
        if not stop.is_set():
            raise
    except psycopg.Error as error:
        if not stop.is_set():
            raise EngineUnavailable(f"cannot use the demo's database: {first_line(error)}") from error
    except OSError as error:
        if not stop.is_set():
            place = error.filename or data_dir
            raise DemoFailed(
                f"cannot use {place}: {error.strerror or error}; SENTINEL_DATA_DIR names the demo's folder"
            ) from error


def _begin_small_refunds(small: SmallRefunds) -> None:
    with contextlib.suppress(DemoStopped):
        small.begin()


def _module(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", name, *arguments]


def _require_ports(ports: Ports) -> None:
    """Raise `CannotServe` where two programs would share a port or one is in use; all ports in use are named at once."""
    from sentinel.platform.serving.server import CannotServe, require_free_port

    wanted = {
        "--port or SENTINEL_PORT": ports.authority, "--console-port or SENTINEL_CONSOLE_PORT": ports.console,
        "--orders-port or SENTINEL_ORDERS_PORT": ports.orders, "--board-port or SENTINEL_BOARD_PORT": ports.board,
    }  # fmt: skip
    refused = []
    for option, port in wanted.items():
        if same := [other for other, taken in wanted.items() if taken == port and other != option]:
            raise CannotServe(f"{option} and {same[0]} cannot both be {port}")
        try:
            require_free_port("127.0.0.1", port, option)
        except CannotServe as error:
            refused.append(error.detail)
    if refused:
        raise CannotServe("; ".join(refused))


_NOT_PASSED_ON = (
    "SENTINEL_DATABASE_URL", "SENTINEL_PUBLIC_DATABASE_URL", "SENTINEL_BOARD_DATABASE_URL", "WORKER_DATABASE_URL", "ORDERS_DATABASE_URL", "PGPASSWORD",
    "SENTINEL_SECRET_KEYS", "CONFIRM_SECRETS", "SENTINEL_SECOND_FACTOR_SECRETS", "ORDERS_DEMO_SECRET", "ORDERS_DEMO_SECRET" + SUFFIX,
    "SENTINEL_SHOP_URL", "SENTINEL_SHOP_KEY", "SENTINEL_EXPORT_DATABASE_URL", "SENTINEL_EXPORT_SECRETS", SCRATCH_SERVER,
)  # fmt: skip
"""Withheld from the programs: each gets only its own database URL and secrets, and the demo's orders are never sent to a real shop."""


def _environment(
    urls: Mapping[str, str], data_dir: Path, access: DemoAccess, ports: Ports
) -> dict[str, dict[str, str]]:
    base = {key: value for key, value in os.environ.items() if key not in _NOT_PASSED_ON}
    base |= {"SENTINEL_DATA_DIR": str(data_dir), "SENTINEL_URL": ports.url("authority"), "PYTHONUNBUFFERED": "1"}
    if not os.environ.get("SENTINEL_DATABASE_URL") and not os.environ.get("SENTINEL_CHECKPOINT_FILE"):
        base["SENTINEL_CHECKPOINT_FILE"] = str(data_dir / CHECKPOINTS)
    secret = os.environ.get("SENTINEL_SECRET_KEYS") or data_dir_secret(data_dir)
    # Not among the secrets that every command reads from files: `order_sources.yaml` names it.
    shop = secret_from_file("ORDERS_DEMO_SECRET", os.environ) or os.environ.get("ORDERS_DEMO_SECRET")
    shop = shop or data_dir_secret(data_dir, SECRET_FILE)
    cards = os.environ.get("CONFIRM_SECRETS") or data_dir_secret(data_dir, CONFIRM_SECRET_FILE)
    return {
        "authority": base | {"SENTINEL_DATABASE_URL": urls["authority"], "SENTINEL_SECRET_KEYS": secret, "SENTINEL_PORT": str(ports.authority)},
        "worker": base | {
            "WORKER_DATABASE_URL": urls["worker"], "SENTINEL_REFUND_AGENT_API_KEY": access.worker_key or access.agent_api_key,
            "SENTINEL_TENANT_ID": access.tenant_id, "CONFIRM_SECRETS": cards, "WORKER_OUTBOX_DIR": str(data_dir / "outbox"),
            "CONFIRM_BASE_URL": ports.url("board"),
        },
        "orders": base | {
            "ORDERS_DATABASE_URL": urls["orders"], "SENTINEL_ORDERS_API_KEY": access.agent_api_key,
            "SENTINEL_TENANT_ID": access.tenant_id, "SENTINEL_ORDERS_PORT": str(ports.orders),
            "ORDERS_DEMO_SECRET": shop,
        },
        "export": base | {
            "SENTINEL_EXPORT_DATABASE_URL": urls["export"], "SENTINEL_TENANT_ID": access.tenant_id,
            "SENTINEL_EXPORT_SECRETS": os.environ.get("SENTINEL_EXPORT_SECRETS") or data_dir_secret(data_dir, EXPORT_SECRET),
            "SENTINEL_EXPORT_CONSOLE_URL": ports.url("console"),
        },
        "console": base | {
            "SENTINEL_DATABASE_URL": urls["console"], "SENTINEL_PUBLIC_DATABASE_URL": urls["public"],
            "SENTINEL_BOARD_DATABASE_URL": urls["board"],
            "SENTINEL_CONSOLE_PORT": str(ports.console), "SENTINEL_BOARD_PORT": str(ports.board),
            "SENTINEL_INSECURE_COOKIES": "true", "SENTINEL_REQUIRE_SECOND_FACTOR": "nobody",
            "SENTINEL_PUBLIC_TENANT": access.tenant_id, "CONFIRM_SECRETS": cards,
            "SENTINEL_PUBLIC_AGENTS": os.environ.get("SENTINEL_PUBLIC_AGENTS", "retail-refund-agent=refund:refunds,*"),
            **{name: os.environ[name] for name in ("SENTINEL_SECOND_FACTOR_SECRETS",) if name in os.environ},
        },
    }  # fmt: skip


def _reserved_port(wanted: int, until: contextlib.ExitStack) -> int:
    """Return the wanted port if it is free, else any free one; it stays reserved until `until` is closed."""
    port, holder = reserve_port(wanted)
    until.enter_context(holder)
    return port


def _health_addresses(env: dict[str, dict[str, str]], ports: Ports, reserved: contextlib.ExitStack) -> dict[str, str]:
    """Give each program a health port, and return the URLs of its metrics; from 7870 on where the authority has its standard port."""
    variables = {
        "authority": ("authority", "SENTINEL_HEALTH_PORT"), "console": ("console", "SENTINEL_CONSOLE_HEALTH_PORT"),
        "orders": ("orders", "SENTINEL_ORDERS_HEALTH_PORT"), "board": ("console", "SENTINEL_BOARD_HEALTH_PORT"),
        "worker": ("worker", "WORKER_HEALTH_PORT"),
    }  # fmt: skip
    found = {}
    for number, (name, (program, variable)) in enumerate(variables.items()):
        if variable not in env[program]:
            wanted = 7870 + number if ports.authority == 7860 else 0
            env[program][variable] = str(_reserved_port(wanted, reserved))
        port = env[program][variable]
        found[name] = f"http://127.0.0.1:{port}/metrics"
    return found


def _start_all(
    processes: Processes, env: dict[str, dict[str, str]], access: DemoAccess, ports: Ports, data_dir: Path,
    stop: threading.Event, say: Callable[[str], None],
) -> None:  # fmt: skip
    say("Starting the authority, the console and the order intake …")
    processes.start("authority", _module("sentinel.cli.main", "serve", "--graceful-seconds", "1"), env["authority"])
    processes.start("console", _module("ops_console"), env["console"])
    processes.start("orders", _module("worker.orders", "--graceful-seconds", "1"), env["orders"])
    _load_ledger(processes, env["worker"], access, data_dir)
    listeners = {"authority": ("authority",), "console": ("console", "board"), "orders": ("orders",)}
    addresses = {name: [f"{ports.url(one)}/readyz" for one in faces] for name, faces in listeners.items()}
    wait_ready(processes, addresses, data_dir / "log", stop)


def _load_ledger(processes: Processes, env: Mapping[str, str], access: DemoAccess, data_dir: Path) -> None:
    loaded = data_dir / "demo_ledger_loaded"
    if loaded.exists() and loaded.read_text() == access.tenant_id:
        return
    rows = not_entered(demo_rows(), env["WORKER_DATABASE_URL"], access.tenant_id)
    if rows and processes.run("enqueue", _module("worker.cli", "enqueue", "-"), env, stdin=rows) != 0:
        raise DemoFailed(f"the demo ledger could not be loaded; see {data_dir / 'log' / 'enqueue.log'}")
    write_private(loaded, access.tenant_id.encode())


def _post_orders(
    source: DemoOrderSource, access: DemoAccess, data_dir: Path, stop: threading.Event, say: Callable[[str], None]
) -> None:
    fault = post_demo_orders(source, data_dir, access.tenant_id, stop.is_set)
    if fault and not stop.is_set():
        say(f"Not all demo orders were posted: {fault}; see {data_dir / 'log' / 'orders.log'}")


def _announce(
    access: DemoAccess, ports: Ports, source: DemoOrderSource, database_url: str, database_urls: Mapping[str, str],
    metrics: Mapping[str, str], *, as_json: bool,
) -> None:  # fmt: skip
    ready = Ready(
        authority_url=ports.url("authority"), console_url=ports.url("console"), orders_url=ports.url("orders"),
        board_url=ports.url("board"), tenant_id=access.tenant_id, agent_api_key=access.agent_api_key, operators=access.operators,
        order_source=source, database_url=database_url, database_urls=database_urls,
    )  # fmt: skip
    print_ready(ready, metrics, as_json=as_json)
