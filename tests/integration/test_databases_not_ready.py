"""A database without a schema and an address that is none are wrong use, 2, for every command: nothing is to be waited for."""

from __future__ import annotations

import json
import logging
import signal
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
import structlog
from click.testing import CliRunner, Result

from sentinel.cli.main import main as sentinel
from sentinel.store.address import EMBEDDED
from sentinel.store.embedded import RunningServer
from tests.support.busy import long_enough
from tests.support.embedded_servers import running_without_roles
from tests.support.old_databases import empty_database
from tests.support.ports import free_port
from worker.cli import main as worker

ID, WHO = str(uuid.uuid4()), "--as a@b.example --reason r"
ASKS_A_DATABASE = f"""
sentinel demo --data-dir var --port FREE --console-port FREE --orders-port FREE --board-port FREE
sentinel serve --port FREE
sentinel migrate
sentinel tenants create x
sentinel tenants list
sentinel keys create
sentinel keys list
sentinel keys revoke {ID}
sentinel keys rotate {ID}
sentinel operators confirm a@b.example
sentinel operators create a@b.example --role viewer
sentinel operators deactivate a@b.example
sentinel operators reactivate a@b.example
sentinel operators list
sentinel operators reset-second-factor a@b.example
sentinel operators set-role a@b.example viewer
sentinel operators sign-out-everybody
sentinel approvals approve {ID} {WHO}
sentinel approvals collect {ID}
sentinel approvals handled {ID} {WHO} --reference r
sentinel approvals list
sentinel approvals reject {ID} {WHO}
sentinel approvals show {ID}
sentinel decisions explain {ID}
sentinel orders decide shop o-1 fulfil {WHO}
sentinel orders list
sentinel halts lift {ID} --reason r
sentinel halts list
sentinel halts set --scope tenant --reason r
sentinel export
sentinel webhooks add https://receiver.example/x
sentinel webhooks dead-letters
sentinel webhooks disable {ID}
sentinel webhooks enable {ID}
sentinel webhooks list
sentinel webhooks discard {ID} --reason r
sentinel webhooks resend {ID}
sentinel webhooks rotate {ID}
sentinel webhooks secret {ID}
sentinel webhooks test {ID}
sentinel switches list
sentinel switches off small_refund.defect --reason r
sentinel switches on small_refund.defect --canary 5 {WHO}
sentinel gates run defect --record --as a@b.example
sentinel in-doubt list
sentinel in-doubt resolve {ID} --executed --evidence e --as a@b.example
sentinel public-ids find ag_x
sentinel proof compare proof.json
sentinel checkpoint --file checkpoints
sentinel doctor
worker enqueue rows.jsonl
worker facts facts.jsonl
worker handled lge_1 --reference r --reason r
worker import-orders orders.csv
worker order-review reports list
worker order-review reports discard shop 1001 --reason r
worker order-review reports resend shop 1001 --reason r
worker order-review serve --port FREE
worker reconcile
worker reports list
worker reports discard {ID} --reason r
worker reports resend {ID} --reason r
worker retry --all-errors --reason r
worker run --once
worker run --loop
worker run --dry-run
worker summary
worker workflow explain lge_1
worker workflow simulate rows.jsonl
""".strip().splitlines()

ASKS_NONE = {
    "sentinel policy check", "sentinel policy show", "sentinel policy test", "sentinel tools explain", "sentinel tools list",
    "sentinel hook claude-code", "sentinel mcp-proxy", "sentinel proof verify", "worker check", "worker states draw",
    "worker workflow draw", "worker order-review lanes draw", "worker order-review replay", "worker order-review sign",
    "worker order-review sources",
}  # fmt: skip
MAKES_THE_SCHEMA = {"sentinel demo", "sentinel migrate"}
WITH_A_SERVER_OF_ITS_OWN = {"sentinel gates run"}
"""It tries its cases on a scratch database beside the empty one first, which takes its time; what then is, is the verb that records."""

STARTS_ONE_ON_PURPOSE = {"sentinel demo", "sentinel gates run"}
MALFORMED = (
    "nonsense", "http://127.0.0.1/sentinel", "postgresql://[", "postgresql://a:secret-word@127.0.0.1:port/sentinel",
    "postgresql://a:secret-word@127.0.0.1:99999/sentinel", "host=127.0.0.1 port=0 dbname=sentinel",
    "postgresql://127.0.0.1:1/sentinel?secret=word",
)  # fmt: skip
PROGRAMS: dict[str, click.Group] = {"sentinel": sentinel, "worker": worker}


