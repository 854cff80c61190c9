"""G20 from outside: every bad configuration of every program, as a process: one clear line, an exit code, no listener."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
import urllib3

from sentinel.store import database as store_database
from sentinel.store.embedded import RunningServer
from tests.conftest import at
from tests.faults.test_unsafe_starts import (
    BAD,
    SECRET,
    TRACES,
    Place,
    another_revision,
    listen,
    no_waiting_for_the_disk,
    read_only,
    trigger_off,
)
from tests.support.fixtures import add_tenant, unique
from tests.support.kept_databases import drop_database
from tests.support.killed import children_of
from tests.support.logins import console_urls, program_url
from tests.support.ports import free_port, listens
from tests.support.served_programs import clean_env, end, eventually, module, never, request, run_warm_command
from tests.support.warm_process import WarmProcess, run_warm

pytestmark = pytest.mark.slow
Bad = dict[str, tuple[Callable[[Place], dict[str, str] | None], str]]
AT_ONCE = 4

ELSEWHERE = {"a weak secret", "a policy with a mistake", "a trigger that is off", "a taken port"}
"""Started as processes by test_unsafe_starts already."""

WHOLE_SERVER = {"a superuser", "a role above row security"}
"""Change a role for every database of the server, so nothing else may start meanwhile."""

OWN_DATABASE = {
    "another revision", "an owner", "a trigger that is gone", "a trigger that is off", "no tenant",
    "commits that do not wait for the disk", "a database that cannot be written",
}  # fmt: skip
"""Change the database, so they get one for themselves; the others share one."""

CONSOLE: Bad = {
    "weak secrets of confirm links": (lambda p: {"CONFIRM_SECRETS": "weak"}, "CONFIRM_SECRETS"),
    "a good secret and a weak one": (lambda p: {"CONFIRM_SECRETS": f"{SECRET},short"}, "CONFIRM_SECRETS"),
    "a port that is none": (lambda p: {"SENTINEL_CONSOLE_PORT": "seventy"}, "SENTINEL_CONSOLE_PORT"),
    "an unknown log level": (lambda p: {"SENTINEL_LOG_LEVEL": "loud"}, "SENTINEL_LOG_LEVEL"),
    "cookies in the clear for everybody": (
        lambda p: {"SENTINEL_INSECURE_COOKIES": "1", "SENTINEL_CONSOLE_HOST": "0.0.0.0"}, "SENTINEL_INSECURE_COOKIES"),
    "no place for a viewer": (lambda p: {"SENTINEL_CONSOLE_MAX_STREAMS": "0"}, "SENTINEL_CONSOLE_MAX_STREAMS"),
    "sessions idle for longer than they last": (
        lambda p: {"SENTINEL_SESSION_IDLE_SECONDS": "900", "SENTINEL_SESSION_SECONDS": "60"}, "SENTINEL_SESSION_IDLE_SECONDS"),
    "an address with a path": (lambda p: {"SENTINEL_CONSOLE_ORIGIN": "https://a.example/x"}, "SENTINEL_CONSOLE_ORIGIN"),
    "public agents that cannot be read": (lambda p: {"SENTINEL_PUBLIC_AGENTS": "a,b=c"}, "SENTINEL_PUBLIC_AGENTS"),
    "too many proxies": (lambda p: {"SENTINEL_TRUSTED_PROXIES": "9"}, "SENTINEL_TRUSTED_PROXIES"),
    "a database that is not there": (lambda p: {"SENTINEL_DATABASE_URL": "postgresql://127.0.0.1:1/none"}, "cannot use the database"),
    "an address that is none": (lambda p: {"SENTINEL_DATABASE_URL": "mysql://nowhere"}, "PostgreSQL address"),
    "another revision": (another_revision, "sentinel migrate"),
    "a trigger that is off": (trigger_off, "append-only"),
    "commits that do not wait for the disk": (no_waiting_for_the_disk, "synchronous_commit"),
    "a database that cannot be written": (read_only, "read"),
    "a taken port": (listen, "already in use"),
    "one port for two listeners": (
        lambda p: {"SENTINEL_CONSOLE_HEALTH_PORT": str(p.port)}, "SENTINEL_CONSOLE_HEALTH_PORT: must be another"),
    "one port for two listeners of two audiences": (
        lambda p: {"SENTINEL_BOARD_HEALTH_PORT": str(p.port)}, "SENTINEL_BOARD_HEALTH_PORT: must be another"),
}  # fmt: skip


def routes(change: Callable[[str], str]) -> Callable[[Place], dict[str, str]]:
    """The shipped policies with another route table."""

    def make(place: Place) -> dict[str, str]:
        def rewrite(folder: Path) -> None:
            file = folder / "routes.yaml"
            file.write_text(change(file.read_text()))

        return place.policies(rewrite)

    return make


def no_tenant(place: Place) -> dict[str, str]:
    place.sql("truncate refunds.defaults")
    return {}


SMTP = {"WORKER_NOTIFIER": "smtp", "SMTP_HOST": "127.0.0.1", "SMTP_FROM": "shop@shop.example"}
CRITIC = {"SENTINEL_CRITIC_URL": "http://127.0.0.1:9/v1", "SENTINEL_CRITIC_MODEL": "m"}

WORKER: Bad = {
    "no key": (lambda p: {"SENTINEL_REFUND_AGENT_API_KEY": ""}, "SENTINEL_REFUND_AGENT_API_KEY"),
    "an authority that is no address": (lambda p: {"SENTINEL_URL": "nowhere"}, "SENTINEL_URL"),
    "a port of the authority that is none": (lambda p: {"SENTINEL_URL": "http://127.0.0.1:78600"}, "SENTINEL_URL"),
    "a tenant that is no id": (lambda p: {"SENTINEL_TENANT_ID": "x"}, "SENTINEL_TENANT_ID"),
    "a lease that can be lost": (lambda p: {"WORKER_LEASE_SECONDS": "5"}, "WORKER_LEASE_SECONDS"),
    "weak secrets of confirm links": (lambda p: {"CONFIRM_SECRETS": "weak"}, "CONFIRM_SECRETS"),
    "links to nowhere": (lambda p: {"CONFIRM_BASE_URL": "shop.example"}, "CONFIRM_BASE_URL"),
    "an unknown notifier": (lambda p: {"WORKER_NOTIFIER": "pigeon"}, "WORKER_NOTIFIER"),
    "mail without a server": (lambda p: SMTP | {"SMTP_HOST": ""}, "SMTP_HOST"),
    "mail from nobody": (lambda p: SMTP | {"SMTP_FROM": ""}, "SMTP_FROM"),
    "mail in the clear": (lambda p: SMTP | {"SMTP_HOST": "mail.example", "SMTP_SECURITY": "none"}, "SMTP_SECURITY"),
    "an unknown recogniser": (lambda p: {"WORKER_RECOGNISER": "magic"}, "WORKER_RECOGNISER"),
    "labels that are not there": (lambda p: {"WORKER_RECOGNISER": f"labels:{p.folder}/none.json"}, "none.json"),
    "a critic without a model": (lambda p: CRITIC | {"SENTINEL_CRITIC_MODEL": ""}, "SENTINEL_CRITIC_MODEL"),
    "branches without a critic": (lambda p: {"SENTINEL_CRITIC_BRANCHES": "private/fee"}, "SENTINEL_CRITIC_BRANCHES"),
    "branches that there are not": (lambda p: CRITIC | {"SENTINEL_CRITIC_BRANCHES": "private/fees"}, 'did you mean "private/fee"'),
    "a price-difference system without a key": (lambda p: {"WORKER_PRICE_DIFFERENCE_URL": "https://a.example"}, "WORKER_PRICE_DIFFERENCE_KEY"),
    "a platform without a key": (lambda p: {"WORKER_PLATFORM_URL": "https://a.example"}, "WORKER_PLATFORM_KEY"),
    "a ticket system without an address": (lambda p: {"WORKER_TICKET_KEY": "k"}, "WORKER_TICKET_URL"),
    "a settlement that may take for ever": (lambda p: {"WORKER_SETTLEMENT_TIMEOUT_SECONDS": "0"}, "WORKER_SETTLEMENT_TIMEOUT_SECONDS"),
    "no route table": (lambda p: p.policies(lambda folder: (folder / "routes.yaml").unlink()), "routes.yaml"),
    "a route table that is no YAML": (routes(lambda text: "routes: ["), "routes.yaml"),
    "a route to an unknown system": (routes(lambda text: text.replace("settles_to: coupon", "settles_to: copoun")), "routes.yaml"),
    "a route with an unknown switch": (routes(lambda text: text.replace("small_refund.refund_fee", "small_refund.fee")), "routes.yaml"),
    "a database that is not there": (lambda p: {"SENTINEL_DATABASE_URL": "postgresql://127.0.0.1:1/none"}, "database"),
    "no tenant": (no_tenant, "tenant"),
    "traces that cannot be set up": (lambda p: TRACES, "OTEL_"),
}  # fmt: skip

PROGRAMS: dict[str, tuple[str, tuple[str, ...], Bad]] = {
    "serve": ("sentinel.cli.main", ("serve",), {name: BAD[name] for name in BAD if name not in ELSEWHERE | WHOLE_SERVER}),
    "console": ("ops_console", (), CONSOLE),
    "worker": ("worker.cli", ("run", "--once"), WORKER),
}  # fmt: skip


def login_of(program: str, url: str) -> dict[str, str]:
    """The addresses of a program's own logins by their variables."""
    if program == "console":
        return console_urls(url)
    return {
        "SENTINEL_DATABASE_URL": program_url(
            url, store_database.AUTHORITY if program == "serve" else store_database.WORKER
        )
    }


