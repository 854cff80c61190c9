"""The page of keys: an administrator's, with proof; a form makes one key, and the key is shown in that one answer only."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from sentinel.authority.keys import find_key, issue_key, list_keys, newest_keys, revoke_key, rotate_key, secret_hash
from sentinel.core.errors import SentinelError
from tests.integration.console.conftest import PASSWORD
from tests.integration.console.test_page_policies import EVIL, words

SCOPES = ["guard", "heartbeat"]


def form_id(answer: Any) -> str:
    return str(re.findall(r'name="key_id" value="([^"]*)"', answer.get_data(as_text=True))[0])


def key_in(answer: Any) -> str:
    (found,) = re.findall(r">(snt_(?:live|test)_\w+)</code>", answer.get_data(as_text=True))
    return str(found)


def test_a_form_makes_one_key_however_often_it_is_sent_and_shows_it_once(fixtures: Any) -> None:
    app = fixtures.app()
    assert [
        fixtures.browser(*who, app).get("/ops/keys").status_code for who in (("vic", "viewer"), ("ann", "approver"))
    ] == [403, 403]
    abe = fixtures.browser("abe", "admin", app)
    form = {
        "key_id": form_id(abe.get("/ops/keys")), "label": EVIL, "agent_id": "retail-refund-agent", "scopes": SCOPES,
        "owner": "ann@demo.local", "expires_days": "30", "test": "yes",
    }  # fmt: skip
    unproved = abe.submit("/ops/keys", **form)
    assert unproved.status_code == 400 and "&lt;img" in unproved.get_data(as_text=True), "typed words are kept, escaped"
    for given in (
        {"scopes": []}, {"scopes": ["approve"]}, {"agent_id": "a b"}, {"expires_days": "0"}, {"expires_days": "x"},
        {"owner": "nobody@demo.local"}, {"key_id": "7"}, {"label": "\u202etxt"},
    ):  # fmt: skip
        assert abe.submit("/ops/keys", **{**form, **given}, proof=PASSWORD).status_code == 400, given
    assert fixtures.sql("select count(*) from sentinel.agent_keys") == [(0,)]
    made = abe.submit("/ops/keys", **form)
    assert (made.status_code, made.headers["Cache-Control"]) == (201, "no-store")
    key = key_in(made)
    row = find_key(fixtures.pool, secret_hash(key))
    assert row is not None and (row.agent_id, sorted(row.scopes), row.usable) == ("retail-refund-agent", SCOPES, True)
    assert row.owner_operator_id is not None and key.startswith("snt_test_")
    again = abe.submit("/ops/keys", **form)
    assert again.status_code == 409 and "a key is shown only once" in words(again)
    assert key not in again.get_data(as_text=True) and key not in abe.get("/ops/keys").get_data(as_text=True)
    assert "<img src=x" not in abe.get("/ops/keys").get_data(as_text=True)
    assert fixtures.sql("select count(*) from sentinel.agent_keys") == [(1,)]


@pytest.mark.usefixtures("patient")
def test_sent_at_once_from_many_tabs_a_form_still_makes_one_key(fixtures: Any) -> None:
    app = fixtures.app()
    abe = fixtures.browser("abe", "admin", app, proved=True)
    form = {"key_id": form_id(abe.get("/ops/keys")), "label": "one", "scopes": SCOPES}
    tabs = [fixtures.at_page(abe.email, app, proved=True) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda tab: tab.submit("/ops/keys", **form), tabs))
    assert sorted(one.status_code for one in answers) == [201, 409, 409, 409]
    (old,) = fixtures.sql("select key_id from sentinel.agent_keys")[0]
    rotate = {"key_id": form_id(abe.get("/ops/keys")), "overlap_hours": "1"}
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda tab: tab.submit(f"/ops/keys/{old}/rotate", **rotate), tabs))
    assert sorted(one.status_code for one in answers) == [201, 409, 409, 409]
    assert fixtures.sql("select count(*), count(distinct principal_id) from sentinel.agent_keys") == [(2, 1)]


def test_a_key_is_rotated_and_revoked_with_proof(fixtures: Any) -> None:
    app, caller = fixtures.app(), fixtures.caller()
    abe = fixtures.browser("abe", "admin", app)
    page = abe.get(f"/ops/keys/{caller.key_id}/rotate")
    path = f"/ops/keys/{caller.key_id}"
    form = {"key_id": form_id(page), "overlap_hours": "2"}
    assert abe.submit(f"{path}/rotate", **form).status_code == 400
    assert abe.submit(f"{path}/revoke").status_code == 400
    assert abe.submit(f"{path}/rotate", **{**form, "overlap_hours": "-1"}, proof=PASSWORD).status_code == 400
    made = abe.submit(f"{path}/rotate", **form)
    row = find_key(fixtures.pool, secret_hash(key_in(made)))
    assert row is not None and row.principal_id == caller.principal_id
    assert "still works during the overlap" in words(made)
    assert abe.submit(f"{path}/rotate", **form).status_code == 409
    assert abe.submit(f"{path}/revoke").status_code == 303
    assert "refused within a second, by an MCP proxy within two" in words(abe.get("/ops/keys"))
    again = abe.submit(f"{path}/revoke")
    assert again.status_code == 409 and "was revoked before" in words(again)
    assert abe.submit(f"{path}/rotate", **{**form, "key_id": form_id(again)}).status_code == 409
    assert fixtures.sql("select count(*) from sentinel.agent_keys where revoked_at is null") == [(1,)]
    other = fixtures.at_page(fixtures.operator("oda", "admin", fixtures.tenant("elsewhere")).email, app, proved=True)
    assert other.submit(f"/ops/keys/{row.key_id}/revoke").status_code == 404, "another tenant's is not there"


def key_events(fixtures: Any) -> list[tuple[str, dict[str, Any]]]:
    """(kind, body) of what the log says about keys, in order."""
    rows = fixtures.sql("select kind, body from sentinel.events where kind like 'key%' order by occurred_at")
    return [(kind, json.loads(body)) for kind, body in rows]


def test_what_is_done_with_a_key_is_one_event_without_the_key_and_not_public(fixtures: Any) -> None:
    app = fixtures.app()
    abe = fixtures.browser("abe", "admin", app, proved=True)
    form = {"key_id": form_id(abe.get("/ops/keys")), "label": "one", "scopes": SCOPES, "agent_id": "an-agent"}
    key = key_in(abe.submit("/ops/keys", **form))
    turn = {"key_id": form_id(abe.get("/ops/keys")), "overlap_hours": "1"}
    path, new_path = f"/ops/keys/{form['key_id']}", f"/ops/keys/{turn['key_id']}"
    new_key = key_in(abe.submit(f"{path}/rotate", **turn))
    assert abe.submit(f"{new_path}/revoke").status_code == 303
    for again in (("/ops/keys", form), (f"{path}/rotate", {**turn, "overlap_hours": "0"}), (f"{new_path}/revoke", {})):
        assert abe.submit(again[0], **again[1]).status_code == 409
    assert fixtures.sql("select count(*) from sentinel.agent_keys where expires_at > clock_timestamp()") == [(1,)]
    events = key_events(fixtures)
    assert [kind for kind, _ in events] == ["key_created", "key_rotated", "key_revoked"]
    for _, body in events:
        assert (body["by"], body["agent_id"], body["scopes"]) == ("abe@demo.local", "an-agent", SCOPES)
    assert [body["key_id"] for _, body in events] == [form["key_id"], turn["key_id"], turn["key_id"]]
    assert events[1][1]["old_key_id"] == form["key_id"] and events[1][1]["old_expires_at"]
    for secret in (key, new_key):
        assert secret[:14] not in str(events) and secret_hash(secret).hex() not in str(events)
    page = abe.get("/ops/events?kind=key_rotated")
    assert "key rotated" in words(page) and turn["key_id"] in page.get_data(as_text=True)
    assert "key created" in words(abe.get("/ops/events?agent=an-agent"))
    fixtures.publish()
    public = app.test_client()
    assert "an-agent" not in public.get("/ops/api/live/feed").get_data(as_text=True)
    assert fixtures.sql("select count(*) from sentinel.public_proofs") == [(0,)]
    # On the machine itself, in nobody's name.
    made = issue_key(fixtures.pool, fixtures.tenant_id, agent_id=None)
    revoke_key(fixtures.pool, fixtures.tenant_id, made.key_id)
    assert [body["by"] for _, body in key_events(fixtures)[3:]] == ["local administrator"] * 2


def test_a_key_is_not_changed_where_the_log_cannot_be_written(fixtures: Any) -> None:
    old = issue_key(fixtures.pool, fixtures.tenant_id, agent_id=None)
    before = fixtures.sql("select k::text from sentinel.agent_keys k")
    fixtures.sql("alter table sentinel.event_rows add constraint full_log check (kind not like 'key%') not valid")
    for act in (
        lambda: issue_key(fixtures.pool, fixtures.tenant_id, agent_id=None),
        lambda: rotate_key(fixtures.pool, fixtures.tenant_id, old.key_id),
        lambda: revoke_key(fixtures.pool, fixtures.tenant_id, old.key_id),
    ):
        with pytest.raises((SentinelError, psycopg.Error)):
            act()
    assert fixtures.sql("select k::text from sentinel.agent_keys k") == before
    # The mutant: the same acts where the log can be written.
    fixtures.sql("alter table sentinel.event_rows drop constraint full_log")
    rotate_key(fixtures.pool, fixtures.tenant_id, old.key_id)
    revoke_key(fixtures.pool, fixtures.tenant_id, old.key_id)
    assert fixtures.sql("select k::text from sentinel.agent_keys k") != before


def test_the_page_says_when_a_key_was_last_used(fixtures: Any) -> None:
    caller, app = fixtures.caller(), fixtures.app()
    abe = fixtures.browser("abe", "admin", app)
    assert "not yet" in words(abe.get("/ops/keys"))
    fixtures.authority.key_uses.note(caller.tenant_id, caller.key_id)
    assert fixtures.authority.key_uses.write(fixtures.authority.pool) == 1
    (used,) = fixtures.sql(
        "select to_char(last_used_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS') from sentinel.agent_keys"
    )[0]
    page = words(abe.get("/ops/keys"))
    assert f"{used} UTC" in page and "not yet" not in page


def test_of_many_keys_the_newest_are_drawn_and_a_search_finds_the_others(fixtures: Any) -> None:
    made = [issue_key(fixtures.pool, fixtures.tenant_id, agent_id=f"agent-{n}", label=f"Till {n}") for n in range(60)]
    for one in made[40:]:
        revoke_key(fixtures.pool, fixtures.tenant_id, one.key_id)
    abe = fixtures.browser("abe", "admin", fixtures.app())
    assert "Search" not in words(abe.get("/ops/keys")), "all 40 and 20 are on the page"
    made += [issue_key(fixtures.pool, fixtures.tenant_id, agent_id=None, label="many") for _ in range(20)]
    page = abe.get("/ops/keys")
    assert page.get_data(as_text=True).count("Rotate or revoke") == 50 and "Only the newest 50" in words(page)
    assert "Till 9 " not in words(page) and "Till 10 " in words(page)
    for sought, found in (("till 9", "Till 9 "), ("AGENT-3", "Till 30 "), (made[0].key[:14], "Till 0 ")):
        assert found in words(abe.get("/ops/keys", query_string={"q": sought})), sought
    about = words(abe.get(f"/ops/keys/{made[0].key_id}/rotate"))
    assert "Till 0 " in about and "Till 9 " not in about, "the one the page is about is always on it"
    nothing = words(abe.get("/ops/keys?q=nowhere"))
    assert "No key in use matches" in nothing and "Till" not in nothing


def test_who_revokes_one_key_of_a_search_sees_the_others_of_it(fixtures: Any) -> None:
    """The finding: after each of an agent's keys the search was gone, and the next one had to be sought again."""
    for agent in ("robbed", "robbed", "another"):
        issue_key(fixtures.pool, fixtures.tenant_id, agent_id=agent, label=f"of {agent}")
    abe = fixtures.browser("abe", "admin", fixtures.app())
    lists = re.compile(r'action="(/ops/keys/[^"]+/(?:revoke|rotate)[^"]*)#refused"')
    acts = lists.findall(abe.get("/ops/keys?q=of+robbed").text)
    assert len(acts) == 4 and all(one.endswith("?q=of+robbed") for one in acts)
    refused = abe.submit(acts[1])
    assert refused.status_code == 400 and lists.findall(refused.text) == acts, "a proof is missing"
    done = abe.submit(acts[1], proof=PASSWORD)
    assert (done.status_code, done.headers["Location"]) == (303, "/ops/keys?q=of+robbed")
    assert lists.findall(abe.get(done.headers["Location"]).text) == acts[2:]


