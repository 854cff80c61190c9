"""An authority says that it is ready once the database knows the policies it decides by, not before."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import signal
import uuid
import zoneinfo
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg import sql
from structlog.testing import capture_logs

from sentinel.authority import metrics, policy_declarations, serving
from sentinel.authority.api import meta
from sentinel.authority.engine import Authority
from sentinel.authority.policies import declare_policies, policies_in_force
from sentinel.authority.settings import Settings
from sentinel.core.errors import EngineUnavailable
from sentinel.platform.http.rate_limit import SharedRateLimit
from sentinel.platform.http.readiness import exposition
from sentinel.platform.resources import policies_dir
from sentinel.policy.library import ReloadablePolicies
from sentinel.store.database import AUTHORITY, BOARD, CONSOLE, open_connection
from sentinel.store.safety import MissingGrant, require_board
from tests.support.asgi_client import AsgiClient, InProcessApp
from tests.support.clock import set_clock, take_over
from tests.support.fixtures import SECRET, Fixtures, guard_body, make_fixtures, served
from tests.support.kept_answers import require_kept_answers
from tests.support.ledger_fixtures import wait_until
from tests.support.logins import make_login, program_url

HEALTH_PORT = 7870


def test_an_authority_with_undeclared_policies_is_not_ready(fixtures: Fixtures, folder: Path) -> None:
    file = folder / "retail_refund.yaml"
    file.write_text(file.read_text().replace("label: Retail Refund Policy v1", "label: A text nobody declared"))
    settings = Settings(
        database_url=program_url(fixtures.url, AUTHORITY), secret_keys=(SECRET,), pool_size=2, health_port=HEALTH_PORT
    )
    with served(settings, ReloadablePolicies(folder)) as (authority, app):
        asked = app.test_client()

        def figures() -> set[str]:
            return set(asked.get("/metrics", base_url=f"http://127.0.0.1:{HEALTH_PORT}").text.splitlines())

        before = asked.get("/readyz")
        assert (before.status_code, before.headers["Retry-After"]) == (503, "1")
        assert before.json["checks"] == {
            "database": True,
            "writable": True,
            "schema": True,
            "session": True,
            "policies": False,
            "guard": True,
        }
        assert {"sentinel_ready 0.0", "sentinel_database_up 1.0"} <= figures()
        declare_policies(authority)
        wait_until(lambda: asked.get("/readyz").json["status"] == "ready")
        assert asked.get("/readyz").status_code == 200
        assert "sentinel_ready 1.0" in figures()


def test_what_an_authority_says_of_itself_costs_no_more_however_often_it_is_asked(
    fixtures: Fixtures, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_kept_answers(fixtures.client, monkeypatch, meta)


@pytest.fixture
def unknown_zone(tmp_path: Path) -> Iterator[Callable[[Path], None]]:
    """Puts a zone into the refund policy of a folder that Python knows and the database does not."""
    known = tmp_path / "zones" / "Mars" / "Olympus"
    known.parent.mkdir(parents=True)
    known.write_bytes(files("tzdata.zoneinfo").joinpath("UTC").read_bytes())
    zoneinfo.reset_tzpath([str(tmp_path / "zones"), *zoneinfo.TZPATH])

    def put(folder: Path) -> None:
        file = folder / "retail_refund.yaml"
        file.write_text(file.read_text().replace("zone: UTC", "zone: Mars/Olympus", 1))

    yield put
    zoneinfo.reset_tzpath()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Policies of one's own."""
    return Path(shutil.copytree(policies_dir(), tmp_path / "policies"))


def test_a_zone_that_the_database_does_not_know_is_named_and_not_put_in_force(
    fixtures: Fixtures, folder: Path, unknown_zone: Callable[[Path], None]
) -> None:
    unknown_zone(folder)
    settings = Settings(database_url=program_url(fixtures.url, AUTHORITY), secret_keys=(SECRET,), pool_size=2)
    with served(settings, ReloadablePolicies(folder)) as (authority, app):
        in_force = policies_in_force(authority.pool)
        with pytest.raises(EngineUnavailable, match='time zone "Mars/Olympus" not recognized'):
            declare_policies(authority)
        assert policies_in_force(authority.pool) == in_force
        assert app.test_client().get("/readyz").json["checks"]["policies"] is False


