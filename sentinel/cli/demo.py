"""`sentinel demo`: everything on this machine, on real processes and a real database, with a ledger to watch."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import psycopg

from sentinel.cli.demo_ledger import demo_rows
from sentinel.cli.demo_small_refunds import SmallRefunds
from sentinel.cli.processes import Processes
from sentinel.cli.serve import kept_secret
from sentinel.core.errors import SentinelError

TENANT = "public-demo"
READY_SECONDS = 30.0
OPERATORS = ("viewer", "approver", "admin")


class DemoFailed(SentinelError):
    """A part of the demo did not come up; `detail` names it and its log."""

    code = "demo-failed"


@dataclass(frozen=True, slots=True)
class Access:
    """What a visitor needs; kept in the data folder, readable by its owner only, so that a restart shows the same."""

    tenant_id: str
    agent_api_key: str
    operators: list[dict[str, str]]


@click.command()
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    default=None,
    help="Folder of the database and everything else.  [SENTINEL_DATA_DIR, default var]",
)
@click.option(
    "--port", type=click.IntRange(1, 65535), default=None, help="Port of the authority.  [SENTINEL_PORT, default 7860]"
)
@click.option(
    "--console-port",
    type=click.IntRange(1, 65535),
    default=None,
    help="Port of the console.  [SENTINEL_CONSOLE_PORT, default 7861]",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON line when ready, nothing else on standard output."
)
@click.option("--once", is_flag=True, help="Start, run the refund agent over the ledger once, stop.")
def command(data_dir: Path | None, port: int | None, console_port: int | None, as_json: bool, once: bool) -> None:
    """Start an embedded PostgreSQL, the authority, the refund worker, the console and the public board, with a demo ledger.

    Runs until Ctrl-C or SIGTERM, and stops all of it. Starting again continues with the same data; SIGHUP reloads the
    policies. Uses SENTINEL_DATABASE_URL instead of the embedded database where it is set.
    """
    data_dir = data_dir or Path(os.environ.get("SENTINEL_DATA_DIR", "var"))
    port = port or int(os.environ.get("SENTINEL_PORT", "7860"))
    console_port = console_port or int(os.environ.get("SENTINEL_CONSOLE_PORT", "7861"))
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    _require_ports(port, console_port)

    def say(text: str) -> None:
        if not as_json:
            click.echo(text, err=True)

    with _database(data_dir, say) as urls, contextlib.ExitStack() as stack:
        processes = Processes(data_dir / "log")
        stack.callback(processes.stop)
        access = _prepare(urls["admin"], data_dir)
        env = _environment(urls, data_dir, access, port, console_port)
        _start_all(processes, env, access, port, console_port, data_dir, stop, say)
        if stop.is_set():
            return
        small = SmallRefunds(processes, env, access, urls["admin"], data_dir, say)
        if once:
            small.begin()
        failed = processes.run(
            "refund-agent", _module("worker.retail_refund_agent", "--once"), env["worker"], show=not as_json
        )
        if not once:
            processes.start("worker", _module("worker.retail_refund_agent", "--loop"), env["worker"])
        _announce(access, urls["admin"], port, console_port, as_json)
        if once:
            sys.exit(failed)
        # The launch gate takes some seconds; the demo is ready without it, and its rows come in while one looks.
        threading.Thread(target=small.begin, daemon=True, name="small-refunds").start()
        signal.signal(signal.SIGHUP, lambda *_: processes.signal("authority", signal.SIGHUP))
        while not stop.wait(0.5):
            for name in processes.restart_ended():
                click.echo(f"{name} ended and was started again; see {data_dir / 'log' / f'{name}.log'}", err=True)
        say("Stopping.")


def _module(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", name, *arguments]


def _require_ports(port: int, console_port: int) -> None:
    from sentinel.server import CannotServe, require_free_port

    if port == console_port:
        raise CannotServe(f"the authority and the console cannot both have port {port}")
    require_free_port("127.0.0.1", port, "--port")
    require_free_port("127.0.0.1", console_port, "--console-port")


@contextlib.contextmanager
def _database(data_dir: Path, say: Callable[[str], None]) -> Iterator[dict[str, str]]:
    """Addresses by program: the embedded server's, each with its own login, or the given database for all."""
    given = os.environ.get("SENTINEL_DATABASE_URL")
    if given:
        yield dict.fromkeys(("admin", "authority", "worker", "console"), given)
        return
    from sentinel.store.database import AUTHORITY, WORKER
    from sentinel.store.embedded import running

    say("Starting PostgreSQL …")
    with running(data_dir, own=True) as server:
        # The console's login is the administrator's: it takes two roles, the operators' and the board's.
        yield {
            "admin": server.admin_url, "console": server.admin_url,
            "authority": server.url(user=AUTHORITY), "worker": server.url(user=WORKER),
        }  # fmt: skip