class StreamSlots:
    """Makes places to start programs in: a migrated database with a tenant, a folder, ports and a good environment."""

    def __init__(self, server: RunningServer, template: str, folder: Path, stack: ExitStack) -> None:
        self.server, self.template, self.folder, self.stack = server, template, folder, stack
        self.shared = self.database()

    def database(self) -> tuple[str, str]:
        """(address, agent key) of a database of its own."""
        name = unique("bad")
        with psycopg.connect(self.server.admin_url, autocommit=True) as admin:
            admin.execute(f"create database {name} template {self.template} strategy file_copy".encode())
        self.stack.callback(drop, self.server.admin_url, name)
        url = at(self.server.admin_url, name)
        tenant_id, key, _ = add_tenant(url, name.replace("_", "-"))
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute("insert into refunds.defaults (tenant_id) values (%s) on conflict do nothing", [tenant_id])
        return url, key

    def make(self, name: str, program: str = "serve") -> Place:
        """A place for the configuration of that name."""
        url, key = self.database() if name in OWN_DATABASE else self.shared
        port, folder = free_port(), self.folder / unique("place")
        folder.mkdir()
        place = Place(url, folder, port, self.stack)
        place.env = {
            **login_of(program, url), "SENTINEL_SECRET_KEYS": SECRET, "SENTINEL_PROCESSES": "1",
            "SENTINEL_PORT": str(port), "SENTINEL_CONSOLE_PORT": str(port), "SENTINEL_BOARD_PORT": str(free_port()),
            "SENTINEL_ORDERS_PORT": str(port), "SENTINEL_DATA_DIR": str(folder / "var"),
            "SENTINEL_REFUND_AGENT_API_KEY": key, "SENTINEL_URL": f"http://127.0.0.1:{free_port()}",
        }  # fmt: skip
        return place


