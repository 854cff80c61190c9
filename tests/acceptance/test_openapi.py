"""The OpenAPI documents are valid, name every route, and describe what really happens: fuzzed from themselves (G27)."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import schemathesis
from flask import Flask
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as with_seed
from hypothesis import strategies as st
from openapi_spec_validator import OpenAPIV31SpecValidator
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from ops_console.app import create_app as create_console
from ops_console.settings import ConsoleSettings
from sentinel.app import create_app as create_authority
from sentinel.http.openapi import undocumented_routes
from sentinel.http.rate_limit import SharedRateLimit
from sentinel.settings import Settings
from tests.acceptance.places import SCALE
from tests.world import PASSWORD, SECRET, World

pytestmark = pytest.mark.slow
SEED = int(os.environ.get("SENTINEL_TEST_SEED", "0")) or random.SystemRandom().randrange(10**6)
EXAMPLES = round(15 * SCALE)
SECONDS = 25 * SCALE
STREAMS = ("/approvals/stream", "/ops/api/live/stream")


def authority_of(world: World) -> Flask:
    """The authority on the same world; its streams end after what they begin with, as at a deploy."""
    limit = SharedRateLimit(per_second=100_000, burst=100_000)
    return create_authority(Settings(secret_keys=(SECRET,)), world.authority, limit, stopping=lambda: True)


@contextmanager
def console_of(world: World) -> Iterator[Flask]:
    """The console on the same world; its stream ends after what it begins with."""
    app = create_console(ConsoleSettings(database_url=world.url, insecure_cookies=True), stopping=lambda: True)
    try:
        yield app
    finally:
        app.extensions["console"].pool.close()
        app.extensions["console"].board.pool.close()


def sign_in(app: Flask, world: World, role: str = "admin") -> dict[str, str]:
    client = app.test_client()
    email = world.one("select email from sentinel.operators where role = %s limit 1", role)
    done = client.post("/ops/api/session", json={"email": email, "password": PASSWORD})
    assert done.status_code == 200, done.text
    return {"Cookie": done.headers["Set-Cookie"].split(";")[0], "X-CSRF-Token": done.json["csrf_token"]}


def document(app: Flask) -> dict[str, Any]:
    return dict(app.test_client().get("/openapi.json").get_json())


def test_every_route_of_both_programs_is_documented_and_the_documents_are_valid(world: World) -> None:
    with console_of(world) as console:
        for app in (world.app, console):
            assert undocumented_routes(app, pages="pages") == []
            told = document(app)
            assert told["openapi"].startswith("3.1")
            OpenAPIV31SpecValidator(told).validate()
            ids = [
                one["operationId"]
                for path in told["paths"].values()
                for one in path.values()
                if isinstance(one, dict) and "operationId" in one
            ]
            assert len(ids) == len(set(ids))


def question(operation: Any, headers: dict[str, str], deadline: float) -> int:
    """Generated questions to one operation, well and badly formed ones; how many were asked."""
    asked = 0

    @with_seed(SEED)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def ask(data: Any) -> None:
        nonlocal asked
        case = data.draw(operation.as_strategy(generation_mode=data.draw(st.sampled_from(list(GenerationMode)))))
        if time.monotonic() > deadline:
            return  # only now: what is drawn must not depend on the clock
        asked += 1
        checks = [not_a_server_error, status_code_conformance, content_type_conformance]
        if not operation.path.endswith(STREAMS):  # a stream's schema says what the whole text is, not one event of it
            checks.append(response_schema_conformance)
        case.call_and_validate(headers=headers, checks=checks)

    ask()
    return asked


def fuzz(app: Flask, headers: dict[str, str], *, skip: tuple[str, ...] = (), only: str = "") -> int:
    """Ask every operation generated questions; fails on the first answer that the document does not name. How many were asked."""
    schema = schemathesis.openapi.from_wsgi("/openapi.json", app)
    schema.config.generation.modes = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]
    asked, deadline = 0, time.monotonic() + SECONDS
    operations = [one.ok() for one in schema.get_all_operations()]
    operations = [one for one in operations if only in one.path]
    random.Random(SEED).shuffle(operations)
    for operation in operations:
        if operation.path in skip:
            continue
        if time.monotonic() > deadline:
            break
        asked += question(operation, headers, deadline)
    print(f"seed {SEED}: {asked} questions to {len(operations)} operations")
    return asked


def test_the_authority_answers_as_its_document_says(world: World) -> None:
    # The icon is a file, which this test's client would leave open; what it looks like no document says.
    assert fuzz(authority_of(world), {"X-API-Key": world.key}, skip=("/favicon.ico",)) > 50
    assert world.broken_invariants() == []


def test_the_console_answers_as_its_document_says(world: World) -> None:
    with console_of(world) as console:
        headers = sign_in(console, world)
        assert fuzz(console, headers, skip=("/ops/api/session",)) > 50
    assert world.broken_invariants() == []


@pytest.mark.parametrize("path", STREAMS)
def test_streams_answer_as_their_documents_say(world: World, path: str) -> None:
    with console_of(world) as console:
        app, headers = (console, {}) if "live" in path else (authority_of(world), {"X-API-Key": world.key})
        assert fuzz(app, headers, only=path) >= 1


def test_the_same_fuzzing_catches_an_answer_that_no_document_names(world: World) -> None:
    from flask import Response

    found = world.app.view_functions
    name = next(one for one in found if one.endswith("heartbeat"))
    told = found[name].documentation  # type: ignore[attr-defined]

    def broken() -> Response:
        return Response("oh no", status=418)

    broken.documentation = told  # type: ignore[attr-defined]
    for one in [one for one in found if one.endswith("heartbeat")]:
        found[one] = broken
    with pytest.raises(BaseException, match="418"):
        fuzz(world.app, {"X-API-Key": world.key}, only="heartbeat")
