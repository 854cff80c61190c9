"""The AuthZEN API against the public certification scenario: Basic, Batch and Discovery, and the transport's rules."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from werkzeug.test import TestResponse

from sentinel.authority.policies import declare_policies
from sentinel.authority.settings import Settings
from sentinel.platform.resources import policies_dir
from sentinel.policy.library import ReloadablePolicies
from tests.support.asgi_client import AsgiClient
from tests.support.fixtures import SECRET, Fixtures, make_fixtures, served

RECORDS = Path(__file__).parents[2] / "support" / "authzen_records.yaml"
ONE, MANY = "/access/v1/evaluation", "/access/v1/evaluations"
ALICE, BOB = {"type": "user", "id": "alice"}, {"type": "user", "id": "bob"}
ADMIN = {**BOB, "properties": {"role": "admin"}}
FIRST, SECOND = {"type": "record", "id": "record-1"}, {"type": "record", "id": "record-2"}
ACTIVE, ARCHIVED = {**FIRST, "properties": {"status": "active"}}, {**SECOND, "properties": {"status": "archived"}}


def action(name: str, **properties: Any) -> dict[str, Any]:
    return {"name": name, **({"properties": properties} if properties else {})}


def asked(subject: Any, what: Any, resource: Any, **more: Any) -> dict[str, Any]:
    return {"subject": subject, "action": what, "resource": resource, **more}


class Pdp:
    """The authority with the scenario's policy beside the shipped ones."""

    def __init__(self, client: AsgiClient, key: str) -> None:
        self.client, self.key = client, key

    def post(self, path: str, body: Any = None, **rest: Any) -> TestResponse:
        headers = {"Authorization": f"Bearer {self.key}", **rest.pop("headers", {})}
        return self.client.post(path, headers=headers, **({"json": body} if body is not None else {}), **rest)

    def decision(self, body: Any, **rest: Any) -> bool:
        found = self.post(ONE, body, **rest)
        assert found.status_code == 200, found.text
        assert isinstance(found.json["decision"], bool) and isinstance(found.json.get("context", {}), dict)
        return bool(found.json["decision"])

    def decisions(self, body: Any) -> list[bool]:
        found = self.post(MANY, body)
        assert found.status_code == 200, found.text
        assert "decision" not in found.json
        return [one["decision"] for one in found.json["evaluations"]]


@pytest.fixture
def pdp(fixtures: Fixtures, tmp_path: Path) -> Iterator[Pdp]:
    folder = tmp_path / "policies"
    shutil.copytree(policies_dir(), folder)
    shutil.copy(RECORDS, folder)
    settings = Settings(database_url=fixtures.url, secret_keys=(SECRET,), pool_size=8)
    with served(settings, ReloadablePolicies(folder)) as (authority, app):
        declare_policies(authority)
        yield Pdp(app.test_client(), fixtures.key)


FIXTURE = {
    "1 alice reads": (asked(ALICE, action("read"), FIRST), True),
    "2 alice writes": (asked(ALICE, action("write"), FIRST), True),
    "3 bob reads": (asked(BOB, action("read"), FIRST), True),
    "4 bob does not write": (asked(BOB, action("write"), FIRST), False),
    "5 nothing archived is written": (asked(ALICE, action("write"), ARCHIVED), False),
    "6 but by an administrator": (asked(ADMIN, action("write"), ARCHIVED), True),
    "7 a soft delete": (asked(ALICE, action("delete", soft=True), FIRST), True),
    "8 no hard delete": (asked(ALICE, action("delete", soft=False), FIRST), False),
}
"""The eight decisions whose value the scenario fixes."""


def test_the_fixed_decisions_stand_with_and_without_context_and_however_often_they_are_asked(pdp: Pdp) -> None:
    context = {"time": "2025-06-27T18:03-07:00", "ip": "192.168.1.1", "load": 0.25}
    for name, (body, wanted) in FIXTURE.items():
        for again in ({}, {"context": context}, {}, {"context": {}}):
            assert pdp.decision({**body, **again}) is wanted, name


def test_properties_and_members_that_nobody_declared_are_ignored(pdp: Pdp) -> None:
    more = asked(
        {**ALICE, "properties": {"department": "Sales", "role": "manager"}, "later": 1}, action("read", method="GET"),
        {**FIRST, "properties": {"status": "active", "owner": "bob"}}, foo="bar", futureField={"nested": True},
    )  # fmt: skip
    assert pdp.decision(more) is True