@pytest.fixture
def slots(pg_server: RunningServer, migrated_template: str, tmp_path: Path) -> Iterator[StreamSlots]:
    with ExitStack() as stack:
        yield StreamSlots(pg_server, migrated_template, tmp_path, stack)


def drop(admin_url: str, name: str) -> None:
    with psycopg.connect(admin_url, autocommit=True) as admin:
        drop_database(admin, name)


def fault_of_refusal(ended: subprocess.CompletedProcess[str], word: str) -> str:
    """What is wrong with how a program refused; "" when it said one line with what is wrong, no secret, and ended."""
    lines = ended.stderr.splitlines()
    if ended.returncode == 0:
        return "it ran"
    if len(lines) != 1 or not lines[0].lower().startswith("error: ") or ended.stdout:
        return f"not one line: {ended.stderr!r} {ended.stdout!r}"
    if SECRET in ended.stderr or "Traceback" in ended.stderr or "snt_live" in ended.stderr:
        return f"it tells too much: {lines[0]}"
    return "" if word in lines[0] else f"{word!r} is not in {lines[0]!r}"


def refusal(program: str, name: str, place: Place) -> str:
    """Start a program in a place with a mistake; what is wrong with how it refused."""
    command, arguments, bad = PROGRAMS[program]
    make, word = bad[name]
    taken = "taken" in name
    ended = run_warm(command, *arguments, env=clean_env(**place.env | (make(place) or {})))
    found = fault_of_refusal(ended, word)
    return f"{name}: {found}" if found else f"{name}: it listens" if not taken and listens(place.port) else ""


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_bad_configuration_is_refused_with_one_clear_line(program: str, slots: StreamSlots) -> None:
    names = list(PROGRAMS[program][2])
    made = [slots.make(name, program) for name in names]
    with ThreadPoolExecutor(AT_ONCE) as several:
        found = list(several.map(lambda pair: refusal(program, *pair), zip(names, made, strict=True)))
    assert [text for text in found if text] == []
    print(f"N={len(names)} configurations of {program}")


