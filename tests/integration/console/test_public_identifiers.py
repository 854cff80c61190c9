"""Whatever an agent calls things: no public byte repeats it, operators find what a public id stands for, and proofs hold."""

from __future__ import annotations

import itertools
import json
import re
import threading
import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
from click.testing import CliRunner

from ops_console.identity import needs_operator
from sentinel.authority import public_ids
from sentinel.authority.engine import Caller
from sentinel.authority.keys import WORKER_SCOPES, find_key_by_id, issue_key
from sentinel.authority.policy_inspector import PolicyInspector
from sentinel.authority.public_ids import index_public_ids, load_public_id_generators
from sentinel.cli import proof as proof_commands
from sentinel.cli import public_ids as public_id_commands
from sentinel.core.canonical import canonical_json, sha256_hex
from sentinel.core.errors import InvalidInput
from sentinel.core.operation import build_operation
from sentinel.core.proof import is_intact, pack_hash
from sentinel.core.public_ids import Kind, PublicIdGenerator, is_public_id
from sentinel.core.publication import EVENT_FIELDS, PACK_FIELDS, DecisionRecord, Publisher
from sentinel.platform.resources import policies_dir
from sentinel.store.ids import new_id, proof_id_of
from tests.integration.console.test_public_leaks import found_in
from tests.support.asgi_client import InProcessApp
from tests.support.feeds import minted
from tests.support.streaming import Loop
from tests.support.verbs import guarded

WRITTEN = {
    "mail": "jane.doe@mail.example", "card": "4111111111111111", "name": "Zebulon-Quagmire", "phone": "0044-7700-900461",
    "iban": "DE89370400440532013000", "address": "17:Nonesuch-Lane/London", "minted": "prf_aaaaaaaaaaaaaaaa",
}  # fmt: skip
"""What somebody could put where an identifier belongs; the last one looks like ours."""
MARKUP = "<script>alert('zebulon')</script>"
OTHER_SECRET = "another-secret-for-tests-0123456789"


def caller(fixtures: Any, agent_id: str | None = None) -> Caller:
    """Who asks with a key of its own, bound to an agent or to none."""
    issued = issue_key(fixtures.pool, fixtures.tenant_id, agent_id=agent_id, scopes=WORKER_SCOPES)
    row = find_key_by_id(fixtures.pool, fixtures.tenant_id, issued.key_id)
    assert row is not None
    return Caller(row.tenant_id, row.key_id, row.principal_id, row.agent_id, frozenset(row.scopes), None)


def ask(fixtures: Any, who: Caller | None = None, *, amount: str = "10.00", **over: Any) -> Any:
    """A decision on a refund; `over` replaces whatever an agent chooses."""
    mark = new_id().hex
    params = {
        "amount": {"value": amount, "currency": "USD"}, "ledger_entry_id": f"lge_{mark}", "refund_id": f"rf_{mark}",
        "account_ref": f"acct_{mark}", **over.pop("params", {}),
        "risk": {"duplicate_refund": False, "stale_window": False, "suspicious_reason": False, "customer_attempts_24h": 1},
    }  # fmt: skip
    fields = {"idempotency_key": mark, "agent_id": "retail-refund-agent", "action": "refund.create", **over}
    start_id = fields.pop("start_id", None)
    operation = build_operation(params=params, **fields)
    return guarded(fixtures.authority, who or caller(fixtures), operation, start_id=start_id)


