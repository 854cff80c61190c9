"""G20: the authority refuses to start unsafe: an exit code, exactly one clear line, and nothing that listens."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from ops_console.__main__ import command as console
from sentinel.cli.main import main
from sentinel.platform.resources import policies_dir
from sentinel.store.database import AUTHORITY, CONSOLE, PUBLIC, WORKER
from sentinel.store.embedded import RunningServer
from tests.support.fixtures import unique
from tests.support.logins import console_urls, make_login, program_url
from tests.support.ports import free_port, listens
from tests.support.served_programs import run

SECRET = "only-for-unsafe-starts-0123456789abc"


@dataclass
class Place:
    """Where a bad configuration is made: a migrated database, a folder, and the environment to start in."""

    url: str
    folder: Path
    port: int
    stack: ExitStack
    env: dict[str, str] = field(default_factory=dict)

    def sql(self, statement: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as admin:
            admin.execute(statement.encode())

    @property
    def name(self) -> str:
        return str(psycopg.conninfo.conninfo_to_dict(self.url)["dbname"])

    def policies(self, change: Callable[[Path], Any]) -> dict[str, str]:
        shutil.copytree(policies_dir(), self.folder / "policies", ignore=shutil.ignore_patterns("cases"))
        change(self.folder / "policies")
        return {"SENTINEL_POLICIES_DIR": str(self.folder / "policies")}


@pytest.fixture
def place(database_url: str, tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        port = free_port()
        made = Place(database_url, tmp_path, port, stack)
        made.env = {
            "SENTINEL_DATABASE_URL": program_url(database_url, AUTHORITY),
            "SENTINEL_SECRET_KEYS": SECRET,
            "SENTINEL_PORT": str(port),
            "SENTINEL_PROCESSES": "1",
        }
        yield made


def listen(place: Place) -> None:
    taken = place.stack.enter_context(socket.socket())
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    taken.bind(("127.0.0.1", place.port))
    taken.listen()


def owner_login(place: Place) -> dict[str, str]:
    """A login called like the program's role that owns a table: what a careless GRANT makes."""
    place.sql("alter table sentinel.budgets owner to sentinel_authority")
    return {}


def another_revision(place: Place) -> dict[str, str]:
    place.sql("update public.schema_version set version_num = '0000'")
    return {}


def trigger_off(place: Place) -> dict[str, str]:
    place.sql("alter table sentinel.event_rows disable trigger append_only")
    return {}


def trigger_gone(place: Place) -> dict[str, str]:
    place.sql("drop trigger append_only on sentinel.policies")
    return {}


def no_waiting_for_the_disk(place: Place) -> dict[str, str]:
    place.sql(f"alter database {place.name} set synchronous_commit = off")
    return {}


def read_only(place: Place) -> dict[str, str]:
    place.sql(f"alter database {place.name} set default_transaction_read_only = on")
    return {}


def superuser(place: Place) -> dict[str, str]:
    place.sql("alter role sentinel_authority superuser")
    place.stack.callback(place.sql, "alter role sentinel_authority nosuperuser")
    return {}


def bypasses(place: Place) -> dict[str, str]:
    place.sql("alter role sentinel_authority bypassrls")
    place.stack.callback(place.sql, "alter role sentinel_authority nobypassrls")
    return {}


TRACES = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "4096"}
"""More spans at once than the queue holds, 2,048 unless it is set too."""