@contextlib.contextmanager
def one_process(
    settings: Settings, policies: ReloadablePolicies, mark: policy_declarations.LastDeclared | None = None
) -> Iterator[tuple[AsgiClient, Callable[[], None]]]:
    """A client of one process with its housekeeper, as `serve` begins it after the fork, and what SIGHUP calls there."""
    called: dict[int, Callable[[], None]] = {}
    loop = SimpleNamespace(add_signal_handler=called.__setitem__)
    limit = SharedRateLimit(per_second=100, burst=100)
    edge, keeper = serving._begin(
        SimpleNamespace(loop=loop, alive=True), settings, policies, limit, mark or policy_declarations.LastDeclared()
    )
    app = InProcessApp(edge)
    try:
        yield app.test_client(), called[signal.SIGHUP]
    finally:
        keeper.stop()
        app.close()
        keeper._authority.pool.close()


def reloads() -> dict[str, float]:
    """How many reloads came to what, as /metrics tells it."""
    lines = (line for line in exposition().decode().splitlines() if line.startswith("sentinel_policy_reloads_total{"))
    return {line.split('"')[1]: float(line.split()[1]) for line in lines}


@pytest.fixture
def own_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that is begun here leaves the loggers of the tests as they are."""
    monkeypatch.setattr(serving, "buffer_log_lines", lambda _: None)


@pytest.mark.usefixtures("own_logs")
def test_a_reload_to_a_zone_that_the_database_does_not_know_keeps_the_last_good_policies(
    fixtures: Fixtures, folder: Path, unknown_zone: Callable[[Path], None]
) -> None:
    settings = Settings(database_url=program_url(fixtures.url, AUTHORITY), secret_keys=(SECRET,), pool_size=4)
    policies = ReloadablePolicies(folder)
    with one_process(settings, policies) as (client, reload):
        wait_until(lambda: client.get("/readyz").status_code == 200)
        before, counted = policies.library, reloads()
        unknown_zone(folder)
        reload()
        wait_until(lambda: reloads() != counted)
        assert reloads() == {**counted, "kept_last_good": counted["kept_last_good"] + 1}
        assert policies.library is before
        assert client.get("/readyz").status_code == 200
        asked = client.post("/api/sentinel/action/guard", json=guard_body(), headers={"X-API-Key": fixtures.key})
        assert (asked.status_code, asked.json["decision"]) == (200, "ALLOW")


def begun_master(
    monkeypatch: pytest.MonkeyPatch, settings: Settings, policies: ReloadablePolicies
) -> Callable[[], None]:
    """Begin a master that makes no process; returns what it does at a SIGHUP."""
    given: list[Callable[[], None]] = []

    class NeverServing:
        def __init__(self, *_: object, on_reload: Callable[[], None], **__: object) -> None:
            given.append(on_reload)

        def run(self) -> None:
            pass

    monkeypatch.setattr(serving, "Server", NeverServing)
    serving._run(settings, SimpleNamespace(url=""), policies, 1)
    return given[0]


def test_what_is_told_to_reload_before_processes_are_made_asks_the_database_too(
    fixtures: Fixtures, folder: Path, unknown_zone: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is made later has the master's policies, and no last good ones."""
    settings = Settings(database_url=program_url(fixtures.url, AUTHORITY), secret_keys=(SECRET,))
    policies = ReloadablePolicies(folder)
    reload_in_master = begun_master(monkeypatch, settings, policies)
    before = policies.library
    unknown_zone(folder)
    with capture_logs() as lines:
        reload_in_master()
    assert policies.library is before
    assert [line["event"] for line in lines] == ["policy_reload_refused"]
    assert 'policy "retail-refund": the database does not know its time zone "Mars/Olympus"' in lines[0]["fault"]


@pytest.mark.usefixtures("own_logs")
def test_a_reload_without_a_database_is_taken(folder: Path, unknown_zone: Callable[[Path], None]) -> None:
    settings = Settings(database_url="postgresql://nobody@127.0.0.1:9/x", secret_keys=(SECRET,), pool_size=2)
    policies = ReloadablePolicies(folder)
    with one_process(settings, policies) as (_, reload):
        before = policies.library
        unknown_zone(folder)
        reload()
        wait_until(lambda: policies.library is not before)