def name_of(line: str) -> str:
    """The words of a command line that name its command."""
    group, words = PROGRAMS[line.split()[0]], line.split()
    for count, word in enumerate(words[1:], 2):
        found = group.get_command(click.Context(group), word)
        if not isinstance(found, click.Group):
            return " ".join(words[:count])
        group = found
    raise AssertionError(line)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Result]:
    """Run a command line of the table on a database address, in a folder with the files that it names."""
    row = {"ledger_entry_id": "lge_1", "refund_id": "rf_1", "amount": {"value": 126, "currency": "USD"}}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    (tmp_path / "facts.jsonl").write_text('{"kind": "complaint", "channel": "private", "order_ref": "o-1"}')
    columns = "InvoiceNo,StockCode,Description,Quantity,InvoiceDate,UnitPrice,CustomerID,Country"
    (tmp_path / "orders.csv").write_text(f"{columns}\n536365,85123A,A,6,12/1/2010 8:26,2.55,17850,United Kingdom\n")
    (tmp_path / "proof.json").write_text('{"hash": "sha256:' + "0" * 64 + '"}')
    monkeypatch.chdir(tmp_path)
    # What a program in the foreground would set for itself is not set for the tests.
    monkeypatch.setattr(signal, "signal", lambda *_: signal.SIG_DFL)
    monkeypatch.setattr(structlog, "configure", lambda **_: None)
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)
    secret = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJ"
    env = {
        "SENTINEL_SECRET_KEYS": secret, "SENTINEL_EXPORT_SECRETS": secret, "SENTINEL_CONFIRM_SECRETS": secret,
        "SENTINEL_TENANT_ID": str(uuid.uuid4()), "SENTINEL_ORDERS_API_KEY": "key", "SENTINEL_REFUND_AGENT_API_KEY": "key",
        "SENTINEL_URL": "http://127.0.0.1:9",
    }  # fmt: skip

    def run(line: str, url: str) -> Result:
        program, *words = [str(free_port()) if word == "FREE" else word for word in line.split()]
        return CliRunner().invoke(PROGRAMS[program], words, env={**env, "SENTINEL_DATABASE_URL": url})

    return run


@pytest.fixture(scope="module")
def server_without_roles() -> Iterator[RunningServer]:
    """A PostgreSQL in which no program has a role yet."""
    with running_without_roles() as server:
        yield server


def not_as_wanted(run: Callable[[str, str], Result], lines: list[str], url: str, word: str) -> dict[str, str]:
    """Of each command that does not end with 2 and one line that has `word`, what it did."""
    wrong = {}
    for line in lines:
        done = run(line, url)
        told = done.stderr.strip().splitlines()[-1:]
        ended = done.exception is None or isinstance(done.exception, SystemExit)
        if not (done.exit_code == 2 and ended and told and word in told[0]) or "secret-word" in done.output:
            wrong[line] = f"{done.exit_code} {done.exception!r} {done.output.strip()[-300:]}"
    return wrong


def waiting_for_a_schema() -> list[str]:
    """The lines whose command needs one and makes none."""
    return [line for line in ASKS_A_DATABASE if name_of(line) not in MAKES_THE_SCHEMA | WITH_A_SERVER_OF_ITS_OWN]


def test_every_command_is_in_the_table() -> None:
    def named(group: click.Group, path: str) -> Iterator[str]:
        for word in group.list_commands(click.Context(group)):
            found = group.get_command(click.Context(group), word)
            yield from named(found, f"{path} {word}") if isinstance(found, click.Group) else [f"{path} {word}"]

    every = {name for program, group in PROGRAMS.items() for name in named(group, program)}
    assert {name_of(line) for line in ASKS_A_DATABASE} | ASKS_NONE == every


def test_a_database_without_a_schema_is_wrong_use(run: Callable[[str, str], Result], pg_server: RunningServer) -> None:
    with empty_database(pg_server) as url:
        assert not_as_wanted(run, waiting_for_a_schema(), url, "run `sentinel migrate` first") == {}


def test_so_is_one_whose_server_has_no_roles_of_ours(
    run: Callable[[str, str], Result], server_without_roles: RunningServer
) -> None:
    lines = waiting_for_a_schema()
    assert not_as_wanted(run, lines, server_without_roles.admin_url, "run `sentinel migrate` first") == {}


@pytest.mark.parametrize("address", MALFORMED)
def test_an_address_that_is_none_is_wrong_use_and_told_without_its_secret(
    run: Callable[[str, str], Result], address: str
) -> None:
    assert not_as_wanted(run, ASKS_A_DATABASE, address, "not a PostgreSQL address") == {}


def test_an_address_that_is_missing_starts_no_database_where_that_is_switched_off(
    run: Callable[[str, str], Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []
    for where in ("sentinel.store.embedded.running", "sentinel.store.embedded.supervised"):
        monkeypatch.setattr(where, lambda *given, **_: started.append(given))
    monkeypatch.setenv(EMBEDDED, "off")
    lines = [line for line in ASKS_A_DATABASE if name_of(line) not in STARTS_ONE_ON_PURPOSE]
    assert not_as_wanted(run, lines, "", f"SENTINEL_DATABASE_URL: required, because {EMBEDDED} is off") == {}
    monkeypatch.setenv(EMBEDDED, "no")
    assert not_as_wanted(run, lines, "", f"{EMBEDDED}: must be on or off") == {}
    assert started == []


def test_nobody_at_an_address_is_no_database() -> None:
    """Else the tests above would pass where everything is wrong use."""
    done = CliRunner().invoke(
        worker, ["summary"], env={"SENTINEL_DATABASE_URL": f"postgresql://127.0.0.1:{free_port()}/sentinel"}
    )
    assert done.exit_code == 3, done.output


def test_a_migration_of_a_database_that_takes_no_connection_ends_like_every_command() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"postgresql://nobody@127.0.0.1:{silent.getsockname()[1]}/nothing"
        began = time.monotonic()
        done = CliRunner().invoke(sentinel, ["migrate"], env={"SENTINEL_DATABASE_URL": url})
    assert (done.exit_code, done.stderr.count("\n")) == (3, 1) and "cannot reach the database at" in done.stderr
    assert time.monotonic() - began < long_enough(30)