@pytest.mark.parametrize(
    ("properties", "names"),
    [
        ({"score": 0.5}, "params.score"), ({"id": 2**53}, "params.id"), ({"amount": "12.50"}, "params.currency"),
        ({"channel": "web shop"}, "params.channel"), ({"risk": "low"}, "params.risk"), ({"note": "a\u202eb"}, "params.note"),
        ({"größe": "l"}, "params"), ({"resource_type": "x"}, "properties.resource_type"),
    ],
)  # fmt: skip
def test_a_property_that_cannot_be_bound_exactly_is_refused_by_its_name(
    pdp: Pdp, properties: dict[str, Any], names: str
) -> None:
    found = pdp.post(ONE, asked(ALICE, action("read"), {**FIRST, "properties": properties}))
    assert found.status_code == 400 and names in found.text


WHOLE = asked(ALICE, action("read"), FIRST)
BROKEN: dict[str, Any] = {
    **{f"without {name}": {key: value for key, value in WHOLE.items() if key != name} for name in WHOLE},
    **{
        f"{name} without {member}": {**WHOLE, name: {k: v for k, v in WHOLE[name].items() if k != member}}
        for name, member in itertools.chain(
            itertools.product(("subject", "resource"), ("type", "id")), [("action", "name")]
        )
    },
    "subject is a text": {**WHOLE, "subject": "alice"},
    "action is a list": {**WHOLE, "action": ["read"]},
    "action.name is a number": {**WHOLE, "action": {"name": 123}},
    "resource.id is null": {**WHOLE, "resource": {"type": "record", "id": None}},
    "properties are a text": {**WHOLE, "resource": {**FIRST, "properties": "active"}},
    "context is a text": {**WHOLE, "context": "now"},
    "an id with a line break": {**WHOLE, "resource": {"type": "record", "id": "record\n1"}},
    "one property said twice": asked(ALICE, action("write", status="active"), ARCHIVED),
    "one property said as true and as 1": asked(
        ALICE, action("read", fresh=True), {**FIRST, "properties": {"fresh": 1}}
    ),
    "one property said as true and as 1, within a list": asked(
        ALICE, action("read", flags=[True]), {**FIRST, "properties": {"flags": [1]}}
    ),
}


@pytest.mark.parametrize("path", [ONE, MANY])
def test_what_is_missing_or_of_another_type_is_400(pdp: Pdp, path: str) -> None:
    for name, body in BROKEN.items():
        found = pdp.post(path, body)
        assert found.status_code == 400, (name, found.text)
        assert "decision" not in found.json


RAW: dict[str, tuple[bytes, str]] = {
    "another type": (b'{"subject": 1}', "text/plain"), "a form": (b"subject=alice", "application/x-www-form-urlencoded"),
    "no JSON": (b'{"subject": ', "application/json"), "nothing": (b"", "application/json"),
    "a list": (b"[]", "application/json"), "a key twice": (b'{"subject": {}, "subject": {}}', "application/json"),
}  # fmt: skip


@pytest.mark.parametrize("path", [ONE, MANY])
@pytest.mark.parametrize("name", RAW)
def test_what_is_no_json_is_400(pdp: Pdp, path: str, name: str) -> None:
    data, content_type = RAW[name]
    assert pdp.post(path, data=data, content_type=content_type).status_code == 400


@pytest.mark.parametrize("path", [ONE, MANY])
def test_only_keys_of_the_right_scope_are_answered(pdp: Pdp, fixtures: Fixtures, path: str) -> None:
    assert pdp.client.post(path, json=WHOLE).status_code == 401
    assert pdp.client.post(path, json=WHOLE, headers={"Authorization": "Bearer nobody"}).status_code == 401
    narrow = fixtures.new_key(scopes=("heartbeat",))
    assert pdp.client.post(path, json=WHOLE, headers={"X-API-Key": narrow}).status_code == 403
    assert pdp.client.get(path, headers={"X-API-Key": fixtures.key}).status_code == 405


def test_the_request_id_comes_back(pdp: Pdp) -> None:
    for path, body in ((ONE, WHOLE), (MANY, WHOLE), (ONE, {})):
        assert (
            pdp.post(path, body, headers={"X-Request-ID": "bfe9eb29-ab87"}).headers["X-Request-ID"] == "bfe9eb29-ab87"
        )
        assert pdp.post(path, body).headers["X-Request-ID"]