@pytest.mark.usefixtures("own_logs")
def test_checkpoints_are_written_while_the_policies_cannot_be_declared(
    fixtures: Fixtures, folder: Path, tmp_path: Path, unknown_zone: Callable[[Path], None]
) -> None:
    fixtures.guard()
    fixtures.run_housekeeping()
    unknown_zone(folder)
    checkpoints = tmp_path / "checkpoints.jsonl"
    settings = Settings(database_url=program_url(fixtures.url, AUTHORITY), secret_keys=(SECRET,), pool_size=4)
    kept = dataclasses.replace(settings, checkpoint_file=str(checkpoints))
    with one_process(kept, ReloadablePolicies(folder)) as (client, _):
        wait_until(lambda: checkpoints.exists() and checkpoints.read_bytes())
        assert client.get("/readyz").json["checks"]["policies"] is False


@pytest.mark.usefixtures("own_logs")
def test_policies_that_a_replica_had_not_got_when_it_took_over_are_declared_again(
    fixtures: Fixtures, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_declarations, "DECLARED_SECONDS", 0.05)
    file = folder / "retail_refund.yaml"
    file.write_text(file.read_text().replace("label: Retail Refund Policy v1", "label: A text only this one declared"))
    settings = Settings(database_url=program_url(fixtures.url, AUTHORITY), secret_keys=(SECRET,), pool_size=4)
    policies = ReloadablePolicies(folder)
    with one_process(settings, policies) as (client, _):
        wait_until(lambda: client.get("/readyz").status_code == 200)
        fixtures.admin.execute("set session_replication_role = replica")
        fixtures.admin.execute("delete from sentinel.policies_in_force")
        fixtures.admin.execute(
            "delete from sentinel.policies where policy_digest = any(%s)",
            [[one.digest for one in policies.library.policies]],
        )
        fixtures.admin.execute("set session_replication_role = origin")
        wait_until(lambda: len(policies_in_force(fixtures.authority.pool)) == len(policies.library.policies))
        wait_until(lambda: client.get("/readyz").status_code == 200)


def test_an_authority_that_decides_by_other_policies_than_are_in_force_says_so_and_puts_them_in_force_by_a_reload_alone(
    fixtures: Fixtures, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_declarations, "DECLARED_SECONDS", 0)
    newer = Path(shutil.copytree(folder, tmp_path / "newer"))
    (newer / "retail_refund.yaml").write_text(
        (newer / "retail_refund.yaml").read_text().replace('"150.00"', '"100.00"')
    )
    left, reloaded = (
        dataclasses.replace(fixtures.authority, policies=ReloadablePolicies(one)) for one in (folder, newer)
    )
    mark, marks = policy_declarations.LastDeclared(), [policy_declarations.LastDeclared() for _ in range(2)]

    def in_force() -> set[str]:
        return {one.policy_digest for one in policies_in_force(fixtures.authority.pool)}

    def look(declarations: policy_declarations.PolicyDeclarations) -> tuple[float, list[list[str]]]:
        """What the gauge says after two rounds, and what the log said in them."""
        with capture_logs() as lines:
            declarations.round()
            declarations.round()
        told = [line["policies"] for line in lines if line["event"] == "policies_not_in_force"]
        return metrics.POLICIES_NOT_IN_FORCE._value.get(), told

    def digests(authority: Authority) -> set[str]:
        return {one.digest for one in authority.policies.library.policies}

    first = policy_declarations.PolicyDeclarations(left, mark)
    assert look(first) == (0, []) and in_force() == digests(left)
    assert look(policy_declarations.PolicyDeclarations(reloaded, marks[0])) == (0, []) and in_force() == digests(
        reloaded
    )
    assert look(first) == (1, [["retail-refund"]]) and look(first) == (1, [])
    # One that takes a crashed one's place has loaded nothing.
    replaced = policy_declarations.PolicyDeclarations(left, mark)
    assert look(replaced) == (1, [["retail-refund"]]) and in_force() == digests(reloaded)
    # A policy that is here and not there, and the other way.
    (newer / "small_refund.yaml").unlink()
    reloaded.policies.reload()
    assert look(policy_declarations.PolicyDeclarations(reloaded, marks[1])) == (0, []) and in_force() == digests(
        reloaded
    )
    assert look(replaced) == (2, [["retail-refund", "small-refund"]])
    replaced.want()
    assert look(replaced) == (0, []) and in_force() == digests(left)
    assert look(policy_declarations.PolicyDeclarations(reloaded, marks[1])) == (2, [["retail-refund", "small-refund"]])


