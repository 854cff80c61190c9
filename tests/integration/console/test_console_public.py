"""The public board: exactly the promised fields and nothing else, halts within seconds, proofs and headers."""

from __future__ import annotations

import json
import re
import time
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from ops_console import meta
from ops_console.audience import Audience
from ops_console.headers import HEADERS
from sentinel.authority.actor import local_administrator
from sentinel.authority.halts import lift_halt, set_halt
from sentinel.core.proof import is_intact, pack_hash
from tests.integration.console.test_public_leaks import STATIC
from tests.support.busy import long_enough
from tests.support.feeds import public_form
from tests.support.kept_answers import require_kept_answers

FIELDS = {
    "schema", "event_id", "occurred_at", "agent_label", "source", "action", "decision", "amount", "reason_code",
    "proof_status", "redaction_status", "latency_ms", "ledger_entry_id", "refund_id", "proof_id",
}  # fmt: skip


def test_a_live_event_has_exactly_the_promised_fields(fixtures: Any) -> None:
    recorded = fixtures.guard("126.00")
    fixtures.publish()
    events = fixtures.app().test_client().get("/ops/api/live/feed").json["events"]
    assert [event.keys() for event in events] == [FIELDS]
    event, pack = events[0], json.loads(recorded.pack)
    assert event["schema"] == "haltstate.live.event.v1"
    assert (event["event_id"], event["proof_id"]) == (str(recorded.decision_event_id), pack["proof_id"])
    assert (event["agent_label"], event["source"], event["action"]) == (
        "retail-refund-agent",
        "refunds",
        "refund.create",
    )
    assert event["amount"] == {"value": 126, "currency": "USD"}
    assert (event["decision"], event["reason_code"]) == ("ALLOW", "within_policy_limit")
    assert (event["proof_status"], event["redaction_status"]) == ("hash-only proof", "customer data hidden")


def test_the_feed_is_newest_first_and_bounded(fixtures: Any) -> None:
    made = [str(fixtures.guard("10.00").decision_event_id) for _ in range(5)]
    fixtures.publish()
    client = fixtures.app().test_client()
    assert [event["event_id"] for event in client.get("/ops/api/live/feed?limit=3").json["events"]] == made[:1:-1]
    for bad in ("0", "101", "-1", "x", "1.5", "", "１"):
        assert client.get(f"/ops/api/live/feed?limit={bad}").status_code == 400


def test_the_status_names_the_tenant_and_one_object_per_public_agent(fixtures: Any) -> None:
    app = fixtures.app()
    idle = {"status": "idle", "last_action": None, "last_decision": None}
    assert app.test_client().get("/ops/api/live/status").json == {"tenant": "public-demo", "refund": idle}
    fixtures.guard("2000.00")
    fixtures.publish()
    seen = fixtures.app().test_client().get("/ops/api/live/status").json
    assert seen["refund"] == {"status": "active", "last_action": "refund.create", "last_decision": "DENY"}


HALTS = [
    ("global", None, "halted"), ("tenant", None, "halted"), ("agent", "retail-refund-agent", "halted"),
    ("agent", "another-agent", "active"), ("action", "refund.create", "degraded"), ("scenario", "fee", "degraded"),
]  # fmt: skip


@pytest.mark.parametrize(("scope", "target", "wanted"), HALTS)
def test_the_board_never_says_active_while_a_halt_covers_the_agent(
    fixtures: Any, scope: str, target: str | None, wanted: str
) -> None:
    fixtures.guard("10.00")
    fixtures.publish()
    client, longest = fixtures.app().test_client(), 0.0

    def seconds_until_shown(status: str) -> float:
        """Seconds until every public face says it; fails after two of a machine of its own."""
        began = time.monotonic()
        while True:
            said = client.get("/ops/api/live/status").json["refund"]["status"]
            pages = [
                client.get(path).text for path in ("/live", "/live/figures", "/live/widget", "/live/widget/figures")
            ]
            if said == status and all(f'data-agent="refund">{status}<' in page for page in pages):
                return time.monotonic() - began
            assert time.monotonic() - began < long_enough(2), (said, status)
            time.sleep(0.05)

    seconds_until_shown("active")
    for _ in range(3):
        by = local_administrator(fixtures.tenant_id)
        done = set_halt(fixtures.pool, by, scope=scope, target=target or "", reason="drill")
        longest = max(longest, seconds_until_shown(wanted))
        lift_halt(fixtures.pool, by, done.halt_id, reason="over")
        longest = max(longest, seconds_until_shown("active"))
    print(f"N=6 flips, longest {longest:.2f} s")


def test_an_agent_that_is_not_named_is_not_shown(fixtures: Any) -> None:
    fixtures.guard("10.00")
    fixtures.publish()
    client = fixtures.app(public_agents="another-agent=other:others").test_client()
    assert client.get("/ops/api/live/feed").json == {"events": []}
    assert client.get("/ops/api/live/status").json.keys() == {"tenant", "other"}