BATCHES: dict[str, tuple[dict[str, Any], list[bool]]] = {
    "one subject and action": (
        {"subject": ALICE, "action": action("read"), "evaluations": [{"resource": FIRST}, {"resource": SECOND}]},
        [True, True],
    ),
    "in order": (
        {"subject": BOB, "resource": FIRST, "evaluations": [{"action": action("read")}, {"action": action("write")}]},
        [True, False],
    ),
    "properties of each resource": (
        {"subject": ALICE, "action": action("write"), "evaluations": [{"resource": ACTIVE}, {"resource": ARCHIVED}]},
        [True, False],
    ),
    "properties of each subject": (
        {"action": action("write"), "resource": ARCHIVED, "evaluations": [{"subject": ALICE}, {"subject": ADMIN}]},
        [False, True],
    ),
    "nothing in common": ({"evaluations": [WHOLE, asked(BOB, action("write"), FIRST)]}, [True, False]),
    "a context of its own": (
        {
            "subject": ALICE, "action": action("read"), "context": {"time": "now"},
            "evaluations": [{"resource": FIRST}, {"resource": SECOND, "context": {"source": "override"}}],
        },
        [True, True],
    ),
    "a context of null, which counts as absent": (
        {
            "subject": ALICE, "action": action("read"), "context": {"locked": True},
            "evaluations": [{"resource": FIRST}, {"resource": FIRST, "context": None}, {"resource": FIRST, "context": {}}],
        },
        [False, False, True],
    ),
    "required members from the top": (
        {
            "subject": ALICE, "action": action("write"), "resource": {"type": "record"},
            "evaluations": [{"resource": {"id": "record-1", "properties": {"status": "active"}}}, {"resource": ARCHIVED}],
        },
        [True, False],
    ),
    "properties at the top are not inherited by another entity": (
        {"subject": ALICE, "action": action("write"), "resource": ARCHIVED, "evaluations": [{"resource": FIRST}]},
        [True],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BATCHES)
def test_batches_take_what_they_lack_from_the_top(pdp: Pdp, name: str) -> None:
    body, wanted = BATCHES[name]
    assert pdp.decisions(body) == wanted


@pytest.mark.parametrize(
    "bad", [{}, {"resource": {"type": "record"}}, 5, None, {"resource": FIRST, "action": {"name": 1}}]
)
def test_one_that_cannot_be_asked_is_false_and_the_others_are_answered(pdp: Pdp, bad: Any) -> None:
    found = pdp.post(MANY, {"subject": ALICE, "action": action("read"), "evaluations": [{"resource": FIRST}, bad]})
    first, second = found.json["evaluations"]
    assert first["decision"] is True
    assert second["decision"] is False and second["context"]["error"]["status"] == 400


@pytest.mark.parametrize("several", [{}, {"evaluations": []}])
def test_without_evaluations_it_is_a_single_one(pdp: Pdp, several: dict[str, Any]) -> None:
    found = pdp.post(MANY, {**WHOLE, **several})
    assert (found.status_code, found.json["decision"], "evaluations" in found.json) == (200, True, False)


@pytest.mark.parametrize(
    ("semantic", "wanted"),
    [
        (None, [True, False, True]), ("execute_all", [True, False, True]),
        ("deny_on_first_deny", [True, False]), ("permit_on_first_permit", [True]),
    ],
)  # fmt: skip
def test_semantics_stop_where_they_say(pdp: Pdp, semantic: str | None, wanted: list[bool]) -> None:
    options = {} if semantic is None else {"options": {"evaluations_semantic": semantic}}
    body = {
        "subject": ALICE,
        "action": action("write"),
        "evaluations": [{"resource": FIRST}, {"resource": ARCHIVED}, {"resource": FIRST}],
    }
    assert pdp.decisions({**body, **options}) == wanted
    if semantic == "deny_on_first_deny":
        last = pdp.post(MANY, {**body, **options}).json["evaluations"][-1]["context"]
        assert (last["code"], last["stopped_by"]) == ("200", semantic)


def test_an_unknown_semantic_and_too_many_are_400(pdp: Pdp) -> None:
    body = {"subject": ALICE, "action": action("read"), "evaluations": [{"resource": FIRST}]}
    assert pdp.post(MANY, {**body, "options": {"evaluations_semantic": "best_of_three"}}).status_code == 400
    assert pdp.post(MANY, {**body, "evaluations": [{"resource": FIRST}] * 65}).status_code == 400
    assert pdp.decisions({**body, "evaluations": [{"resource": FIRST}] * 64}) == [True] * 64


def test_the_well_known_document_names_the_routes(pdp: Pdp) -> None:
    found = pdp.client.get("/.well-known/authzen-configuration", base_url="http://pdp.example:7860")
    assert found.status_code == 200 and found.content_type == "application/json"
    assert found.json == {
        "policy_decision_point": "http://pdp.example:7860",
        "access_evaluation_endpoint": "http://pdp.example:7860/access/v1/evaluation",
        "access_evaluations_endpoint": "http://pdp.example:7860/access/v1/evaluations",
    }
    assert pdp.client.post("/access/v1/requests", json={}).status_code == 404, "the profile is off"


def test_behind_tls_every_address_of_the_document_is_https(database_url: str) -> None:
    fixtures = make_fixtures(database_url, behind_tls=True)
    found = fixtures.app.test_client().get(
        "/.well-known/authzen-configuration", base_url="http://pdp.example", headers={"X-Forwarded-Proto": "https"}
    )
    fixtures.close()
    assert set(found.json.values()) == {
        "https://pdp.example", "https://pdp.example/access/v1/evaluation", "https://pdp.example/access/v1/evaluations",
    }  # fmt: skip
