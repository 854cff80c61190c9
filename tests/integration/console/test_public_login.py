"""The login of what everybody reaches: what is said where it is missing or somebody else's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ops_console import metrics, serving
from ops_console.audience import Audience
from ops_console.settings import ConsoleSettings
from sentinel.platform.http.readiness import exposition
from sentinel.store.address import EMBEDDED
from sentinel.store.database import BOARD, CONSOLE, PUBLIC
from tests.support.fixtures import Fixtures
from tests.support.ledger_fixtures import wait_until
from tests.support.logins import program_url, public_urls
from tests.support.ports import free_port
from tests.support.served_programs import clean_env
from tests.support.warm_process import run_warm


@pytest.mark.parametrize(
    ("login", "said"),
    [("", "SENTINEL_PUBLIC_DATABASE_URL or SENTINEL_DATABASE_URL: required"),
     (CONSOLE, f"its login may not act as {PUBLIC}: `grant {PUBLIC} to"), (BOARD, f"its login may not act as {PUBLIC}")],
)  # fmt: skip
def test_a_missing_login_and_one_of_another_program_are_refused_by_name(
    fixtures: Fixtures, login: str, said: str
) -> None:
    given = {"SENTINEL_PUBLIC_DATABASE_URL": program_url(fixtures.url, login)} if login else {}
    env = clean_env(
        **given, **{EMBEDDED: "off"}, SENTINEL_BOARD_PORT=str(free_port()), SENTINEL_REQUIRE_SECOND_FACTOR="nobody"
    )
    done = run_warm("ops_console", "--only", "public", env=env)
    assert (done.returncode, said in done.stderr, done.stderr.count("\n")) == (2, True, 1), done.stderr


def test_the_public_is_not_served_where_its_login_is_allowed_too_few_connections(fixtures: Fixtures) -> None:
    env = clean_env(
        **public_urls(fixtures.url), SENTINEL_BOARD_PORT=str(free_port()), SENTINEL_BOARD_POOL_SIZE="9",
        SENTINEL_REQUIRE_SECOND_FACTOR="nobody",
    )  # fmt: skip
    done = run_warm("ops_console", "--only", "public", env=env)
    assert (done.returncode, f"{PUBLIC} is allowed 8" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize(("audience", "login"), [(Audience.OPERATORS, "console"), (Audience.PUBLIC, "public")])
def test_each_process_notes_its_connections_by_login_whichever_is_asked_for_metrics(
    fixtures: Fixtures, monkeypatch: pytest.MonkeyPatch, audience: Audience, login: str
) -> None:
    metrics.POOL_IN_USE.clear()
    made: list[Any] = []
    worker = SimpleNamespace(alive=True)
    monkeypatch.setattr(serving, "_warm", lambda *_: None)
    monkeypatch.setattr(
        serving, "Server", lambda make_app, *_, **__: SimpleNamespace(run=lambda: made.append(make_app(worker)))
    )
    settings = ConsoleSettings(
        database_url=program_url(fixtures.url, CONSOLE), public_database_url=program_url(fixtures.url, PUBLIC),
        board_database_url=program_url(fixtures.url, BOARD), insecure_cookies=True, require_second_factor="nobody",
    )  # fmt: skip
    serving._serve(settings, serving._SHARES[audience](settings), 0)
    console = made[0].flask.extensions["console"]
    try:
        with console.pool.connection(), console.pool.connection(), console.board.pool.connection():
            for name, connections in ((login, "2.0"), ("board", "1.0")):
                wait_until(lambda: f'\nconsole_pool_in_use{{pool="{name}"}} {connections}\n' in exposition().decode())
    finally:
        worker.alive = False
        for pool in (console.pool, console.board.pool):
            pool.close()
