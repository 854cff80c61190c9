"""What the demo's programs hold of the database: their own secret, and no way to another's rights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import errors as pg
from psycopg.conninfo import conninfo_to_dict

from tests.acceptance.conftest import NewDatabase
from tests.acceptance.demos import Demo, demo_folder, running_demo
from tests.support.embedded_servers import needs_linux
from tests.support.served_programs import eventually, processes_naming

MODULES = {
    "authority": (b"sentinel.cli.main", b"serve"), "console": (b"ops_console",), "orders": (b"worker.orders",),
    "worker": (b"worker.retail_refund_agent",),
}  # fmt: skip
OWN = {
    "authority": {"authority"},
    "console": {"console", "public", "board"},
    "orders": {"orders"},
    "worker": {"worker"},
}
ROLES = {
    "authority": "sentinel_authority", "worker": "sentinel_worker", "orders": "sentinel_orders",
    "console": "sentinel_console", "public": "sentinel_public", "board": "board_reader", "export": "sentinel_exporter",
}  # fmt: skip
MUST_NOT = {
    "authority": "select * from refunds.ledger_entries", "worker": "select * from sentinel.operations",
    "orders": "select * from refunds.ledger_entries", "console": "insert into refunds.executions default values",
    "public": "select * from sentinel.approvals", "board": "select * from sentinel.events", "export": "select * from sentinel.operations",
}  # fmt: skip


def secrets_of(demo: Demo) -> dict[str, bytes]:
    """Each database secret by whom it is for."""
    urls = {"admin": demo.database_url, **demo.told["database_urls"]}
    found = {name: conninfo_to_dict(url)["password"] for name, url in urls.items()}
    assert len(set(found.values())) == len(found) == 8
    return {name: str(secret).encode() for name, secret in found.items()}


def programs_of(demo: Demo) -> dict[str, list[tuple[bytes, bytes]]]:
    """(command line, environment) of the demo's processes by program."""
    found: dict[str, list[tuple[bytes, bytes]]] = {name: [] for name in MODULES}
    for pid in processes_naming(str(demo.data_dir)):
        said: tuple[bytes, bytes] = tuple(
            (Path("/proc") / str(pid) / name).read_bytes() for name in ("cmdline", "environ")
        )  # type: ignore[assignment]
        for name, words in MODULES.items():
            if all(word in said[0].split(b"\0") for word in words):
                found[name].append(said)
    return found


@needs_linux
def test_each_program_holds_its_own_secret_and_no_other_and_none_is_in_a_command_line(demo: Demo) -> None:
    secrets = secrets_of(demo)
    programs = programs_of(demo)
    assert all(programs.values()), {name: len(found) for name, found in programs.items()}
    for name, found in programs.items():
        for _, environ in found:
            assert {whose for whose, secret in secrets.items() if secret in environ} == OWN[name], name
    lines = [(Path("/proc") / str(pid) / "cmdline").read_bytes() for pid in processes_naming(str(demo.data_dir))]
    assert [line for line in lines for secret in secrets.values() if secret in line] == []
    print(f"N={sum(map(len, programs.values()))} processes, {len(lines)} command lines")


@pytest.mark.parametrize("name", ROLES)
def test_each_address_is_its_role_s_and_no_more(demo: Demo, name: str) -> None:
    with psycopg.connect(demo.told["database_urls"][name], autocommit=True) as connection:
        found: Any = connection.execute(
            "select session_user::text, current_user::text, rolsuper, (select count(*) from pg_auth_members where member = r.oid)"
            " from pg_roles r where rolname = current_user").fetchone()  # fmt: skip
        assert found == (ROLES[name], ROLES[name], False, 0)
        for statement in (MUST_NOT[name], "set role sentinel_owner", "set role sentinel_admin"):
            with pytest.raises(pg.InsufficientPrivilege):
                connection.execute(statement.encode())
        connection.execute("reset role")
        with pytest.raises(pg.InsufficientPrivilege):
            connection.execute("alter table sentinel.event_rows disable trigger append_only")


def test_nobody_of_the_demo_is_connected_as_the_superuser_while_it_runs(demo: Demo) -> None:
    with psycopg.connect(demo.database_url, autocommit=True) as connection:

        def others() -> list[Any]:
            return connection.execute(
                "select usename, application_name from pg_stat_activity where backend_type = 'client backend'"
                " and pid <> pg_backend_pid() and usename not in (select unnest(%s::text[]))", [list(ROLES.values())]
            ).fetchall()  # fmt: skip

        # What the test before this one closed is there until its backend has ended.
        assert eventually(lambda: not others(), within=5), others()
        present = connection.execute(
            "select count(distinct usename) from pg_stat_activity where usename = any(%s)", [list(ROLES.values())]
        )
        assert present.fetchone() != (0,)


def test_on_a_given_database_each_program_gets_a_login_of_its_own(new_database: NewDatabase) -> None:
    given = new_database()
    with demo_folder("given") as folder, running_demo(folder, SENTINEL_DATABASE_URL=given) as demo:
        urls = demo.told["database_urls"]
        assert demo.database_url == given
        names = {name: conninfo_to_dict(url)["user"] for name, url in urls.items()}
        assert len(set(names.values())) == len(ROLES)
        for name, url in urls.items():
            with psycopg.connect(url, autocommit=True) as connection:
                found = connection.execute(
                    "select array_agg(roleid::regrole::text), bool_or(r.rolsuper or r.rolcreaterole), max(r.rolconnlimit)"
                    " from pg_auth_members m join pg_roles r on r.oid = m.member where r.rolname = session_user").fetchone()  # fmt: skip
                assert found is not None
                assert (found[0], found[1], found[2] > 0) == ([ROLES[name]], False, True)
                with pytest.raises(pg.InsufficientPrivilege):
                    connection.execute("set role sentinel_owner")
        demo.stop()
    with psycopg.connect(given, autocommit=True) as connection:
        for login in names.values():
            connection.execute(f"drop role {login}".encode())