@pytest.mark.parametrize("name", sorted(WHOLE_SERVER))
def test_a_role_that_may_too_much_is_refused_by_the_process(name: str, slots: StreamSlots) -> None:
    place = slots.make(name)
    make, word = BAD[name]
    with contextlib.ExitStack() as stack:
        place.stack = stack  # the role is mended when this test ends, not when its database goes
        assert fault_of_refusal(run_warm_command("serve", timeout=60, **place.env | (make(place) or {})), word) == ""


def started_console(place: Place) -> subprocess.Popen[str]:
    """The operators' console there, silent."""
    nowhere = subprocess.DEVNULL
    return WarmProcess(
        module("ops_console", "--only", "operators"),
        env=clean_env(**place.env),
        stdin=nowhere,
        stdout=nowhere,
        stderr=nowhere,
        text=True,
    )


def test_mutant_the_same_places_without_a_mistake_are_not_refused(slots: StreamSlots) -> None:
    """Else programs that refuse everything would pass the tests above."""
    worker, place = slots.make("good", "worker"), slots.make("good", "console")
    assert (
        fault_of_refusal(run_warm_command("run", "--once", program="worker.cli", timeout=60, **worker.env), "")
        == "it ran"
    )
    console = started_console(place)
    try:
        assert eventually(lambda: listens(place.port), within=30)
    finally:
        end(console)


def test_sighup_ends_no_process_of_a_program_that_reloads_nothing(slots: StreamSlots) -> None:
    """The finding: it ended every process at once, with the requests that they had in hand."""
    place = slots.make("good", "console")
    console = started_console(place)
    try:
        assert eventually(lambda: ready(place.port), within=30)
        before = children_of(console.pid)
        for _ in range(2):
            console.send_signal(signal.SIGHUP)
            # Its master handles a signal before it starts a process in the place of one that ended.
            assert never(lambda: children_of(console.pid) != before, within=2, every=0.5)
        assert before and console.poll() is None and ready(place.port)
    finally:
        end(console)


def ready(port: int) -> bool:
    with contextlib.suppress(urllib3.exceptions.HTTPError, OSError):
        return request("GET", f"http://127.0.0.1:{port}/readyz").status == 200
    return False