def _prepare(admin_url: str, data_dir: Path) -> Access:
    """Migrate, and make the tenant, the people and the key the first time."""
    from sentinel.store.migrate import migrate

    migrate(admin_url)
    with psycopg.connect(admin_url.replace("postgresql+psycopg://", "postgresql://"), autocommit=True) as connection:
        if not os.environ.get("SENTINEL_DATABASE_URL"):
            for role in ("sentinel_authority", "sentinel_worker"):
                connection.execute(f"alter role {role} login".encode())
        path = data_dir / "demo.json"
        if path.exists():
            access = Access(**json.loads(path.read_text()))
            if connection.execute("select 1 from sentinel.tenants where tenant_id = %s", [access.tenant_id]).fetchone():
                return access
    access = _make_access(admin_url)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(asdict(access), file)
    return access


def _make_access(admin_url: str) -> Access:
    import secrets

    from sentinel.services.create_operator import create_operator
    from sentinel.services.create_tenant import create_tenant
    from sentinel.services.issue_key import issue_key
    from sentinel.store.database import CONSOLE, Pool, with_role
    from sentinel.store.tenants import list_tenants

    pool = Pool(with_role(admin_url, CONSOLE), size=1)
    try:
        label = TENANT if all(one.label != TENANT for one in list_tenants(pool)) else f"demo-{uuid.uuid4().hex[:8]}"
        tenant_id = create_tenant(pool, label)
        operators = []
        for role in OPERATORS:
            password = secrets.token_urlsafe(12)
            email = f"{role}@demo.example"
            create_operator(pool, tenant_id, email=email, password=password, role=role)
            operators.append({"email": email, "password": password, "role": role})
        key = issue_key(pool, tenant_id, agent_id=None, label="demo agent")
    finally:
        pool.close()
    with psycopg.connect(admin_url.replace("postgresql+psycopg://", "postgresql://"), autocommit=True) as connection:
        connection.execute("insert into refunds.defaults (tenant_id) values (%s) on conflict do nothing", [tenant_id])
    return Access(str(tenant_id), key.key, operators)


