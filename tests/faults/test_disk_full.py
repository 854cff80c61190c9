"""G26: a full disk is a refusal: nothing that was given out is lost, and space alone makes it work again."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from sentinel.platform.resources import invariants_sql
from sentinel.store.embedded import Embedded, remove
from sentinel.store.invariants import run_invariants
from sentinel.store.migrate import migrate
from tests.support.fixtures import Fixtures, add_tenant, guard_body, unique
from tests.support.roomy import roomy_policies
from tests.support.served_programs import Reply, Served, eventually, served_on

Body = dict[str, Any]
SIZE_MB, LEFT_KB = 192, 1536
"""The disk, and what a test leaves of it: room for some hundred decisions. WAL has its file already."""


ROOM_IN_LOG = (
    "select 16777216 * (1 + (select count(*) from pg_ls_waldir() where name > file_name)) - file_offset"
    " from pg_walfile_name_offset(pg_current_wal_insert_lsn())"
)
"""Bytes in the log's file in use and in those that lie ready after it."""


@contextmanager
def small_disk() -> Iterator[Path]:
    """A folder on a file system of its own, which is soon full. Skips where this process may not mount one."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("a disk of its own to fill needs root and mount")
    folder = Path(tempfile.gettempdir()) / f"sentinel-full-{os.getpid()}-{uuid.uuid4().hex[:6]}"
    folder.mkdir(mode=0o755)
    try:
        wanted = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MB}m,mode=0755", "tmpfs", str(folder)]
        done = subprocess.run(wanted, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"this machine does not let root mount a tmpfs: {done.stderr.strip()}")
        try:
            yield folder
        finally:
            subprocess.run(["umount", str(folder)], check=True)
    finally:
        folder.rmdir()


@pytest.fixture
def small() -> Iterator[tuple[Path, Embedded]]:
    """A migrated server whose whole data are on the small disk."""
    with small_disk() as disk:
        embedded = Embedded(disk / "base", own=True)
        try:
            server = embedded.start()
            assert server.data_dir.is_relative_to(disk), "it has to fill this disk and no other"
            migrate(server.admin_url)
            yield disk, embedded
        finally:
            embedded.stop()
            remove(disk / "base")


@pytest.fixture
def small_wal() -> Iterator[tuple[Path, Embedded]]:
    """A migrated server that has only its write-ahead log on the small disk: that, and nothing else, finds no room."""
    with small_disk() as disk:
        base = disk.with_suffix(".base")
        embedded = Embedded(base, own=True, settings={"min_wal_size": "32MB"})
        try:
            server = embedded.start()
            migrate(server.admin_url)
            embedded.stop()
            log = server.data_dir / "pg_wal"
            shutil.copytree(log, disk / "pg_wal")
            owner = log.stat()
            for path in [disk / "pg_wal", *(disk / "pg_wal").rglob("*")]:
                os.chown(path, owner.st_uid, owner.st_gid)
            shutil.rmtree(log)
            log.symlink_to(disk / "pg_wal")
            yield disk, embedded
        finally:
            embedded.stop()
            remove(base)
            shutil.rmtree(base, ignore_errors=True)


def fill_the_log(disk: Path, url: str) -> Path:
    """A file that takes all space beside the log, whose files at hand are used up to the last megabyte."""
    ballast = disk / "ballast"
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("checkpoint")
        with suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:  # the log takes and gives back files meanwhile, so what is free cannot be known before
                file.write(bytes(65536))
        while (room := int(admin.execute(ROOM_IN_LOG).fetchone()[0]) - LEFT_KB * 1024) > 0:  # type: ignore[index]
            admin.execute("select pg_logical_emit_message(false, 'ballast', repeat('x', %s))", [min(room, 4 * 1024**2)])
    return ballast


def log_found_no_room(disk: Path) -> bool:
    """Whether PostgreSQL itself says so: the rest of its data lies elsewhere."""
    said = [file.read_text(errors="replace") for file in disk.with_suffix(".base").rglob("server.log")]
    return any("pg_wal" in line and "No space left" in line for text in said for line in text.splitlines())


def fill(disk: Path, url: str) -> Path:
    """A file that takes the space but for LEFT_KB. A new WAL file is at hand, so that tables are what finds no room."""
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("checkpoint")
        admin.execute("select pg_switch_wal()")
        admin.execute("checkpoint")
    ballast, space = disk / "ballast", os.statvfs(disk)
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, space.f_bavail * space.f_frsize - LEFT_KB * 1024)
    return ballast


def is_closed(reply: Reply) -> bool:
    """A 503 that a careless client reads as a DENY."""
    told = reply.json
    return (
        reply.status == 503 and reply.headers["retry-after"] == "1"
        and (told["decision"], told["reason_code"], told["retryable"]) == ("DENY", "engine_unavailable", True)
        and b"ALLOW" not in reply.body and b"permit" not in reply.body and b"space" not in reply.body
    )  # fmt: skip


def ask_until_refused(served: Served, *, times: int) -> tuple[dict[str, Body], list[Body], list[Reply]]:
    """Guards from eight threads until each was refused `times` times: given out by key, refused, and wrong answers."""
    given: dict[str, Body] = {}
    refused: list[Body] = []
    wrong: list[Reply] = []

    def run() -> None:
        mine = 0
        for _ in range(2_000):
            body = guard_body(params={"account_ref": unique("acct")})
            reply = served.post("action/guard", body)
            if reply.status == 200:
                given[body["idempotency_key"]] = reply.json
            elif is_closed(reply):
                refused.append(body)
                mine += 1
            else:
                wrong.append(reply)
            if mine == times:
                return

    threads = [threading.Thread(target=run, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return given, refused, wrong


def lost(url: str, given: dict[str, Body]) -> list[str]:
    """Keys whose decision was given out and is not there, or is another one."""
    with psycopg.connect(url, autocommit=True) as admin:
        kept = {key: (str(event), decision) for key, event, decision in admin.execute(
            "select o.idempotency_key, e.event_id, e.body::json->>'decision' from sentinel.operations o"
            " join sentinel.operation_states s using (tenant_id, operation_id)"
            " join sentinel.events e on e.tenant_id = s.tenant_id and e.event_id = s.decision_event_id")}  # fmt: skip
    return [key for key, told in given.items() if kept.get(key) != (told["decision_event_id"], told["decision"])]


def test_a_full_disk_is_a_refusal_loses_nothing_and_ends_with_space_alone(
    small: tuple[Path, Embedded], tmp_path: Path
) -> None:
    disk, embedded = small
    server = embedded.start()
    url, began = server.admin_url, server.pid
    tenant_id, key, _ = add_tenant(url, unique("full").replace("_", "-"))
    room = {"SENTINEL_POLICIES_DIR": str(roomy_policies(tmp_path))}  # more guards fit on a disk than in a total
    with served_on(url, tmp_path, tenant_id=str(tenant_id), key=key, from_nothing=False, **room) as served:
        before = served.guard(guard_body())
        ballast = fill(disk, url)
        given, refused, wrong = ask_until_refused(served, times=3)
        assert [reply.body for reply in wrong] == []
        print(f"N={len(given)} given out on the way, {len(refused)} refused")
        assert given, "it was full before it began"
        assert len(refused) >= 24, "it never became full"
        assert before["decision"] == "ALLOW"
        ballast.unlink()
        again = refused[0]
        assert eventually(lambda: served.post("action/guard", again).status == 200, within=10)
        answers = {body["idempotency_key"]: served.guard(body) for body in refused}
        assert {answer["decision"] for answer in answers.values()} == {"ALLOW"}
        assert served.process.poll() is None
        assert embedded.start().pid == began, "nobody had to start anything again"
        assert lost(url, {**given, **answers}) == []
    with psycopg.connect(url, autocommit=True) as admin:
        assert [one.name for one in run_invariants(admin, invariants_sql()) if one.violations] == []


def test_a_full_disk_under_the_log_is_a_refusal_loses_nothing_and_ends_with_space(
    small_wal: tuple[Path, Embedded], tmp_path: Path
) -> None:
    """No room for the log stops PostgreSQL as a crash would: it comes back by itself, or its keeper starts it again."""
    disk, embedded = small_wal
    url = embedded.start().admin_url
    tenant_id, key, _ = add_tenant(url, unique("full").replace("_", "-"))
    room = {"SENTINEL_POLICIES_DIR": str(roomy_policies(tmp_path))}  # more guards fit on a disk than in a total
    with served_on(url, tmp_path, tenant_id=str(tenant_id), key=key, from_nothing=False, **room) as served:
        before = served.guard(guard_body())
        ballast = fill_the_log(disk, url)
        given, refused, wrong = ask_until_refused(served, times=3)
        kept = embedded.is_alive()
        print(
            f"N={len(given)} given out on the way, {len(refused)} refused; the server {'stayed' if kept else 'ended'}"
        )
        assert [reply.body for reply in wrong] == []
        assert given, "it was full before it began"
        assert len(refused) >= 24, "it never became full"
        assert log_found_no_room(disk), "something else than the log was full"
        assert before["decision"] == "ALLOW"
        ballast.unlink()
        assert embedded.start().admin_url == url, "started again where it ended, and otherwise the one that came back"
        again = refused[0]
        assert eventually(lambda: served.post("action/guard", again).status == 200, within=20)
        answers = {body["idempotency_key"]: served.guard(body) for body in refused}
        assert {answer["decision"] for answer in answers.values()} == {"ALLOW"}
        assert served.process.poll() is None, "the authority was not started again"
        assert lost(url, {**given, **answers}) == []
    with psycopg.connect(url, autocommit=True) as admin:
        assert [one.name for one in run_invariants(admin, invariants_sql()) if one.violations] == []


def test_mutant_that_goes_on_where_evidence_cannot_be_written_loses_decisions_and_is_caught(fixtures: Fixtures) -> None:
    fixtures.admin.execute(
        "create function sentinel.no_room() returns trigger language plpgsql as"
        " $$ begin return case when random() < 0.5 then new end; end $$"
    )
    fixtures.admin.execute(
        "create trigger no_room before insert on sentinel.event_rows for each row execute function sentinel.no_room()"
    )
    fixtures.admin.execute("grant execute on function sentinel.no_room() to public")
    bodies = [guard_body() for _ in range(20)]
    assert lost(fixtures.url, {body["idempotency_key"]: fixtures.guard(body) for body in bodies}) != []