@pytest.mark.parametrize("sought", ["", "TILL 1", "agent-7", "münze", "nowhere"])
def test_the_page_reads_no_more_keys_than_it_draws(fixtures: Any, sought: str) -> None:
    """The finding: it read all that the tenant ever had, which took a second with 22,000."""
    made = [
        issue_key(fixtures.pool, fixtures.tenant_id, agent_id=f"agent-{n}", label=f"Till {n} MÜNZE") for n in range(20)
    ]
    for one in made[::3]:
        revoke_key(fixtures.pool, fixtures.tenant_id, one.key_id)
    issue_key(fixtures.pool, fixtures.tenant("elsewhere"), agent_id="agent-7", label="Till 1 MÜNZE")
    known, most = list_keys(fixtures.pool, fixtures.tenant_id)[::-1], 4
    fits = [one for one in known if sought.casefold() in f"{one.label} {one.agent_id} {one.hint}".casefold()]
    newest = [*[one for one in fits if one.usable][:most], *[one for one in fits if not one.usable][:most]]
    for about in (None, made[1].key_id):
        found = newest_keys(fixtures.pool, fixtures.tenant_id, sought=sought, about=about, most=most)
        assert found == [one for one in known if one in newest or one.key_id == about]


def test_the_successor_of_a_test_key_is_one_too(fixtures: Any) -> None:
    """The finding: it began with snt_live_, also where a second administrator had to agree."""
    old = issue_key(fixtures.pool, fixtures.tenant_id, agent_id=None, test=True)
    new = rotate_key(fixtures.pool, fixtures.tenant_id, old.key_id)
    assert (old.key[:9], new.key[:9]) == ("snt_test_", "snt_test_")
    live = issue_key(fixtures.pool, fixtures.tenant_id, agent_id=None)
    assert rotate_key(fixtures.pool, fixtures.tenant_id, live.key_id).key.startswith("snt_live_")