def _environment(
    urls: dict[str, str], data_dir: Path, access: Access, port: int, console_port: int
) -> dict[str, dict[str, str]]:
    base = {
        key: value for key, value in os.environ.items() if key not in ("SENTINEL_DATABASE_URL", "WORKER_DATABASE_URL")
    }
    base |= {"SENTINEL_DATA_DIR": str(data_dir), "SENTINEL_URL": f"http://127.0.0.1:{port}", "PYTHONUNBUFFERED": "1"}
    secret = os.environ.get("SENTINEL_SECRET_KEYS") or kept_secret(data_dir)
    cards = os.environ.get("CONFIRM_SECRETS") or kept_secret(data_dir, "confirm_secret")
    return {
        "authority": base | {"SENTINEL_DATABASE_URL": urls["authority"], "SENTINEL_SECRET_KEYS": secret, "SENTINEL_PORT": str(port)},
        "worker": base | {
            "WORKER_DATABASE_URL": urls["worker"], "SENTINEL_REFUND_AGENT_API_KEY": access.agent_api_key,
            "SENTINEL_TENANT_ID": access.tenant_id, "CONFIRM_SECRETS": cards, "WORKER_OUTBOX_DIR": str(data_dir / "outbox"),
            "CONFIRM_BASE_URL": f"http://127.0.0.1:{console_port}",
        },
        "console": base | {
            "SENTINEL_DATABASE_URL": urls["console"], "SENTINEL_CONSOLE_PORT": str(console_port), "SENTINEL_INSECURE_COOKIES": "true",
            "SENTINEL_PUBLIC_TENANT": access.tenant_id, "CONFIRM_SECRETS": cards,
            "SENTINEL_PUBLIC_AGENTS": os.environ.get("SENTINEL_PUBLIC_AGENTS", "retail-refund-agent=refund:refunds,*"),
        },
    }  # fmt: skip


def _start_all(
    processes: Processes, env: dict[str, dict[str, str]], access: Access, port: int, console_port: int, data_dir: Path,
    stop: threading.Event, say: Callable[[str], None],
) -> None:  # fmt: skip
    say("Starting the authority and the console …")
    processes.start("authority", _module("sentinel.cli.main", "serve", "--graceful-seconds", "1"), env["authority"])
    processes.start("console", _module("ops_console"), env["console"])
    loaded = data_dir / "demo_ledger_loaded"
    if not loaded.exists() or loaded.read_text() != access.tenant_id:
        if processes.run("enqueue", _module("worker.cli", "enqueue", "-"), env["worker"], stdin=demo_rows()) != 0:
            raise DemoFailed(f"the demo ledger could not be loaded; see {data_dir / 'log' / 'enqueue.log'}")
        loaded.write_text(access.tenant_id)
    for name, at in (("authority", port), ("console", console_port)):
        _wait_ready(processes, name, f"http://127.0.0.1:{at}/readyz", data_dir, stop)


def _wait_ready(processes: Processes, name: str, url: str, data_dir: Path, stop: threading.Event) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and not stop.is_set():
        if processes.ended() is not None:
            raise DemoFailed(f"{processes.ended()} ended at once; see {data_dir / 'log' / f'{processes.ended()}.log'}")
        with contextlib.suppress(urllib.error.URLError, OSError), urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310
            if answer.status == 200:
                return
        stop.wait(0.05)
    if not stop.is_set():
        raise DemoFailed(f"{name} did not become ready; see {data_dir / 'log' / f'{name}.log'}")


def _announce(access: Access, database_url: str, port: int, console_port: int, as_json: bool) -> None:
    authority, console = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{console_port}"
    if as_json:
        click.echo(json.dumps({
            "authority_url": authority, "console_url": console, "tenant_id": access.tenant_id,
            "agent_api_key": access.agent_api_key, "operators": access.operators, "database_url": database_url,
        }))  # fmt: skip
        sys.stdout.flush()
        return
    from rich.console import Console
    from rich.table import Table

    out = Console(width=None if sys.stdout.isatty() else 120)
    places = Table(title="sentinel is running", title_justify="left", show_header=False)
    for name, text in (
        ("Authority", authority), ("  documentation", f"{authority}/docs"), ("Public board", f"{console}/live"),
        ("  feed", f"{console}/ops/api/live/feed"), ("Operators' API", f"{console}/ops/api/session"),
        ("Tenant", access.tenant_id), ("Agent key", access.agent_api_key), ("Database", database_url),
    ):  # fmt: skip
        places.add_row(name, text)
    people = Table(title="Sign-ins", title_justify="left")
    for column in ("role", "e-mail", "password"):
        people.add_column(column)
    for person in access.operators:
        people.add_row(person["role"], person["email"], person["password"])
    out.print(places)
    out.print(people)
    out.print("Ctrl-C stops everything; starting again continues with the same data.")