def test_a_pack_of_an_agent_that_the_board_does_not_show_is_not_served(fixtures: Any) -> None:
    recorded = fixtures.guard("10.00")
    fixtures.publish()
    name = json.loads(recorded.pack)["proof_id"]
    for agents, status in (("another-agent=other:others", 404), ("another-agent=other:others,*", 200)):
        client = fixtures.app(public_agents=agents).test_client()
        assert [client.get(f"/verify/{name}{end}").status_code for end in (".json", "")] == [status, status], agents


def test_anyone_may_read_and_caches_may_help_for_a_moment(fixtures: Any) -> None:
    fixtures.guard("10.00")
    fixtures.publish()
    client = fixtures.app().test_client()
    for path in ("/ops/api/live/status", "/ops/api/live/feed"):
        answer = client.get(path, headers={"Origin": "https://elsewhere.example"})
        assert answer.headers["Access-Control-Allow-Origin"] == "*"
        assert answer.headers["Cache-Control"] == "public, max-age=1"
        again = client.get(path, headers={"If-None-Match": answer.headers["ETag"]})
        assert (again.status_code, again.data) == (304, b"")


def test_a_proof_pack_can_be_fetched_by_name_and_its_hash_recomputed(fixtures: Any) -> None:
    recorded = fixtures.guard("10.00")
    client, name = fixtures.app().test_client(), json.loads(recorded.pack)["proof_id"]
    pack = client.get(f"/verify/{name}.json").json
    assert pack == public_form(fixtures, recorded)
    assert pack["hash"] != recorded.pack_hash, "with it anybody could try out what a public id stands for"
    assert is_intact(pack)
    assert pack_hash({**pack, "decision": "DENY"}) != pack["hash"]
    for wrong in ("pf_", "pf_" + "0" * 32, name.upper(), name + "0", "%00"):
        assert client.get(f"/verify/{wrong}.json").status_code == 404


def test_every_answer_carries_the_browser_headers(fixtures: Any) -> None:
    client = fixtures.app().test_client()
    for path in (*STATIC, "/ops/api/approvals", "/ops/nothing"):
        headers = client.get(path).headers
        for name, value in HEADERS.items():
            assert headers[name] == value or name in ("Cross-Origin-Resource-Policy", "Content-Security-Policy")
        assert headers["Content-Security-Policy"].startswith("default-src 'none'; ")
        assert headers["Content-Security-Policy"].endswith("frame-ancestors 'none'")
        assert headers["X-Request-ID"]


def test_health_tells_the_truth_when_the_database_is_away(fixtures: Any) -> None:
    client = fixtures.app(database_url="postgresql://nobody@127.0.0.1:1/nothing").test_client()
    assert client.get("/healthz").status_code == 200
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert not any(answer.json["checks"].values())
    assert client.get("/ops/api/live/feed").status_code == 503
    assert client.get("/ops/api/approvals").status_code == 401


@pytest.mark.parametrize("audience", Audience)
def test_what_a_console_says_of_itself_costs_no_more_however_often_it_is_asked(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch, audience: Audience
) -> None:
    require_kept_answers(fixtures.app(audience).test_client(), monkeypatch, meta, logins=2)


ODD_PATHS = ("/confirm/a%0ab", "/confirm/a%0d%0aSet-Cookie:x=1", "/live/%0a", "/verify/%0d", "/verify/a%2fb%3fc")


def test_whatever_is_in_a_public_path_stays_within_it_where_the_operators_listener_redirects(fixtures: Any) -> None:
    operators = fixtures.app(Audience.OPERATORS, board_origin="http://public.example").test_client()
    for path in ODD_PATHS:
        answer = operators.get(path + "?x=%0a&y=1")
        assert answer.status_code == 307, (path, answer.text)
        to = urlsplit(answer.headers["Location"])
        assert (to.scheme, to.netloc, to.query) == ("http", "public.example", "x=%0a&y=1")
        assert unquote(to.path) == unquote(path) and "Set-Cookie" not in answer.headers
    public = fixtures.app(Audience.PUBLIC).test_client()
    assert {public.get(path).status_code for path in ODD_PATHS} <= {303, 404}


def test_only_the_content_that_an_address_names_is_kept_for_ever(fixtures: Any) -> None:
    app = fixtures.app()
    client = app.test_client()
    page = client.get("/ops/sign-in").get_data(as_text=True)
    (named,) = re.findall(r"/static/console.css\?v=[0-9a-f]{16}", page)
    first = client.get(named)
    assert first.headers["Cache-Control"] == "public, max-age=31536000, immutable"
    again = client.get(named, headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.headers["Cache-Control"]) == (304, first.headers["Cache-Control"])
    other = [
        named[:-16] + "0" * 16,
        named + "0",
        "/static/console.css?v=",
        "/static/console.css",
        "/static/nothing.css?v=" + named[-16:],
    ]
    for address in other:
        answer = client.get(address)
        kept = answer.headers["Cache-Control"]
        assert "immutable" not in kept and "max-age" not in kept, (address, kept)
        assert answer.status_code == (404 if "nothing" in address else 200)
