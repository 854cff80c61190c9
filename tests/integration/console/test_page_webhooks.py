"""The page and the API of webhooks: how receivers stand, dead letters sent again, disabling, and enabling by two administrators."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from sentinel.authority.actor import Actor
from sentinel.authority.protected_changes import WaitsForAdministrator
from sentinel.authority.webhooks import add_webhook, list_endpoints
from sentinel.cli.main import main
from tests.integration.console.left_open_forms import webhook_with_dead_letter
from tests.integration.console.second_administrator import Two, approve, power, waiting
from tests.integration.console.test_page_policies import words

URL = "https://siem.shop.example/events"


def test_dead_letters_are_seen_and_sent_again_by_administrators(fixtures: Any) -> None:
    endpoint, event = webhook_with_dead_letter(fixtures)
    app = fixtures.app()
    abe = fixtures.browser("abe", "admin", app, proved=True)
    assert fixtures.browser("ann", "approver", app).get("/ops/webhooks").status_code == 403
    page = words(abe.get("/ops/webhooks"))
    assert URL in page and "answered 500" in page and event in page and "1 dead letter" in page
    fixtures.sql("update sentinel.dead_letters set last_error = 'not_sent'")
    assert "no connection" in words(abe.get("/ops/webhooks"))
    fixtures.sql("update sentinel.dead_letters set last_error = 'not_allowed: inside_address'")
    assert "not called: it is an address inside a private network" in words(abe.get("/ops/webhooks"))
    again = f"/ops/webhooks/{endpoint}/resend/{event}"
    assert abe.submit(again).status_code == 303
    assert "resend requested" in words(abe.get("/ops/webhooks"))
    assert fixtures.sql("select resend_asked_by from sentinel.dead_letters where resend_asked_at is not null") == [
        ("abe@demo.local",)
    ]
    assert abe.submit(again).status_code == 404, "one asking is one try"
    fixtures.sql("update sentinel.dead_letters set delivered_at = now(), resend_asked_at = null")
    assert event not in words(abe.get("/ops/webhooks"))


def test_programs_do_the_same_under_the_api(fixtures: Any) -> None:
    endpoint, event = webhook_with_dead_letter(fixtures)
    abe = fixtures.person("abe", "admin")
    (seen,) = abe.get("/ops/api/webhooks").json["webhooks"]
    assert (seen["endpoint_id"], seen["dead_letters"], seen["url"]) == (endpoint, 1, URL)
    (letter,) = abe.get("/ops/api/webhooks/dead-letters").json["dead_letters"]
    assert (letter["event_id"], letter["attempts"]) == (event, 9)
    answer = abe.post(f"/ops/api/webhooks/{endpoint}/resend", {"event_id": event})
    assert (answer.status_code, answer.json) == (202, {"asked": 1})
    assert abe.post(f"/ops/api/webhooks/{endpoint}/disable", {}).status_code == 200
    assert abe.post(f"/ops/api/webhooks/{endpoint}/disable", {}).status_code == 409


def test_dead_letters_are_listed_to_the_newest(fixtures: Any) -> None:
    events = [webhook_with_dead_letter(fixtures)[1] for _ in range(3)]
    abe, path = fixtures.person("abe", "admin"), "/ops/api/webhooks/dead-letters?limit=2"
    first = abe.get(path).json
    rest = abe.get(f"{path}&cursor={first['next_cursor']}").json
    assert [[one["event_id"] for one in page["dead_letters"]] for page in (first, rest)] == [events[:2], events[2:]]
    assert "next_cursor" not in rest
    assert abe.get(f"{path}&cursor=WzEsMl0").status_code == 400


def test_sending_events_somewhere_waits_for_a_second_administrator(fixtures: Any) -> None:
    two = Two(fixtures)
    before = power(fixtures)
    person = Actor(fixtures.tenant_id, fixtures.sql("select operator_id from sentinel.operators where email = 'ada@demo.local'")[0][0], "ada@demo.local", "admin")  # fmt: skip
    with pytest.raises(WaitsForAdministrator) as waits:
        add_webhook(fixtures.pool, person, URL, ["decision"])
    assert power(fixtures) == before and list_endpoints(fixtures.pool, fixtures.tenant_id) == []
    assert f"Send events (decision) to {URL}" in words(two.bea.get(f"/ops/approvals/{waits.value.approval_id}"))
    approve(fixtures, str(waits.value.approval_id), two.bea)
    (made,) = list_endpoints(fixtures.pool, fixtures.tenant_id)
    assert (made.url, made.event_types) == (URL, ["decision"])
    assert two.ada.submit(f"/ops/webhooks/{made.endpoint_id}/disable").status_code == 303, (
        "taking away waits for nobody"
    )
    assert power(fixtures) == before
    approval_id = waiting(two.ada.submit(f"/ops/webhooks/{made.endpoint_id}/enable"))
    assert power(fixtures) == before
    approve(fixtures, approval_id, two.bea)
    assert (str(made.endpoint_id), URL) in power(fixtures)


def test_what_follows_the_host_in_an_address_is_read_by_administrators_alone(fixtures: Any) -> None:
    two, token = Two(fixtures), "T0-receivers-token"
    ada = Actor(fixtures.tenant_id, fixtures.sql("select operator_id from sentinel.operators where email = 'ada@demo.local'")[0][0], "ada@demo.local", "admin")  # fmt: skip
    with pytest.raises(WaitsForAdministrator) as waits:
        add_webhook(fixtures.pool, ada, f"https://hooks.shop.example/{token}?key={token}", ["decision"])
    approval_id = str(waits.value.approval_id)
    browsers = {role: fixtures.browser(name, role, two.app) for name, role in (("ann", "approver"), ("vic", "viewer"))}
    programs = {role: fixtures.person(f"{role}-program", role) for role in ("admin", "approver", "viewer")}

    def texts(role: str) -> list[str]:
        browser = {"admin": two.bea, **browsers}[role]
        pages = [f"/ops/approvals/{approval_id}", "/ops/events", "/ops/events/export.csv"]
        pages += [] if role == "viewer" else [f"/ops/approvals/batch?id={approval_id}"]
        calls = ["/ops/api/approvals", f"/ops/api/approvals/{approval_id}"]
        return [browser.get(one).get_data(as_text=True) for one in pages] + [
            programs[role].get(one).get_data(as_text=True) for one in calls
        ]

    for _ in ("asked", "made"):
        assert all(token in text for text in texts("admin"))
        for role in browsers:
            assert all("https://hooks.shop.example/" in text and token not in text for text in texts(role)), role
        if not list_endpoints(fixtures.pool, fixtures.tenant_id):
            approve(fixtures, approval_id, two.bea)
    (made,) = list_endpoints(fixtures.pool, fixtures.tenant_id)
    assert token in str(made.url)


def test_the_commands_add_list_rotate_disable_and_resend(fixtures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENTINEL_DATABASE_URL", fixtures.url)
    monkeypatch.setenv("SENTINEL_TENANT_ID", str(fixtures.tenant_id))

    def run(*arguments: str, exit_code: int = 0) -> Any:
        done = CliRunner().invoke(main, ["webhooks", *arguments, "--json"])
        assert done.exit_code == exit_code, done.output
        return json.loads(done.stdout) if exit_code == 0 else done.output

    assert (
        "SENTINEL_EXPORT_SECRETS: required with a database of your own; commands need the same value as the sender"
        in run("add", URL, exit_code=2)
    )
    monkeypatch.setenv("SENTINEL_EXPORT_SECRETS", "only-for-tests-of-commands-0123456789")
    assert "URL: is an address inside a private network (SENTINEL_EXPORT_ADDRESSES" in run(
        "add", "https://10.0.0.1/", exit_code=2
    )
    made = run("add", URL, "--type", "decision")
    (row,) = run("list")
    assert (row["endpoint_id"], row["url"], row["event_types"], row["behind"]) == (
        made["endpoint_id"],
        URL,
        ["decision"],
        0,
    )
    assert (
        run("secret", made["endpoint_id"])["secret"] == made["secret"] != run("rotate", made["endpoint_id"])["secret"]
    )
    assert run("disable", made["endpoint_id"]) == {"endpoint_id": made["endpoint_id"], "disabled": True}
    run("disable", made["endpoint_id"], exit_code=1)
    run("enable", made["endpoint_id"])
    endpoint, event = webhook_with_dead_letter(fixtures)
    (letter,) = run("dead-letters")
    assert (letter["event_id"], letter["last_error"]) == (event, "http_500")
    assert " answered 500 " in CliRunner().invoke(main, ["webhooks", "dead-letters"]).stdout
    fixtures.sql("update sentinel.dead_letters set last_error = 'not_allowed: scheme'")
    told = " ".join(CliRunner().invoke(main, ["webhooks", "dead-letters"]).stdout.split())
    assert "not called" in told and "(SENTINEL_EXPORT_ADDRESSES)" in told.replace(" ", ""), told
    assert run("resend", endpoint, event) == {"endpoint_id": endpoint, "asked": 1}
    run("resend", endpoint, exit_code=1)
    webhook_with_dead_letter(fixtures)
    some = CliRunner().invoke(main, ["webhooks", "dead-letters", "--limit", "1", "--json"])
    assert [one["event_id"] for one in json.loads(some.stdout)] == [event]
    assert "There are more than these 1; --limit shows more." in some.stderr
    assert "Missing option '--reason'" in run("discard", endpoint, event, exit_code=2)
    assert run("discard", endpoint, event, "--reason", "the receiver is gone") == {
        "endpoint_id": endpoint,
        "discarded": 1,
    }
    assert event not in [one["event_id"] for one in run("dead-letters")]
    told = [
        kind
        for (kind,) in fixtures.sql("select kind from sentinel.events where kind like 'webhook%%' order by event_id")
    ]
    assert told == ["webhook_added", "webhook_secret_rotated", "webhook_disabled", "webhook_enabled"]
