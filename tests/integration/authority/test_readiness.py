"""An authority says that it is ready once the database knows the policies it decides by, not before."""

from __future__ import annotations

import shutil
import uuid
import zoneinfo
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from sentinel.authority.policies import declare_policies, policies_in_force
from sentinel.authority.settings import Settings
from sentinel.core.errors import EngineUnavailable
from sentinel.platform.resources import policies_dir
from sentinel.policy.library import ReloadablePolicies
from sentinel.store.database import AUTHORITY, BOARD, CONSOLE
from sentinel.store.safety import MissingGrant, require_board
from tests.support.clock import set_clock, take_over
from tests.support.fixtures import SECRET, Fixtures, guard_body, make_fixtures, served
from tests.support.logins import make_login, program_url


def test_an_authority_with_undeclared_policies_is_not_ready(fixtures: Fixtures, tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    shutil.copytree(policies_dir(), folder)
    file = folder / "retail_refund.yaml"
    file.write_text(file.read_text().replace("label: Retail Refund Policy v1", "label: A text nobody declared"))
    settings = Settings(database_url=program_url(fixtures.url, AUTHORITY), secret_keys=(SECRET,), pool_size=2)
    with served(settings, ReloadablePolicies(folder)) as (authority, app):
        asked = app.test_client()
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
        declare_policies(authority)
        after = asked.get("/readyz")
        assert (after.status_code, after.json["status"]) == (200, "ready")


def test_a_zone_that_the_database_does_not_know_is_named_and_not_put_in_force(
    fixtures: Fixtures, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    known = tmp_path / "zones" / "Mars" / "Olympus"
    known.parent.mkdir(parents=True)
    known.write_bytes(files("tzdata.zoneinfo").joinpath("UTC").read_bytes())
    zoneinfo.reset_tzpath([str(tmp_path / "zones"), *zoneinfo.TZPATH])
    request.addfinalizer(zoneinfo.reset_tzpath)
    folder = tmp_path / "policies"
    shutil.copytree(policies_dir(), folder)
    file = folder / "retail_refund.yaml"
    file.write_text(file.read_text().replace("zone: UTC", "zone: Mars/Olympus", 1))
    settings = Settings(database_url=program_url(fixtures.url, AUTHORITY), secret_keys=(SECRET,), pool_size=2)
    with served(settings, ReloadablePolicies(folder)) as (authority, app):
        in_force = policies_in_force(authority.pool)
        with pytest.raises(EngineUnavailable, match='time zone "Mars/Olympus" not recognized'):
            declare_policies(authority)
        assert policies_in_force(authority.pool) == in_force
        assert app.test_client().get("/readyz").json["checks"]["policies"] is False


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