def hostile_decisions(fixtures: Any) -> int:
    """Each of `WRITTEN` and markup wherever an agent may choose: as a request, and where that is refused as a recorded pack."""
    made = 0
    for text in WRITTEN.values():
        params = dict.fromkeys(("ledger_entry_id", "refund_id", "order_id", "order_ref", "account_ref", "account_id", "order_key", "source", "channel", "scenario", "note", "prompt"), text)  # fmt: skip
        for over in (
            {"params": params, "resource": f"refund/{text}", "risk_class": text, "idempotency_key": f"refund:{text}"},
            {"agent_id": text}, {"agent_id": text, "action": f"data.{text}"}, {"action": text},
            {"start_id": uuid.UUID(hex="41111111111111114111111111111111")},
            {"agent_id": "retail-refund-agent", "evidence": {"correlation_id": text}},
        ):  # fmt: skip
            ask(fixtures, **over)
            made += 1
    ask(fixtures, params={"note": MARKUP})
    with pytest.raises(InvalidInput):
        ask(fixtures, params={"refund_id": MARKUP})
    for text in (*WRITTEN.values(), MARKUP):
        # What a policy is called its author says, whom nobody asks from outside.
        for name in set(PACK_FIELDS) - {"hash", "proof_id", "policy_label", "policy_version"}:
            if (name, text) != ("reason_code", WRITTEN["minted"]):  # which is a reason code by its form
                record_pack(fixtures, text, {name: text})
                made += 1
    fixtures.publish()
    return made