@pytest.mark.usefixtures("own_logs")
def test_policies_that_a_process_did_not_live_to_declare_after_a_reload_are_declared_by_the_next(
    fixtures: Fixtures, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = policy_declarations.LastDeclared()
    monkeypatch.setattr(serving, "LastDeclared", lambda: mark)
    settings = Settings(database_url=program_url(fixtures.url, AUTHORITY), secret_keys=(SECRET,), pool_size=4)
    policies = ReloadablePolicies(folder)
    reload_in_master = begun_master(monkeypatch, settings, policies)
    with one_process(settings, policies, mark):
        wait_until(lambda: not mark.is_none())
    file = folder / "retail_refund.yaml"
    file.write_text(file.read_text().replace('"150.00"', '"100.00"'))
    reload_in_master()
    with one_process(settings, policies, mark):
        digests = {one.digest for one in policies.library.policies}
        wait_until(lambda: {one.policy_digest for one in policies_in_force(fixtures.authority.pool)} == digests)


@pytest.mark.usefixtures("own_logs")
def test_a_process_that_is_made_after_the_master_read_half_a_file_has_what_the_others_read(
    fixtures: Fixtures, folder: Path
) -> None:
    settings = Settings(database_url=program_url(fixtures.url, AUTHORITY), secret_keys=(SECRET,), pool_size=4)
    in_master, in_process, mark = (
        ReloadablePolicies(folder),
        ReloadablePolicies(folder),
        policy_declarations.LastDeclared(),
    )
    file = folder / "retail_refund.yaml"
    newer = file.read_text().replace('"150.00"', '"100.00"')

    def in_force() -> set[str]:
        return {one.policy_digest for one in policies_in_force(fixtures.authority.pool)}

    def digests(policies: ReloadablePolicies) -> set[str]:
        return {one.digest for one in policies.library.policies}

    with one_process(settings, in_process, mark) as (_, reload):
        wait_until(lambda: in_force() == digests(in_master))
        file.write_text(newer[: len(newer) // 2])
        assert serving._reload_policies(in_master, lambda _: None) is False
        file.write_text(newer)
        reload()
        wait_until(lambda: in_force() != digests(in_master))
        with one_process(settings, in_master, mark) as (client, _):
            assert digests(in_master) == digests(in_process)
            wait_until(lambda: client.get("/readyz").status_code == 200)
        assert in_force() == digests(in_process)


@pytest.mark.usefixtures("own_logs")
def test_a_process_that_read_half_a_file_takes_what_the_others_declared_and_nothing_newer(
    fixtures: Fixtures, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_declarations, "DECLARED_SECONDS", 0)
    settings = Settings(database_url=program_url(fixtures.url, AUTHORITY), secret_keys=(SECRET,), pool_size=4)
    whole, half, mark = ReloadablePolicies(folder), ReloadablePolicies(folder), policy_declarations.LastDeclared()
    file = folder / "retail_refund.yaml"
    newer = file.read_text().replace('"150.00"', '"100.00"')

    def digests(policies: ReloadablePolicies) -> set[str]:
        return {one.digest for one in policies.library.policies}

    with one_process(settings, whole, mark) as (_, reload_whole), one_process(settings, half, mark) as (_, reload_half):
        wait_until(lambda: mark.is_of(whole.library))
        before, refused = digests(half), reloads().get("kept_last_good", 0)
        file.write_text(newer[: len(newer) // 2])
        reload_half()
        wait_until(lambda: reloads().get("kept_last_good", 0) > refused)
        file.write_text(newer)
        reload_whole()
        wait_until(lambda: digests(half) == digests(whole) != before)
        wait_until(lambda: {one.policy_digest for one in policies_in_force(fixtures.authority.pool)} == digests(whole))
    # Of a folder that holds neither what is loaded nor what was declared, nothing is taken: no reload asked for it.
    left = dataclasses.replace(fixtures.authority, policies=ReloadablePolicies(folder))
    declarations, library = policy_declarations.PolicyDeclarations(left, mark), left.policies.library
    mark.set(ReloadablePolicies(policies_dir()).library)
    file.write_text(newer.replace('"100.00"', '"90.00"'))
    for _ in range(3):
        declarations.catch_up()
    assert left.policies.library is library


@pytest.mark.usefixtures("own_logs")
def test_each_process_notes_its_connections_whichever_is_asked_for_metrics(fixtures: Fixtures, folder: Path) -> None:
    metrics.POOL_SIZE.set(0)
    settings = Settings(database_url=program_url(fixtures.url, AUTHORITY), secret_keys=(SECRET,), pool_size=6)
    with one_process(settings, ReloadablePolicies(folder)):
        wait_until(lambda: "\nsentinel_pool_size 6.0\n" in exposition().decode())


def test_a_console_that_may_not_act_as_the_board_s_role_says_so(fixtures: Fixtures) -> None:
    name = f"login_{uuid.uuid4().hex[:8]}"
    login, url = sql.Identifier(name), make_login(fixtures.url, name, f"in role {CONSOLE}")
    try:
        with pytest.raises(MissingGrant, match="may not act as board_reader: `grant board_reader to <login>`"):
            require_board(url)
        fixtures.admin.execute(sql.SQL("grant {} to {}").format(sql.Identifier(BOARD), login))
        require_board(url)
        fixtures.admin.execute("revoke select on sentinel.public_feed from board_reader")
        with pytest.raises(MissingGrant, match="board_reader may not read sentinel.public_feed"):
            require_board(url)
    finally:
        fixtures.admin.execute(sql.SQL("drop role {}").format(login))


def test_what_the_board_may_read_is_looked_at_by_the_one_connection_that_is_checked(
    fixtures: Fixtures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finding: it had a second one, and a database that went away between the two ended the start in Python's words."""
    opened: list[str] = []

    def counted(conninfo: str) -> Any:
        opened.append(conninfo)
        return open_connection(conninfo)

    monkeypatch.setattr("sentinel.store.safety.open_connection", counted)
    require_board(program_url(fixtures.url, BOARD))
    assert len(opened) == 1


NIGHT = """
policy: night
label: Night
version: night-v1
actions: [n.pay]
zone: UTC
facts:
  amount: {type: money, from: params.amount}
rules:
  - {id: fine, says: The time for it has come., when: "now >= timestamp('2031-01-01T00:00:00Z')", then: ALLOW, reason: within_policy_limit}
approval: {expires: 30m, role: approver, people: 1}
"""


def test_a_policy_that_looks_at_the_time_sees_the_database_s(database_url: str, tmp_path: Path) -> None:
    """Not the process's, which may be anywhere: here five years away."""
    (tmp_path / "night.yaml").write_text(NIGHT)
    fixtures = make_fixtures(database_url, policies=tmp_path)
    try:
        take_over(fixtures)
        new_year = datetime(2031, 1, 1, tzinfo=UTC)
        for pool in (fixtures.authority.pool,):
            pool.close()
        fixtures.close()
        with psycopg.connect(database_url, autocommit=True):
            fixtures = make_fixtures(database_url, policies=tmp_path)
        set_clock(fixtures, new_year - timedelta(minutes=1))
        fixtures.authority.clock.refresh()
        assert fixtures.guard(guard_body(action="n.pay"))["decision"] == "DENY"
        set_clock(fixtures, new_year)
        fixtures.authority.clock.refresh()
        assert fixtures.guard(guard_body(action="n.pay"))["decision"] == "ALLOW"
        # Between two questions it goes on by itself.
        first, then = fixtures.authority.clock(), fixtures.authority.clock()
        assert new_year <= first <= then < new_year + timedelta(seconds=30)
    finally:
        fixtures.close()


@pytest.mark.parametrize("behind_tls", [True, False])
def test_behind_tls_every_page_says_so(database_url: str, behind_tls: bool) -> None:
    fixtures = make_fixtures(database_url, behind_tls=behind_tls)
    for path in ("/docs", "/healthz", "/nothing"):
        said = fixtures.app.test_client().get(path, headers={"X-Forwarded-Proto": "https"}).headers
        assert ("Strict-Transport-Security" in said) == behind_tls, path
    fixtures.close()
