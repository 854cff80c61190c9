"""The page of keys: an administrator's, with proof; a form makes one key, and the key is shown in that one answer only."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sentinel.store.agent_keys import find_key, key_hash
from tests.integration.console.conftest import PASSWORD
from tests.integration.console.test_page_policies import EVIL, words

SCOPES = ["guard", "heartbeat"]


def form_id(answer: Any) -> str:
    return str(re.findall(r'name="key_id" value="([^"]*)"', answer.get_data(as_text=True))[0])


def key_in(answer: Any) -> str:
    (found,) = re.findall(r">(snt_(?:live|test)_\w+)</code>", answer.get_data(as_text=True))
    return str(found)


def test_a_form_makes_one_key_however_often_it_is_sent_and_shows_it_once(world: Any) -> None:
    app = world.app()
    assert [
        world.browser(*who, app).get("/ops/keys").status_code for who in (("vic", "viewer"), ("ann", "approver"))
    ] == [403, 403]
    abe = world.browser("abe", "admin", app)
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
    assert world.sql("select count(*) from sentinel.agent_keys") == [(0,)]
    made = abe.submit("/ops/keys", **form)
    assert (made.status_code, made.headers["Cache-Control"]) == (201, "no-store")
    key = key_in(made)
    row = find_key(world.pool, key_hash(key))
    assert row is not None and (row.agent_id, sorted(row.scopes), row.usable) == ("retail-refund-agent", SCOPES, True)
    assert row.owner_operator_id is not None and key.startswith("snt_test_")
    again = abe.submit("/ops/keys", **form)
    assert again.status_code == 409 and "was shown then, and only then" in words(again)
    assert key not in again.get_data(as_text=True) and key not in abe.get("/ops/keys").get_data(as_text=True)
    assert "<img src=x" not in abe.get("/ops/keys").get_data(as_text=True)
    assert world.sql("select count(*) from sentinel.agent_keys") == [(1,)]


def test_sent_at_once_from_many_tabs_a_form_still_makes_one_key(world: Any) -> None:
    app = world.app()
    abe = world.browser("abe", "admin", app, proved=True)
    form = {"key_id": form_id(abe.get("/ops/keys")), "label": "one", "scopes": SCOPES}
    tabs = [world.at_page(abe.email, app, proved=True) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda tab: tab.submit("/ops/keys", **form), tabs))
    assert sorted(one.status_code for one in answers) == [201, 409, 409, 409]
    (old,) = world.sql("select key_id from sentinel.agent_keys")[0]
    rotate = {"key_id": form_id(abe.get("/ops/keys")), "overlap_hours": "1"}
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda tab: tab.submit(f"/ops/keys/{old}/rotate", **rotate), tabs))
    assert sorted(one.status_code for one in answers) == [201, 409, 409, 409]
    assert world.sql("select count(*), count(distinct principal_id) from sentinel.agent_keys") == [(2, 1)]


def test_a_key_is_rotated_and_revoked_with_proof(world: Any) -> None:
    app, caller = world.app(), world.caller()
    abe = world.browser("abe", "admin", app)
    page = abe.get(f"/ops/keys/{caller.key_id}/rotate")
    path = f"/ops/keys/{caller.key_id}"
    form = {"key_id": form_id(page), "overlap_hours": "2"}
    assert abe.submit(f"{path}/rotate", **form).status_code == 400
    assert abe.submit(f"{path}/revoke").status_code == 400
    assert abe.submit(f"{path}/rotate", **{**form, "overlap_hours": "-1"}, proof=PASSWORD).status_code == 400
    made = abe.submit(f"{path}/rotate", **form)
    row = find_key(world.pool, key_hash(key_in(made)))
    assert row is not None and row.principal_id == caller.principal_id
    assert "still works for the overlap" in words(made)
    assert abe.submit(f"{path}/rotate", **form).status_code == 409
    assert abe.submit(f"{path}/revoke").status_code == 303
    again = abe.submit(f"{path}/revoke")
    assert again.status_code == 409 and "was revoked before" in words(again)
    assert abe.submit(f"{path}/rotate", **{**form, "key_id": form_id(again)}).status_code == 409
    assert world.sql("select count(*) from sentinel.agent_keys where revoked_at is null") == [(1,)]
    other = world.at_page(world.operator("oda", "admin", world.tenant("elsewhere")).email, app, proved=True)
    assert other.submit(f"/ops/keys/{row.key_id}/revoke").status_code == 404, "another tenant's is not there"
