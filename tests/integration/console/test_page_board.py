"""The public board's pages: plain, kept a moment, and a proof that can be checked by hand."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any

import pytest

from ops_console.board import reader
from ops_console.board.events import policy_label
from ops_console.board.stream import PATH
from sentinel.core.canonical import canonical_json
from sentinel.core.proof import is_intact, pack_hash
from tests.support.feeds import public_form
from tests.support.streaming import Loop

PAGES = ("/live", "/live/figures", "/live/widget", "/live/widget/figures", "/verify/")


def test_the_board_is_a_plain_page_that_tells_everything_without_a_script(fixtures: Any) -> None:
    recorded = [fixtures.guard(value) for value in ("10.00", "200.00", "2000.00")]
    fixtures.publish()
    client = fixtures.app().test_client()
    page = client.get("/live").get_data(as_text=True)
    for text in ("Live decisions", "The last hour", "The last day", "3 decisions", "Allowed", "A person decides", "Denied",
                 "What is hidden, and why", "Retail Refund Policy v1", "public-demo", "within_policy_limit", "10.00 USD",
                 '<noscript><meta http-equiv="refresh"', "/live/widget&quot;"):  # fmt: skip
        assert text in page, text
    for one in recorded:
        assert f'href="/verify/{json.loads(one.pack)["proof_id"]}"' in page
    assert re.findall(r"<script(?![^>]*\bsrc=)|\sstyle=|\son[a-z]+=|javascript:", page) == []
    assert re.findall(r'(?:src|href)="(?:https?:)?//', page) == []


def test_of_an_agent_without_a_decision_the_board_says_no_more_than_it_looked_through(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(6):
        fixtures.guard("10.00")
    fixtures.publish()

    def description() -> str:
        """What a board that has just begun says of an agent with a name."""
        page = fixtures.app(public_agents="quiet-agent=quiet:others").test_client().get("/live").get_data(as_text=True)
        (found,) = re.findall(r"<h3>quiet .*?</h3>\s*<p class=\"empty\">(.*?)</p>", page)
        return str(found)

    assert description() == "No decision yet."
    monkeypatch.setattr(reader, "MOST_LOOKED", 2)
    monkeypatch.setattr(reader, "STEP", 1)
    assert description() == "None found so far, still searching …"
    monkeypatch.setattr(reader, "DAY", timedelta(0))
    assert description() == "No decision in the last day."


def test_pages_parts_and_the_stream_name_the_tenant_whose_decisions_they_have(fixtures: Any) -> None:
    fixtures.tenant("other")
    for label in ("public-demo", "other"):
        app = fixtures.app(public_tenant=label)
        client = app.test_client()
        for path in ("/live", "/live/widget"):
            page, part = client.get(path).get_data(as_text=True), client.get(f"{path}/figures").get_data(as_text=True)
            named = [re.findall(r'data-tenant="([^"]*)"', one) for one in (page, part)]
            assert named == [[label, label], [label]], path
        with Loop() as loop, loop.view(app.edge.streams(PATH)) as viewer:
            assert viewer.block().startswith(": connected")
            assert viewer.block() == f'event: tenant\ndata: "{label}"\n\n'


def test_a_page_during_which_the_public_tenant_changes_is_all_of_the_new_one(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixtures.tenant("other")
    fixtures.guard("10.00")
    fixtures.publish()
    app = fixtures.app(public_tenant="public-demo")
    halts, now = reader.feed.halts, {"label": "public-demo"}
    rows = fixtures.sql("select label, tenant_id from sentinel.tenants")
    tenants = {label: (tenant_id, label) for label, tenant_id in rows}

    def changing(*asked: Any) -> Any:
        now["label"] = "other"
        return halts(*asked)

    monkeypatch.setattr(reader.Board, "tenant", lambda board: tenants[now["label"]])
    monkeypatch.setattr(reader.feed, "halts", changing)
    page = app.test_client().get("/live").get_data(as_text=True)
    assert set(re.findall(r'data-tenant="([^"]*)"', page)) == {"other"}
    assert 'data-position="0"' in page, "the other one decided nothing"


def test_every_public_page_may_be_kept_a_moment_and_is_asked_again_by_its_tag(fixtures: Any) -> None:
    proof = json.loads(fixtures.guard("10.00").pack)["proof_id"]
    fixtures.publish()
    client = fixtures.app().test_client()
    for path in (*PAGES, f"/verify/{proof}", f"/verify/{proof}.json"):
        answer, head = client.get(path), client.head(path)
        assert answer.status_code == head.status_code == 200, path
        assert answer.headers["Cache-Control"].startswith("public, max-age="), path
        assert head.data == b""
        assert {"Set-Cookie"} & set(answer.headers.keys()) == set()
    for path in (f"/verify/{proof}", f"/verify/{proof}.json", "/verify/"):
        again = client.get(path, headers={"If-None-Match": client.get(path).headers["ETag"]})
        assert (again.status_code, again.data) == (304, b""), path


def test_only_the_widget_may_stand_in_a_frame_and_it_sets_no_cookie(fixtures: Any) -> None:
    fixtures.guard("10.00")
    fixtures.publish()
    client = fixtures.app().test_client()
    widget = client.get("/live/widget")
    assert "frame-ancestors *" in widget.headers["Content-Security-Policy"]
    assert "X-Frame-Options" not in widget.headers
    assert "Set-Cookie" not in widget.headers
    assert len(widget.data) < 10_000
    for path in (
        "/live",
        "/live/figures",
        "/live/widget/figures",
        "/verify/",
        "/verify/pf_nothing",
        "/ops/sign-in",
        "/live/widget/x",
        "/nothing",
    ):
        headers = client.get(path).headers
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"], path
        assert headers["X-Frame-Options"] == "DENY", path
    assert client.post("/live/widget").headers["X-Frame-Options"] == "DENY"


def test_a_proof_has_a_page_with_its_bytes_and_how_to_check_it_by_hand(fixtures: Any) -> None:
    recorded = fixtures.guard("10.00")
    pack = public_form(fixtures, recorded)
    client = fixtures.app(board_origin="https://board.example").test_client()
    page = client.get(f"/verify/{pack['proof_id']}").get_data(as_text=True)
    body = canonical_json({name: value for name, value in pack.items() if name != "hash"})
    assert body.replace('"', "&#34;") in page
    assert pack["hash"] in page
    assert f"curl -s https://board.example/verify/{pack['proof_id']}.json | jq -cSj" in page
    assert client.get(f"/verify/{pack['proof_id']}.json").json == pack
    for wrong in ("pf_nothing", "pf_" + "0" * 32, "<script>", "%00", "x.json.json"):
        answer = client.get(f"/verify/{wrong}")
        assert answer.status_code == 404, wrong
        assert "<script>" not in answer.get_data(as_text=True)


def test_a_proof_of_which_anything_was_changed_fails(fixtures: Any) -> None:
    recorded = fixtures.guard("10.00")
    pack = {**json.loads(recorded.pack), "hash": recorded.pack_hash}
    assert is_intact(pack)
    for name in pack.keys() - {"hash", "proof_id"}:
        changed = {**pack, name: {"value": 11, "currency": "USD"} if name == "amount" else "x"}
        assert not is_intact(changed), name
        assert not is_intact({key: value for key, value in pack.items() if key != name}), name
    # Mutant: a hash made anew fits again; that is why the page compares with what is on record.
    forged = {**pack, "decision": "DENY"}
    assert is_intact({**forged, "hash": pack_hash(forged)})


def test_a_policy_label_that_is_none_is_not_shown() -> None:
    assert policy_label(None) == ""
    assert policy_label("Refunds v2") == "Refunds v2"
    assert policy_label("<b>ann@shop.example\u202e") == ""
