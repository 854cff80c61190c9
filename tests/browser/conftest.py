"""One browser, one filled console for all tests here; each test gets fresh contexts and is told of every complaint."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

from sentinel.authority.actor import Actor
from sentinel.store.embedded import RunningServer
from tests.browser.place import Place, filled_place
from tests.browser.watch import Watch
from tests.conftest import at
from tests.integration.console.conftest import PASSWORD
from tests.support.kept_databases import drop_database

PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1280, "height": 900}
WAIT_MS = 60_000
WAITS = "const within = AbortSignal.timeout.bind(AbortSignal); AbortSignal.timeout = (given) => within(6 * given);"
"""A page's own questions too wait for a console that stands still."""


@pytest.fixture(scope="session", autouse=True)
def expect_timeout() -> None:
    """What a page is expected to show has as long as an action, whose limit is the context's: an `expect` alone waits five seconds."""
    with contextlib.suppress(ImportError):  # without Playwright every test here is skipped
        from playwright.sync_api import expect

        expect.set_options(timeout=WAIT_MS)


@pytest.fixture(scope="session")
def place(pg_server: RunningServer, migrated_template: str) -> Iterator[Place]:
    """The one filled console."""
    name = f"browser_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(pg_server.admin_url, autocommit=True) as connection:
        connection.execute(f"create database {name} template {migrated_template} strategy file_copy".encode())
    with filled_place(at(pg_server.admin_url, name)) as made:
        yield made
    with psycopg.connect(pg_server.admin_url, autocommit=True) as connection:
        drop_database(connection, name)


@dataclass
class People:
    """Opens browsers of people: each a context of its own, with its own cookies."""

    chromium: Any
    place: Place
    watch: Watch
    contexts: list[Any] = field(default_factory=list)

    def visitor(self, **options: Any) -> Any:
        """A page of somebody who is not signed in."""
        context = self.chromium.new_context(base_url=self.place.url, **{"viewport": DESKTOP, **options})
        context.set_default_timeout(WAIT_MS)
        context.add_init_script(f"(() => {{ {WAITS} }})();")
        self.watch.look_at(context)
        self.contexts.append(context)
        return context.new_page()

    def operator(self, role: str = "approver", *, path: str = "/ops/account", **options: Any) -> Any:
        """A page of a new operator, who is signed in, at `path`. Signing in by the form is `test_signing_in.py`'s."""
        page = self.visitor(**options)
        given = {"email": self.place.operator(role).email, "password": PASSWORD}
        assert page.request.post("/ops/sign-in", form=given, max_redirects=0).status == 303
        if path:
            page.goto(path)
        return page

    def close(self) -> None:
        """Close their browsers."""
        for context in self.contexts:
            context.close()


@pytest.fixture
def watch(place: Place) -> Iterator[Watch]:
    """Fails the test in the end when a page complained of something that the test did not expect."""
    made = Watch(place.url, place.board)
    yield made
    assert made.unexpected() == []


@pytest.fixture
def people(chromium: Any, place: Place, watch: Watch) -> Iterator[People]:
    """Browsers of this test."""
    made = People(chromium, place, watch)
    yield made
    made.close()


@pytest.fixture
def visitor(people: People) -> Any:
    """A page of somebody who is not signed in."""
    return people.visitor()


def sign_in(
    page: Any, who: Actor | str, *, password: str = PASSWORD, code: str = "", path: str = "/ops/account"
) -> None:
    """Go to `path` as somebody would who has to sign in first."""
    page.goto(path)
    page.get_by_label("E-mail").fill(who if isinstance(who, str) else who.email)
    page.get_by_label("Password").fill(password)
    if code:
        page.get_by_label("Code").fill(code)
    page.get_by_role("button", name="Sign in").click()


def notice(page: Any) -> Any:
    """What the page tells after an act."""
    return page.locator("#said")


def refusal(page: Any) -> Any:
    """Why an act was refused."""
    return page.locator("p.said.refused")