BAD: dict[str, tuple[Callable[[Place], dict[str, str] | None], str]] = {
    "a weak secret": (lambda p: {"SENTINEL_SECRET_KEYS": "changeme"}, "SENTINEL_SECRET_KEYS"),
    "a long secret of one letter": (lambda p: {"SENTINEL_SECRET_KEYS": "a" * 64}, "SENTINEL_SECRET_KEYS"),
    "a good secret and a weak one": (lambda p: {"SENTINEL_SECRET_KEYS": SECRET + ",short"}, "SENTINEL_SECRET_KEYS"),
    "no secret": (lambda p: {"SENTINEL_SECRET_KEYS": ""}, "SENTINEL_SECRET_KEYS"),
    "a secret's file that is not there": (
        lambda p: {"SENTINEL_SECRET_KEYS": "", "SENTINEL_SECRET_KEYS_FILE": f"{p.folder}/none"},
        "SENTINEL_SECRET_KEYS_FILE",
    ),
    "a secret and its file": (lambda p: {"SENTINEL_SECRET_KEYS_FILE": f"{p.folder}/none"}, "both given"),
    "checkpoints that cannot be written": (
        lambda p: {"SENTINEL_CHECKPOINT_FILE": str(p.folder)},
        "SENTINEL_CHECKPOINT_FILE",
    ),
    "a port that is none": (lambda p: {"SENTINEL_PORT": "seventy"}, "SENTINEL_PORT"),
    "a port out of range": (lambda p: {"SENTINEL_PORT": "70000"}, "SENTINEL_PORT"),
    "an unknown log level": (lambda p: {"SENTINEL_LOG_LEVEL": "loud"}, "SENTINEL_LOG_LEVEL"),
    "no place for a key's stream": (lambda p: {"SENTINEL_MAX_STREAMS_PER_KEY": "0"}, "SENTINEL_MAX_STREAMS_PER_KEY"),
    "traces that cannot be set up": (lambda p: TRACES, "OTEL_"),
    "a debugger": (lambda p: {"SENTINEL_DEBUG": "1"}, "SENTINEL_DEBUG"),
    "no time to report": (lambda p: {"SENTINEL_REPORT_DEADLINE_SECONDS": "1"}, "SENTINEL_REPORT_DEADLINE_SECONDS"),
    "no processes": (lambda p: {"SENTINEL_PROCESSES": "0"}, "SENTINEL_PROCESSES"),
    "no folder of policies": (lambda p: {"SENTINEL_POLICIES_DIR": str(p.folder / "none")}, "none"),
    "an empty folder of policies": (
        lambda p: p.policies(lambda f: [one.unlink() for one in f.glob("*.yaml")]),
        "policy",
    ),
    "a policy with a mistake": (
        lambda p: p.policies(lambda f: (f / "bad.yaml").write_text("policy: bad\nrules: 7\n")),
        "bad.yaml",
    ),
    "a database that is not there": (
        lambda p: {"SENTINEL_DATABASE_URL": "postgresql://127.0.0.1:1/none"},
        "cannot use the database",
    ),
    "an address that is none": (lambda p: {"SENTINEL_DATABASE_URL": "mysql://nowhere"}, "PostgreSQL address"),
    "another revision": (another_revision, "sentinel migrate"),
    "a superuser": (superuser, "superuser"),
    "a role above row security": (bypasses, "superuser or bypasses"),
    "an owner": (owner_login, "owns"),
    "a trigger that is off": (trigger_off, "append-only"),
    "a trigger that is gone": (trigger_gone, "append-only"),
    "commits that do not wait for the disk": (no_waiting_for_the_disk, "synchronous_commit"),
    "a database that cannot be written": (read_only, "read"),
    "a taken port": (listen, "already in use"),
    "one port for two listeners": (
        lambda p: {"SENTINEL_HEALTH_PORT": str(p.port)},
        "SENTINEL_HEALTH_PORT: must be another",
    ),
    "a port of every address for another listener": (
        lambda p: {"SENTINEL_HEALTH_PORT": str(p.port), "SENTINEL_HEALTH_HOST": "0.0.0.0"},
        "SENTINEL_HEALTH_PORT: must be another",
    ),
}


MENDED_BY_ITSELF = {"a database that is not there": 3, "a database that cannot be written": 3, "a taken port": 1}
"""What another start may find well, so that a supervisor starts the program again: name → exit code."""


def started(*_: object) -> None:
    raise AssertionError("it started")


def serve_here(monkeypatch: pytest.MonkeyPatch, env: dict[str, str]) -> Any:
    """`sentinel serve` in this process, up to the point where it would begin to listen."""
    set_environment(monkeypatch, env)
    monkeypatch.setattr("sentinel.authority.serving.configure_logs", lambda *_, **__: None)
    monkeypatch.setattr("sentinel.authority.serving._run", started)
    return CliRunner().invoke(main, ["serve"])


def console_here(monkeypatch: pytest.MonkeyPatch, env: dict[str, str]) -> Any:
    """`python -m ops_console` in this process, up to the point where it would begin to listen."""
    set_environment(monkeypatch, env)
    monkeypatch.setattr("ops_console.serving.configure_logs", lambda *_, **__: None)
    monkeypatch.setattr("ops_console.serving.run_side_by_side", started)
    return CliRunner().invoke(console, [])


def set_environment(monkeypatch: pytest.MonkeyPatch, env: dict[str, str]) -> None:
    for name in [name for name in os.environ if name.startswith("SENTINEL_")]:
        monkeypatch.delenv(name)
    for name, value in env.items():
        monkeypatch.setenv(name, value)


def require_refusal(code: int | None, out: str, err: str, word: str) -> None:
    """One line that begins with "Error: " and names what is wrong, and no secret."""
    told = err.splitlines()
    assert code not in (0, None)
    assert len(told) == 1, err
    assert told[0].startswith("Error: ")
    assert word in told[0]
    assert out == ""
    assert SECRET not in err