def record_pack(fixtures: Any, agent_id: str, over: dict[str, Any]) -> str:
    """A pack in the record that no authority of today writes, as an older one could have; its proof's name."""
    event_id = new_id()
    pack = {
        "proof_id": proof_id_of(event_id), "agent_id": agent_id, "action": "refund.create", "decision": "ALLOW", "latency_ms": 1,
        "decided_at": "2026-01-01T00:00:00.000000Z", "reason_code": "within_policy_limit", "ledger_entry_id": agent_id, **over,
    }  # fmt: skip
    body = json.dumps(pack, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    fixtures.sql(
        "insert into sentinel.event_rows (tenant_id, event_id, kind, agent_id, body, hash, occurred_at)"
        " values (%s, %s, 'decision', %s, %s, sha256(convert_to(%s, 'UTF8')), clock_timestamp())",
        fixtures.tenant_id, event_id, agent_id, body, body,
    )  # fmt: skip
    return proof_id_of(event_id)


def public_addresses(app: InProcessApp, names: list[str]) -> Iterator[str]:
    """Every address that needs no operator, found among the routes that there are; `names` are proofs'."""
    for rule in app.flask.url_map.iter_rules():
        if "GET" not in (rule.methods or ()) or needs_operator(rule.rule, "GET") or rule.endpoint.endswith("static"):
            continue
        if rule.arguments == {"proof_id"}:
            yield from (rule.rule.replace("<proof_id>", name) for name in names)
        elif rule.arguments == {"token"}:
            yield "/confirm/" + "A" * 140
        else:
            assert not rule.arguments, f"say here what {rule.rule} is asked for"
            yield rule.rule


def public_bytes(app: InProcessApp) -> dict[str, str]:
    """What each public route answers, headers included, to GET and HEAD and to what it does not expect; the stream's events."""
    client, found = app.test_client(), {}
    feed = client.get("/ops/api/live/feed?limit=100").json["events"]
    for path in public_addresses(app, [event["proof_id"] for event in feed if "proof_id" in event]):
        if path.endswith("/stream"):
            with Loop() as loop, loop.view(app.edge.streams(path), HTTP_LAST_EVENT_ID="0") as viewer:
                found[path] = "".join(viewer.block() for _ in range(len(feed) + 2)) + repr(viewer.headers)
            continue
        answers = [client.get(path), client.get(f"{path}?limit=100&last_seen=0"), client.post(path, json={"a": 1})]
        found[path] = "".join(f"{answer.headers}{answer.get_data(as_text=True)}" for answer in answers)
    return found


def repeated(found: dict[str, str]) -> set[tuple[str, str]]:
    """(kind of text, kind of address) of all that an agent wrote and a public answer says, whatever its spelling."""
    return {
        (kind, path.partition("/pf_")[0] + (".json" if path.endswith(".json") else ""))
        for path, said in found.items()
        for kind, text in {**WRITTEN, "markup": MARKUP}.items()
        if found_in(said.lower(), [text, text.lower(), quote(text)]) or text.lower() in said.lower()
    }


def test_no_public_byte_repeats_what_an_agent_wrote(fixtures: Any) -> None:
    made = hostile_decisions(fixtures)
    total = 0
    for agents in ("*", "retail-refund-agent=refund:refunds,*", f"{WRITTEN['minted']}=named:refunds,*"):
        found = public_bytes(fixtures.app(public_agents=agents))
        assert {"/live", "/live/widget", "/live/figures", "/ops/api/live/feed", "/ops/api/live/status",
                "/ops/api/live/stream"} <= found.keys()  # fmt: skip
        assert repeated(found) == set()
        total += len(found)
    print(f"N={made} decisions with {len(WRITTEN) + 1} texts x {total} public answers")


def test_mutant_that_mints_nothing_is_found_on_every_face(fixtures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in WRITTEN.values():
        ask(fixtures, agent_id=text, params={"refund_id": text})
    fixtures.publish()
    monkeypatch.setattr(Publisher, "_mint", lambda _self, _kind, _tenant_id, value: value)
    found = repeated(public_bytes(fixtures.app(public_agents="*")))
    for face in ("/live", "/live/figures", "/live/widget", "/ops/api/live/feed", "/ops/api/live/status",
                 "/ops/api/live/stream", "/verify", "/verify.json"):  # fmt: skip
        assert {kind for kind, path in found if path == face} == set(WRITTEN), face


def test_mutant_of_a_public_route_that_forgets_to_publish_is_found(fixtures: Any) -> None:
    ask(fixtures, agent_id=WRITTEN["mail"])
    fixtures.publish()
    app = fixtures.app(public_agents="*")
    app.flask.add_url_rule("/live/raw", view_func=lambda: fixtures.sql("select body from sentinel.public_feed")[0][0])
    assert repeated(public_bytes(app)) == {("mail", "/live/raw")}


def test_an_agents_name_is_shown_only_where_a_key_bound_to_it_asked(fixtures: Any) -> None:
    for who in (caller(fixtures, "retail-refund-agent"), caller(fixtures)):
        ask(fixtures, who)
    ask(fixtures, caller(fixtures), agent_id="somebody")
    fixtures.publish()
    client = fixtures.app(public_agents="retail-refund-agent=refund:refunds,*").test_client()
    labels = [event["agent_label"] for event in client.get("/ops/api/live/feed").json["events"]]
    unbound = minted(fixtures, Kind.AGENT, "retail-refund-agent")
    assert labels == [minted(fixtures, Kind.AGENT, "somebody"), unbound, "retail-refund-agent"]
    assert client.get("/ops/api/live/status").json.keys() == {"tenant", "refund", labels[0]}
    packs = [client.get(f"/verify/{event['proof_id']}.json").json
             for event in client.get("/ops/api/live/feed").json["events"]]  # fmt: skip
    assert [pack["agent_id"] for pack in packs] == labels


def test_an_action_is_shown_as_its_policy_names_it(fixtures: Any) -> None:
    for action in ("refund.create", "data.read", "nobody.knows"):
        ask(fixtures, action=action)
    fixtures.publish()
    events = fixtures.app().test_client().get("/ops/api/live/feed").json["events"]
    assert [event["action"] for event in events] == [
        minted(fixtures, Kind.ACTION, "nobody.knows"),
        "data.*",
        "refund.create",
    ]


def test_a_public_id_is_always_the_same_and_no_other_tenants_or_secrets(fixtures: Any) -> None:
    for amount in ("10.00", "11.00"):
        ask(fixtures, amount=amount, params={"refund_id": f"rf_{amount}", "ledger_entry_id": "lge_same"})
    fixtures.publish()
    events = fixtures.app().test_client().get("/ops/api/live/feed").json["events"]
    assert len({event["ledger_entry_id"] for event in events}) == 1
    assert len({event["refund_id"] for event in events}) == 2
    assert all(is_public_id(event[name]) for event in events for name in ("ledger_entry_id", "refund_id"))
    one, other = PublicIdGenerator(OTHER_SECRET), PublicIdGenerator(OTHER_SECRET + "x")
    ids = {
        ids.mint(kind, tenant, "x")
        for ids in (one, other)
        for kind in Kind
        for tenant in (uuid.UUID(int=1), uuid.UUID(int=2))
    }
    assert len(ids) == 2 * len(Kind) * 2
    assert one.mint(Kind.REFUND, uuid.UUID(int=1), "x") == "prf_" + one.mint(Kind.REFUND, uuid.UUID(int=1), "x")[4:]


def test_a_guard_mints_nothing(fixtures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> str:
        raise AssertionError("a guard has no time for this")

    monkeypatch.setattr(PublicIdGenerator, "mint", refuse)
    recorded = ask(fixtures, params={"refund_id": "rf_plain"})
    assert json.loads(recorded.pack)["refund_id"] == "rf_plain", "who asked gets its own words back"
    assert fixtures.sql("select count(*) from sentinel.public_ids")[0] == (0,)


# Looking one up ------------------------------------------------------------------------------------------------------------


def shown(fixtures: Any, recorded: Any, **settings: Any) -> dict[str, Any]:
    """The live event of a decision."""
    events = fixtures.app(**settings).test_client().get("/ops/api/live/feed?limit=100").json["events"]
    found: dict[str, Any] = next(one for one in events if one["event_id"] == str(recorded.decision_event_id))
    return found


def test_operators_find_what_a_public_id_stands_for_and_nobody_else_does(fixtures: Any) -> None:
    recorded = ask(fixtures, params={"refund_id": "jane.doe@mail.example", "ledger_entry_id": "4111111111111111"})
    fixtures.publish()
    event, ann = shown(fixtures, recorded), fixtures.person("ann", "viewer")
    wanted = {
        event["refund_id"]: ("refund", "jane.doe@mail.example"), event["ledger_entry_id"]: ("ledger_entry", "4111111111111111"),
        event["agent_label"]: ("agent", "retail-refund-agent"), event["proof_id"]: ("proof", str(recorded.operation_id)),
    }  # fmt: skip
    for public_id, (kind, value) in wanted.items():
        path = f"/ops/api/public-ids/{public_id}"
        found = ann.get(path)
        assert found.status_code == 200, found.text
        assert (found.json["public_id"], found.json["kind"], found.json["value"]) == (public_id, kind, value)
        assert found.json["operation_id"] == str(recorded.operation_id)
        assert found.json["proof_id"] == event["proof_id"]
        assert fixtures.app().test_client().get(path).status_code == 401
    other = fixtures.operator("bob", "viewer", fixtures.tenant("other"))
    bob = fixtures.sign_in(other)
    for public_id in wanted:
        assert bob.get(f"/ops/api/public-ids/{public_id}").status_code == 404
    for unknown in ("prf_" + "a" * 16, "pf_" + "0" * 32, "rf_1", "prf_" + "1" * 16, "%00"):
        assert ann.get(f"/ops/api/public-ids/{unknown}").status_code == 404, unknown


def test_the_pages_search_takes_public_ids(fixtures: Any) -> None:
    recorded = ask(fixtures, params={"refund_id": "rf_looked_for", "ledger_entry_id": "lge_looked_for"})
    fixtures.sql(
        "insert into refunds.ledger_entries (tenant_id, ledger_entry_id, refund_id, amount_minor, currency, action, agent_id,"
        " requested_at, risk) values (%s, 'lge_looked_for', 'rf_looked_for', 100, 'USD', 'refund.create', 'a', now(), '{}')",
        fixtures.tenant_id,
    )  # fmt: skip
    fixtures.sql(
        "insert into refunds.ledger_entries (tenant_id, ledger_entry_id, refund_id, amount_minor, currency)"
        " select %s, 'lge_looked_for' || n, 'rf_looked_for' || n, 100, 'USD' from generate_series(1, 60) n",
        fixtures.tenant_id,
    )
    fixtures.publish()
    event, ann = shown(fixtures, recorded), fixtures.browser("ann", "viewer")
    for name in ("refund_id", "ledger_entry_id", "proof_id"):
        listed = set(re.findall(r'href="/ops/ledger/([^"?]+)"', ann.get(f"/ops/ledger?q={event[name]}").text))
        assert listed == {"lge_looked_for"}, name
        assert f"operation={recorded.operation_id}" in ann.get(f"/ops/events?operation={event[name]}").text, name
    assert "No matching rows" in ann.get(f"/ops/ledger?q=prf_{'a' * 16}").text
    assert "is the agent retail-refund-agent" in ann.get(f"/ops/ledger?q={event['agent_label']}").text
    assert f"operation={recorded.operation_id}" in ann.get(f"/ops/events?operation={event['agent_label']}").text
    assert ann.get(f"/ops/events?operation=prf_{'a' * 16}").status_code == 400


def test_the_command_finds_what_a_public_id_stands_for(fixtures: Any) -> None:
    recorded = ask(fixtures, params={"refund_id": "jane.doe@mail.example"})
    fixtures.publish()
    public_id = shown(fixtures, recorded)["refund_id"]

    def run(*words: str) -> Any:
        env = {"SENTINEL_DATABASE_URL": fixtures.url, "SENTINEL_TENANT_ID": None, "SENTINEL_PUBLIC_ID_SECRETS": None}
        return CliRunner().invoke(public_id_commands.group, ["find", *words], env=env)

    assert f"{public_id} is refund jane.doe@mail.example" in run(public_id).output
    told = json.loads(run(public_id, "--json").output)
    assert (told["value"], told["operation_id"]) == ("jane.doe@mail.example", str(recorded.operation_id))
    assert run("prf_" + "a" * 16).exit_code == 1
    assert run("rf_1").exit_code == 1


def test_a_look_up_is_one_row_by_its_key_however_many_there_are(fixtures: Any) -> None:
    fixtures.sql(
        "insert into sentinel.public_ids select %s, 'prf_' || n, 'refund', 'rf_' || n, gen_random_uuid() from generate_series(1, 20000) n",
        fixtures.tenant_id,
    )  # fmt: skip
    fixtures.sql("analyze sentinel.public_ids")
    plan = fixtures.sql(
        "explain select * from sentinel.public_ids where tenant_id = %s and public_id = 'prf_7'", fixtures.tenant_id
    )
    assert any("public_ids_pkey" in line for (line,) in plan), plan


def test_after_another_secret_what_was_public_before_is_still_found(fixtures: Any) -> None:
    recorded = ask(fixtures, params={"refund_id": "rf_lasting"})
    fixtures.publish()
    before = shown(fixtures, recorded)["refund_id"]
    first = fixtures.person("ann", "viewer")
    assert first.get(f"/ops/api/public-ids/{before}").json["value"] == "rf_lasting"
    app = fixtures.app(public_id_secrets=(OTHER_SECRET,))
    after = shown(fixtures, recorded, public_id_secrets=(OTHER_SECRET,))["refund_id"]
    assert after != before
    ben = fixtures.person("ben", "viewer", app)
    assert [ben.get(f"/ops/api/public-ids/{one}").json["value"] for one in (before, after)] == ["rf_lasting"] * 2


def test_an_id_of_a_decision_that_is_not_indexed_yet_is_not_told_as_one_of_nothing(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(fixtures)
    last = ask(fixtures, params={"refund_id": "rf_last"})
    fixtures.publish()
    # Each look indexes one event: its time is over after that.
    monkeypatch.setattr(public_ids, "AT_ONCE", 1)
    monkeypatch.setattr(public_ids, "time", SimpleNamespace(monotonic=itertools.count(step=10).__next__))
    behind, public_id = fixtures.person("ann", "viewer"), shown(fixtures, last)["refund_id"]
    early = behind.get(f"/ops/api/public-ids/{public_id}")
    assert (early.status_code, early.headers["Retry-After"], early.json["type"]) == (
        503, "1", "urn:sentinel:problem:try-later",
    )  # fmt: skip
    assert "still being indexed" in early.json["detail"]
    monkeypatch.setattr(public_ids, "index_public_ids", lambda *_: False)
    vic = fixtures.browser("vic", "viewer")
    for address in (f"/ops/events?operation={public_id}", f"/ops/ledger?q={public_id}"):
        told = vic.get(address)
        assert told.status_code == 503 and "still being indexed" in told.get_data(as_text=True), address
    monkeypatch.setattr(public_ids, "index_public_ids", index_public_ids)
    for _ in range(10):
        behind.get(f"/ops/api/public-ids/{public_id}")
    assert behind.get(f"/ops/api/public-ids/{public_id}").json["value"] == "rf_last"
    assert behind.get("/ops/api/public-ids/prf_" + "a" * 16).status_code == 404


@pytest.mark.usefixtures("patient")
def test_two_consoles_that_index_at_once_leave_each_id_once(fixtures: Any) -> None:
    for n in range(40):
        ask(fixtures, params={"refund_id": f"rf_{n % 20}", "ledger_entry_id": f"lge_{n % 20}"}, idempotency_key=f"k{n}")
    fixtures.publish()
    ids, together, faults = load_public_id_generators(fixtures.pool, ())[0], threading.Barrier(4), []

    def index() -> None:
        together.wait()
        try:
            assert index_public_ids(fixtures.pool, fixtures.tenant_id, ids)
        except Exception as error:
            faults.append(error)

    threads = [threading.Thread(target=index) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    kinds = dict(fixtures.sql("select kind, count(*) from sentinel.public_ids group by kind"))
    assert kinds == {"agent": 1, "action": 1, "ledger_entry": 20, "refund": 20}


# Proofs --------------------------------------------------------------------------------------------------------------------


def compare(fixtures: Any, file: Any, pack: dict[str, Any], secrets: str | None = None) -> Any:
    """`sentinel proof compare` on a pack."""
    file.write_text(json.dumps(pack))
    env = {"SENTINEL_DATABASE_URL": fixtures.url, "SENTINEL_TENANT_ID": None, "SENTINEL_PUBLIC_ID_SECRETS": secrets}
    return CliRunner().invoke(proof_commands.group, ["compare", str(file), "--json"], env=env)


def test_a_public_proof_verifies_alone_and_against_the_record_and_a_forged_one_does_not(
    fixtures: Any, tmp_path: Any
) -> None:
    recorded = ask(fixtures, params={"refund_id": "rf_proven"})
    own = {**json.loads(recorded.pack), "hash": recorded.pack_hash}
    public = fixtures.app().test_client().get(f"/verify/{own['proof_id']}.json").json
    assert is_intact(public)
    kept = {name for name in public if public[name] == own[name]}
    assert kept == set(own) - {"agent_id", "ledger_entry_id", "refund_id", "hash"}
    file = tmp_path / "pack.json"
    for pack, which in ((own, "is_recorded"), (public, "is_published")):
        done = compare(fixtures, file, pack)
        assert done.exit_code == 0, done.output
        told = json.loads(done.output)
        assert told[which] and told["holds"] and told["recorded_hash"] == recorded.pack_hash
        for name in set(pack) - {"hash", "proof_id"}:
            forged = {**pack, name: pack[name] + 1 if name == "latency_ms" else "x"}
            done = compare(fixtures, file, {**forged, "hash": pack_hash(forged)})
            assert done.exit_code == 1, name
            assert not json.loads(done.output)["holds"]


def test_a_proof_that_was_published_before_a_secret_was_set_is_still_recognised(fixtures: Any, tmp_path: Any) -> None:
    """Until then the database's own secret made the ids, and nobody can list that one in the setting."""
    name = json.loads(ask(fixtures).pack)["proof_id"]
    before, after = (
        fixtures.app(public_id_secrets=secrets).test_client().get(f"/verify/{name}.json").json
        for secrets in ((), (OTHER_SECRET,))
    )
    assert before["refund_id"] != after["refund_id"]
    for pack in (before, after):
        done = compare(fixtures, tmp_path / "pack.json", pack, OTHER_SECRET)
        assert done.exit_code == 0 and json.loads(done.output)["is_published"], done.output
    forged = {**before, "refund_id": after["refund_id"]}
    assert compare(fixtures, tmp_path / "pack.json", {**forged, "hash": pack_hash(forged)}, OTHER_SECRET).exit_code == 1


def test_a_proof_with_true_in_the_place_of_one_is_not_what_is_recorded(fixtures: Any, tmp_path: Any) -> None:
    """The finding: packs were compared as Python compares, for which true is 1 and false is 0."""
    recorded = ask(fixtures, amount="1.00")
    own = {**json.loads(recorded.pack), "hash": recorded.pack_hash}
    public = fixtures.app().test_client().get(f"/verify/{own['proof_id']}.json").json
    for pack in (own, public):
        assert pack["amount"]["value"] == 1
        altered = {**pack, "amount": {**pack["amount"], "value": True}}
        for one, intact in ((altered, False), ({**altered, "hash": pack_hash(altered)}, True)):
            done = compare(fixtures, tmp_path / "pack.json", one)
            told = json.loads(done.output)
            assert (done.exit_code, told["holds"]) == (1, False)
            assert (told["is_recorded"], told["is_published"], told["intact"]) == (False, False, intact)


def test_an_action_keeps_its_public_name_where_this_version_cannot_compile_the_policy_that_decided(
    fixtures: Any,
) -> None:
    """An upgrade must not give a proof that was published before it another action, and with it another hash."""
    (policy,) = (one for one in fixtures.authority.policies.library.policies if "refund.create" in one.policy.actions)
    text = canonical_json(policy.policy.document()).replace('"when":"', '"when":"a condition of another version: ', 1)
    digest = sha256_hex(text)
    fixtures.sql(
        "insert into sentinel.policies (policy_digest, policy_id, policy_version, canonical) values (%s, %s, 'v0', %s)",
        digest, policy.policy.policy_id, text,
    )  # fmt: skip
    inspector = PolicyInspector(policies_dir())
    assert inspector.policy_of(fixtures.pool, digest) is None
    assert inspector.actions_of(fixtures.pool, digest) == set(policy.policy.actions)


def test_a_record_that_was_changed_is_told_by_the_comparison(fixtures: Any, tmp_path: Any) -> None:
    recorded = ask(fixtures, params={"refund_id": "rf_changed"})
    name = json.loads(recorded.pack)["proof_id"]
    fixtures.sql("alter table sentinel.event_rows disable trigger append_only")
    fixtures.sql(
        "update sentinel.event_rows set refund_id = 'rf_another' where event_id = %s",
        recorded.decision_event_id,
    )
    public = fixtures.app().test_client().get(f"/verify/{name}.json").json
    assert is_intact(public), "the public cannot tell"
    done = compare(fixtures, tmp_path / "pack.json", public)
    assert done.exit_code == 1
    assert not json.loads(done.output)["record_intact"]


def test_every_field_of_a_public_document_is_of_the_contract() -> None:
    publisher = Publisher(lambda: PublicIdGenerator(OTHER_SECRET), lambda digest: ())
    whole = DecisionRecord(
        uuid.UUID(int=1), uuid.UUID(int=2), "a", True, {name: MARKUP for name in PACK_FIELDS if name != "hash"}
    )
    assert publisher.event(whole).keys() <= set(EVENT_FIELDS)
    assert set(publisher.pack(whole)) == {"agent_id", "action", "ledger_entry_id", "refund_id", "policy_label", "hash"}
