"""The OpenAPI documents are valid, name every route, and describe what really happens: fuzzed from themselves (G27)."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from itertools import count
from typing import Any

import psycopg
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as with_seed
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from ops_console.app import create_app as create_console
from ops_console.settings import ConsoleSettings
from sentinel.authority.app import create_app as create_authority
from sentinel.authority.settings import Settings
from sentinel.cli.scratch import listening
from sentinel.platform.http.rate_limit import SharedRateLimit
from tests.support.asgi_client import InProcessApp
from tests.support.busy import overload
from tests.support.fixtures import AGENT, PASSWORD, SECRET, Fixtures
from tests.support.logins import console_urls
from tests.support.order_fixtures import LANES, make_intake, order_body, signed
from tests.support.order_fixtures import SECRET as ORDER_SECRET
from tests.support.served_programs import SCALE
from tests.support.undocumented import undocumented_routes

pytestmark = pytest.mark.slow
SEED = int(os.environ.get("SENTINEL_TEST_SEED", "0")) or random.SystemRandom().randrange(10**6)
EXAMPLES = round(10 * SCALE)
MORE_EXAMPLES = round(60 * SCALE)
"""Where each of several answers must have been met."""
SECONDS = 25 * SCALE
STREAMS = ("/approvals/stream", "/ops/api/live/stream")
SESSION, PROCESS_ONCE = "/ops/api/session", "/ops/api/refunds/process-once"

Prepare = Callable[[Any, Any], dict[str, str]]
"""Makes of a generated question, and of more draws, what is really asked; the headers it goes with."""


@contextmanager
def authority_of(fixtures: Fixtures) -> Iterator[InProcessApp]:
    """The authority on the same fixtures; its streams end after what they begin with, as at a deploy."""
    limit = SharedRateLimit(per_second=100_000, burst=100_000)
    edge = create_authority(
        Settings(secret_keys=(SECRET,), authzen_access_requests=True), fixtures.authority, limit, stopping=lambda: True
    )
    with closing(InProcessApp(edge)) as app:
        yield app


@contextmanager
def console_of(fixtures: Fixtures) -> Iterator[InProcessApp]:
    """The console on the same fixtures; its stream ends after what it begins with."""
    own = console_urls(fixtures.url)
    edge = create_console(
        ConsoleSettings(
            database_url=own["SENTINEL_DATABASE_URL"],
            board_database_url=own["SENTINEL_BOARD_DATABASE_URL"],
            insecure_cookies=True,
            require_second_factor="nobody",
        ),
        stopping=lambda: True,
    )
    app = InProcessApp(edge)
    try:
        yield app
    finally:
        app.close()
        app.flask.extensions["console"].pool.close()
        app.flask.extensions["console"].board.pool.close()


def sign_in(app: InProcessApp, fixtures: Fixtures, role: str = "admin") -> dict[str, str]:
    client = app.test_client()
    email = fixtures.one("select email from sentinel.operators where role = %s limit 1", role)
    done = client.post("/ops/api/session", json={"email": email, "password": PASSWORD})
    assert done.status_code == 200, done.text
    return {"Cookie": done.headers["Set-Cookie"].split(";")[0], "X-CSRF-Token": done.json["csrf_token"]}


def document(app: InProcessApp) -> dict[str, Any]:
    return dict(app.test_client().get("/openapi.json").get_json())


def test_every_route_of_both_programs_is_documented_and_the_documents_are_valid(fixtures: Fixtures) -> None:
    # Loading it takes two seconds, which every process would spend that only collects this file.
    from openapi_spec_validator import OpenAPIV31SpecValidator

    with console_of(fixtures) as console:
        for app in (fixtures.app, console):
            assert undocumented_routes(app.flask, pages="pages") == []
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


def question(
    operation: Any, prepare: Prepare, deadline: float, *, examples: int = EXAMPLES, least: int = 1
) -> Counter[int]:
    """Generated questions to one operation, well and badly formed ones; how many were asked, by the answer's status.

    After the deadline none is asked any more, but `least` in any case.
    """
    answered: Counter[int] = Counter()
    cases = st.sampled_from([operation.as_strategy(generation_mode=mode) for mode in GenerationMode])

    @with_seed(SEED)
    @settings(
        max_examples=examples,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def ask(data: Any) -> None:
        case = data.draw(data.draw(cases))
        headers = prepare(case, data.draw)
        if answered.total() >= least and time.monotonic() > deadline:
            return  # only now: what is drawn must not depend on the clock
        checks = [status_code_conformance, content_type_conformance]
        if not operation.path.endswith(PROCESS_ONCE):  # whose 503 says that no worker runs; a 500 it does not document
            checks.append(not_a_server_error)
        if not operation.path.endswith(STREAMS):  # a stream's schema says what the whole text is, not one event of it
            checks.append(response_schema_conformance)
        # A cookie among the headers is dropped by this client, without a word.
        cookies = dict([headers["Cookie"].split("=", 1)] if "Cookie" in headers else [])
        rest = {name: value for name, value in headers.items() if name != "Cookie"}
        answered[case.call_and_validate(headers=rest, cookies=cookies, checks=checks).status_code] += 1

    ask()
    return answered


def signed_in_as(headers: dict[str, str]) -> Prepare:
    """Whoever these headers name, in nine of ten questions without a token that was made up, which would count instead."""

    def prepare(case: Any, draw: Any) -> dict[str, str]:
        if case.headers and draw(st.integers(0, 9)):
            case.headers.pop("Authorization", None)
        return headers

    return prepare


def operations_of(app: InProcessApp) -> list[Any]:
    """Every operation of the document that the program itself serves."""
    schema = schemathesis.openapi.from_wsgi("/openapi.json", app)
    schema.config.generation.modes = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]
    return [one.ok() for one in schema.get_all_operations()]


def fuzz(
    app: InProcessApp,
    headers: dict[str, str],
    *,
    skip: tuple[str, ...] = (),
    only: str = "",
    prepare: Prepare | None = None,
    least: int = 1,
) -> Counter[int]:
    """Ask every operation generated questions; fails on the first answer that no document names. How many, by status.

    Each operation has its share of the time, and what others left of theirs: none is without a question.
    """
    answered: Counter[int] = Counter()
    end = time.monotonic() + SECONDS
    operations = [one for one in operations_of(app) if only in one.path and one.path not in skip]
    random.Random(SEED).shuffle(operations)
    for place, operation in enumerate(operations):
        now = time.monotonic()
        share = max(0.0, end - now) / (len(operations) - place)
        asked = question(operation, prepare or signed_in_as(headers), now + share, least=least)
        assert asked.total(), f"{operation.method} {operation.path} was not asked"
        answered += asked
    print(f"seed {SEED}: {answered.total()} questions to {len(operations)} operations, {dict(answered)}")
    return answered


def test_the_authority_answers_as_its_document_says(fixtures: Fixtures) -> None:
    # The icon is a file, which this test's client would leave open; what it looks like no document says. Its readiness is that
    # of a login which owns the database, as this test's does: it says 503.
    with authority_of(fixtures) as app:
        answered = fuzz(app, {"X-API-Key": fixtures.key}, skip=("/favicon.ico", "/readyz", "/metrics"))
    assert answered.total() > 50 / overload()
    assert fixtures.broken_invariants() == []


@pytest.mark.parametrize("protocol", ["/access/", "/aap/"])
def test_the_protocols_of_others_answer_as_their_documents_say(fixtures: Fixtures, protocol: str) -> None:
    # A key that is bound to an agent, because the approval protocol answers no other.
    with authority_of(fixtures) as app:
        answered = fuzz(app, {"X-API-Key": fixtures.new_key(agent_id=AGENT)}, only=protocol)
    assert set(answered) - {403}, "only one refusal was looked at"
    assert fixtures.broken_invariants() == []


def test_the_console_answers_as_its_document_says(fixtures: Fixtures) -> None:
    with console_of(fixtures) as console:
        headers = sign_in(console, fixtures)
        # Without the session's own route, which ends it; that has its questions below.
        answered = fuzz(console, headers, skip=(SESSION, "/metrics"))
    assert answered.total() > 20 / overload()
    assert answered[401] < answered.total() / 2, "nobody was signed in: only one refusal was looked at"
    assert fixtures.broken_invariants() == []


@pytest.mark.parametrize("path", STREAMS)
def test_streams_answer_as_their_documents_say(fixtures: Fixtures, path: str) -> None:
    place, headers = (console_of, {}) if "live" in path else (authority_of, {"X-API-Key": fixtures.key})
    with place(fixtures) as app:
        assert fuzz(app, headers, only=path).total() >= 1


def sign_in_headers(fixtures: Fixtures, times: Iterator[int], case: Any, draw: Any) -> dict[str, str]:
    """Signing in as generated, or as a person who is right or wrong; now and then the throttle has forgotten everything.

    Each of these comes in its turn, for what is drawn may be the same again and again.
    """
    turn = next(times) % 5
    if draw(st.integers(0, 9)) == 0 or turn == 0:
        fixtures.admin.execute("delete from sentinel.sign_in_attempts")
    drawn = draw(st.sampled_from([None, PASSWORD, "wrong horse"]))
    password = (PASSWORD, "wrong horse", None, PASSWORD, drawn)[turn]
    if password is not None:
        email = fixtures.one("select email from sentinel.operators where role = 'viewer' limit 1")
        case.body, case.media_type = {"email": email, "password": password}, "application/json"
    here, elsewhere = "http://localhost", "https://elsewhere.example"
    return {"Origin": (here, here, here, elsewhere, draw(st.sampled_from([here, here, elsewhere])))[turn]}


def with_a_session(
    app: InProcessApp, fixtures: Fixtures, role: str, times: Iterator[int], case: Any, draw: Any
) -> dict[str, str]:
    """Somebody new each time, in turn: signed in, signed in without the token against forgery, nobody, or one of them."""
    whole = sign_in(app, fixtures, role)
    kept = (2, 1, 0, draw(st.sampled_from([2, 2, 1, 0])))[next(times) % 4]
    return signed_in_as(dict(list(whole.items())[:kept]))(case, draw)


def test_signing_in_reading_and_ending_a_session_answer_as_their_documents_say(fixtures: Fixtures) -> None:
    with console_of(fixtures) as console:
        door = partial(sign_in_headers, fixtures, count())
        inside = partial(with_a_session, console, fixtures, "viewer", count())
        met: dict[str, set[int]] = {}
        for operation in [one for one in operations_of(console) if one.path == SESSION]:
            prepare = door if operation.method == "post" else inside
            answered = question(operation, prepare, time.monotonic() + SECONDS, examples=MORE_EXAMPLES)
            print(f"seed {SEED}: {operation.method} {SESSION} {dict(answered)}")
            met[operation.method] = set(answered)
    # Else it was the same refusal again and again that was found to be documented.
    assert met["post"] >= {200, 400, 401, 403}
    assert met["get"] >= {200, 401}
    assert met["delete"] >= {204, 401, 403}
    assert fixtures.broken_invariants() == []


def order_headers(times: Iterator[int], case: Any, draw: Any) -> dict[str, str]:
    """A delivery as generated, or of a known source: an order, one with members made up, or no order at all; signed or not.

    Every fourth is whole and signed right, so that a busy machine's few questions are not refusals alone.
    """
    whole = next(times) % 4 == 0
    if case.path_parameters and (draw(st.integers(0, 9)) or whole):
        case.path_parameters["source"] = "demo"
    if case.method.upper() != "POST":
        return {}
    made_up = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=8,
    )
    order = json.loads(order_body(draw(st.sampled_from(["o-1", "o-2", None])), draw(st.sampled_from(list(LANES)))))
    right = json.dumps(order).encode()
    names = [*order["order"], "placed_at", "billing_address", draw(st.text(max_size=8))]
    for name in draw(st.lists(st.sampled_from(names), max_size=2)):
        order["order"][name] = draw(made_up)
    body = json.dumps(draw(st.sampled_from([order, order, order, draw(made_up)]))).encode()
    generated, secret = (
        draw(st.sampled_from([body, body, body, body[:-1]])),
        draw(st.sampled_from([*[ORDER_SECRET] * 9, "wrong"])),
    )
    case.body, case.media_type = right if whole else generated, "application/json"
    return signed(case.body, ORDER_SECRET if whole else secret)


def test_the_order_intake_answers_as_its_document_says(fixtures: Fixtures) -> None:
    with authority_of(fixtures) as authority, listening(authority) as url:
        orders = make_intake(fixtures, url)
        try:
            # Neither metrics nor readiness: as for the authority.
            prepare = partial(order_headers, count())
            answered = fuzz(orders.app, {}, skip=("/metrics", "/readyz"), prepare=prepare, least=EXAMPLES)
        finally:
            orders.close()
    assert len(answered) > 2, "only one refusal was looked at"
    assert fixtures.one("select count(*) from orders.reviews") > 0, "no order was taken"
    assert fixtures.broken_invariants() == []


@contextmanager
def worker_that_answers(fixtures: Fixtures) -> Iterator[None]:
    """A worker loop that is heard of and says of every request what a worker may say."""
    over, said = threading.Event(), [{"ledger_entry_id": "lge_1", "status": "EXECUTED"}, {}, {"withdrawn": True}]
    fixtures.admin.execute(
        "insert into refunds.workers (tenant_id, worker_id, agent_id, mode, status) values (%s, 'w1', %s, 'loop', 'running')",
        [fixtures.tenant_id, AGENT],
    )
    answer = "update refunds.process_requests set finished_at = clock_timestamp(), result = %s::jsonb where finished_at is null"

    def work() -> None:
        with psycopg.connect(fixtures.url, autocommit=True) as connection:
            while not over.wait(0.02):
                done = connection.execute(answer, [json.dumps(said[0])]).rowcount
                said.append(said.pop(0)) if done else None

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_processing_once_answers_as_its_document_says(fixtures: Fixtures) -> None:
    with console_of(fixtures) as console, worker_that_answers(fixtures):
        (operation,) = [one for one in operations_of(console) if one.path == PROCESS_ONCE]
        people = {role: partial(with_a_session, console, fixtures, role, count()) for role in ("viewer", "approver")}
        times = count()

        def prepare(case: Any, draw: Any) -> dict[str, str]:
            drawn = draw(st.sampled_from(["viewer", "approver"]))
            return people["approver" if next(times) % 2 == 0 else drawn](case, draw)

        answered = question(operation, prepare, time.monotonic() + SECONDS, examples=MORE_EXAMPLES)
    print(f"seed {SEED}: {PROCESS_ONCE} {dict(answered)}")
    assert set(answered) >= {200, 401, 403, 503}
    assert fixtures.one("select count(*) from refunds.process_requests where finished_at is null") == 0


def test_mutant_that_says_why_a_sign_in_was_refused_is_caught(fixtures: Fixtures) -> None:
    from sentinel.core.errors import NotFound

    with console_of(fixtures) as console:
        name = next(one for one in console.flask.view_functions if one.endswith("create_session"))
        told = console.flask.view_functions[name].documentation  # type: ignore[attr-defined]

        def broken() -> None:
            raise NotFound("there is no operator of that address")

        broken.documentation = told  # type: ignore[attr-defined]
        console.flask.view_functions[name] = broken
        (operation,) = [one for one in operations_of(console) if (one.path, one.method) == (SESSION, "post")]
        with pytest.raises(BaseException, match="404"):
            question(operation, partial(sign_in_headers, fixtures, count()), time.monotonic() + SECONDS)


def test_the_same_fuzzing_catches_an_answer_that_no_document_names(fixtures: Fixtures) -> None:
    from flask import Response

    found = fixtures.app.flask.view_functions
    name = next(one for one in found if one.endswith("heartbeat"))
    told = found[name].documentation  # type: ignore[attr-defined]

    def broken() -> Response:
        return Response("oh no", status=418)

    broken.documentation = told  # type: ignore[attr-defined]
    for one in [one for one in found if one.endswith("heartbeat")]:
        found[one] = broken
    with pytest.raises(BaseException, match="418"):
        fuzz(fixtures.app, {"X-API-Key": fixtures.key}, only="heartbeat")