@pytest.mark.parametrize("name", BAD)
def test_the_authority_does_not_start_with(place: Place, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, word = BAD[name]
    ran = serve_here(monkeypatch, place.env | (make(place) or {}))
    require_refusal(ran.exit_code, ran.stdout, ran.stderr, word)
    # What a person must mend is told apart from what another start may find well: supervisors start the latter again.
    assert ran.exit_code == MENDED_BY_ITSELF.get(name, 2)


def test_mutant_the_same_place_without_a_mistake_would_start(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a refusal of everything would pass the tests above."""
    ran = serve_here(monkeypatch, place.env)
    assert isinstance(ran.exception, AssertionError)
    assert str(ran.exception) == "it started"


@pytest.mark.parametrize("only_reads", [False, True])
def test_the_console_starts_whether_or_not_its_ledger_can_be_written(
    place: Place, only_reads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger in a database of its own, in the middle of a failover: people still halt and decide."""
    login = unique("ledger")
    ledger = make_login(place.url, login, f"in role {CONSOLE}, {PUBLIC}")
    place.stack.callback(place.sql, f"drop role {login}")
    if only_reads:
        place.sql(f"alter role {login} set default_transaction_read_only = on")
    ports = {f"SENTINEL_{name}_PORT": str(free_port()) for name in ("CONSOLE", "BOARD")}
    ran = console_here(monkeypatch, place.env | console_urls(place.url) | ports | {"WORKER_DATABASE_URL": ledger})
    assert (type(ran.exception), str(ran.exception)) == (AssertionError, "it started"), ran.output


@pytest.mark.parametrize("name", ["a weak secret", "a policy with a mistake", "a trigger that is off", "a taken port"])
def test_as_a_process_it_ends_with_one_line_and_nothing_listens(place: Place, name: str) -> None:
    make, word = BAD[name]
    ran = run("serve", timeout=120, **place.env | (make(place) or {}))
    require_refusal(ran.returncode, ran.stdout, ran.stderr, word)
    if name != "a taken port":
        assert not listens(place.port)


def test_an_empty_database_is_refused_and_the_command_named(
    pg_server: RunningServer, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = pg_server.url(user=AUTHORITY, database="postgres")
    ran = serve_here(monkeypatch, place.env | {"SENTINEL_DATABASE_URL": url})
    require_refusal(ran.exit_code, ran.stdout, ran.stderr, "sentinel migrate")


def test_several_mistakes_are_told_together_in_one_line(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = serve_here(
        monkeypatch, place.env | {"SENTINEL_LOG_LEVEL": "loud", "SENTINEL_PORT": "none", "SENTINEL_THREADS": "-1"}
    )
    for name in ("SENTINEL_LOG_LEVEL", "SENTINEL_PORT", "SENTINEL_THREADS"):
        require_refusal(ran.exit_code, ran.stdout, ran.stderr, name)


def test_what_is_malformed_and_what_is_unsafe_are_told_together(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    unsafe = {"SENTINEL_SECRET_KEYS": "short", "SENTINEL_DEBUG": "1", "SENTINEL_REPORT_DEADLINE_SECONDS": "9"}
    ran = serve_here(monkeypatch, place.env | unsafe | {"SENTINEL_THREADS": "x"})
    for name in (*unsafe, "SENTINEL_THREADS"):
        require_refusal(ran.exit_code, ran.stdout, ran.stderr, name)
    assert ran.stderr.count("SENTINEL_THREADS") == 1


@pytest.mark.parametrize("server_setting", ["fsync=off", "full_page_writes=off"])
def test_a_server_that_can_lose_what_it_confirmed_is_refused(server_setting: str, place: Place) -> None:
    """The settings are the server's own, so the check is asked about a server that says so."""
    from sentinel.store import safety

    name, _, value = server_setting.partition("=")

    class Says:
        def __init__(self, connection: Any) -> None:
            self.connection = connection

        def execute(self, query: str, *arguments: Any) -> Any:
            rows = self.connection.execute(query, *arguments)
            if query != safety.SETTINGS:
                return rows
            changed = {**dict(rows.fetchall()), name: value}
            return type("Rows", (), {"fetchall": lambda self: list(changed.items())})()

    with psycopg.connect(place.url) as connection:
        connection.execute("set role sentinel_authority")
        assert safety.safety_faults(connection) == []
        assert any(name in fault for fault in safety.safety_faults(Says(connection)))  # type: ignore[arg-type]


def test_a_leftover_failpoint_keeps_the_worker_from_starting(place: Place) -> None:
    env = place.env | {"SENTINEL_FAILPOINT": "after_claim:kill", "SENTINEL_REFUND_AGENT_API_KEY": "snt_live_x"}
    ran = run("run", "--once", program="worker.cli", **{**env, "WORKER_DATABASE_URL": program_url(place.url, WORKER)})
    assert ran.returncode != 0
    assert "SENTINEL_ALLOW_FAILPOINTS" in ran.stderr
    assert ran.stderr.count("\n") == 1
