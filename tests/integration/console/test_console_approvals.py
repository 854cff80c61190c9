"""Approvals: who may decide, how many it takes, once, in time, on what was shown. Each promise with a mutant that breaks it."""

from __future__ import annotations

import json
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from sentinel.authority.actor import LOCAL_ADMINISTRATOR, Actor, local_administrator
from sentinel.authority.approvals import resolve_approval
from sentinel.authority.housekeeping import run_housekeeping
from sentinel.authority.keys import issue_key, rotate_key
from sentinel.cli.approvals import group
from sentinel.core.errors import Forbidden, SentinelError
from tests import mutants


def decide(fixtures: Any, actor: Actor, approval_id: uuid.UUID, verdict: str = "approve", **more: Any) -> str:
    """What became of a decision: the result, or the refusal's code."""
    seen = {"digest": fixtures.digest(approval_id), **more}
    try:
        return resolve_approval(
            fixtures.pool, actor, approval_id, verdict=verdict, reason="looked at it", **seen
        ).result
    except SentinelError as error:
        return error.code


def rewritten(fixtures: Any, function: str, *changes: tuple[str, str]) -> None:
    """Break a function of the schema, for a mutant."""
    (text,) = fixtures.sql("select pg_get_functiondef(%s::regproc)", function)[0]
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    fixtures.sql("set role sentinel_owner; " + text)


# Deciding ------------------------------------------------------------------------------------------------------------


def test_an_operator_sees_what_waits_decides_it_and_it_is_recorded(fixtures: Any) -> None:
    ann, approval_id = fixtures.person("ann"), fixtures.approval("200.50")
    listed = ann.get("/ops/api/approvals?status=pending").json["approvals"]
    assert [one["approval_id"] for one in listed] == [str(approval_id)]
    assert listed[0]["amount"] == {"value": "200.50", "currency": "USD"}
    assert listed[0]["reasons"][0]["code"] == "amount_needs_approval"
    assert ann.approve(approval_id, digest=listed[0]["digest"]).json == {
        "result": "approved",
        "approvals_given": 1,
        "people_required": 1,
    }
    shown = ann.get(f"/ops/api/approvals/{approval_id}").json
    assert (shown["status"], shown["decided_by"], shown["reason"]) == ("approved", "ann@demo.local", "looked at it")
    assert [(one["operator"], one["verdict"], one["via"]) for one in shown["votes"]] == [
        ("ann@demo.local", "approve", "console")
    ]
    kinds = [
        kind
        for (kind,) in fixtures.sql("select kind from sentinel.events where kind <> 'key_created' order by event_id")
    ]
    assert kinds == ["decision", "approval_vote", "approval_approved"]


def test_approvals_are_listed_by_each_status_newest_first_and_paged(fixtures: Any) -> None:
    names = ("expired", "overdue", "approved", "rejected", "handled", "first", "second", "third")
    made = {name: str(fixtures.approval()) for name in names}
    ann = fixtures.person("ann")
    ann.approve(made["approved"])
    ann.reject(made["rejected"])
    ann.handled(made["handled"])
    for name in ("expired", "overdue"):
        fixtures.sql("update sentinel.approvals set expires_at = clock_timestamp() where approval_id = %s", made[name])
        if name == "expired":
            run_housekeeping(fixtures.authority.pool, 60)
    assert [fixtures.approval_status(uuid.UUID(made[name])) for name in names[:2]] == ["expired", "pending"]

    def listed(query: str) -> list[str]:
        found, cursor = [], ""
        while True:
            page = ann.get(f"/ops/api/approvals?limit=2&{query}&cursor={cursor}").json
            found += [
                next(name for name, one in made.items() if one == row["approval_id"]) for row in page["approvals"]
            ]
            if not (cursor := page.get("next_cursor", "")):
                return found

    assert listed("") == list(reversed(names))
    assert listed("status=pending") == ["third", "second", "first"]
    assert listed("status=expired") == ["overdue", "expired"]
    assert listed("status=approved") == ["approved"]
    assert listed("status=rejected") == ["handled", "rejected"], "as the agent is told"
    for status in ("handled", "rejected"):
        done = CliRunner().invoke(
            group, ["list", "--status", status, "--json"], env={"SENTINEL_DATABASE_URL": fixtures.url}
        )
        assert [row["approval_id"] for row in json.loads(done.stdout)] == [made[status]], status


def test_one_rejection_is_enough_and_final(fixtures: Any) -> None:
    ann, bob, approval_id = fixtures.person("ann"), fixtures.person("bob"), fixtures.approval("600.00")
    assert ann.reject(approval_id).json["result"] == "rejected"
    assert bob.approve(approval_id).status_code == 409
    assert fixtures.sql("select status, decision, reason_code from sentinel.operation_states") == [
        ("denied", "DENY", "approval_rejected")
    ]


def test_what_was_handled_by_hand_is_recorded_with_who_and_where(fixtures: Any) -> None:
    ann, approval_id = fixtures.person("ann"), fixtures.approval("600.00")
    shown = ann.get(f"/ops/api/approvals/{approval_id}").json
    assert (shown["offers"], "handled_reference" in shown) == (["approve", "reject", "handled"], False)
    body = {"reason": "paid by hand", "reference": "ticket 7", "digest": shown["digest"]}
    answer = ann.post(f"/ops/api/approvals/{approval_id}/handled", body)
    assert answer.json == {"result": "handled", "approvals_given": 0, "people_required": 2}
    shown = ann.get(f"/ops/api/approvals/{approval_id}").json
    assert (shown["status"], shown["handled_reference"], shown["offers"]) == ("rejected", "ticket 7", [])
    assert [(one["operator"], one["verdict"]) for one in shown["votes"]] == [("ann@demo.local", "handled")]
    assert fixtures.sql("select status, decision, reason_code from sentinel.operation_states") == [
        ("denied", "DENY", "handled_by_person")
    ]
    kinds = [
        kind
        for (kind,) in fixtures.sql("select kind from sentinel.events where kind <> 'key_created' order by event_id")
    ]
    assert kinds == ["decision", "approval_vote", "approval_handled"]
    assert ann.approve(approval_id).status_code == 409


@pytest.mark.parametrize(
    "more", [{}, {"reference": ""}, {"reference": "  "}, {"reference": "x" * 201}, {"reference": 7}]
)
def test_a_handling_without_a_reference_is_none(fixtures: Any, more: dict[str, Any]) -> None:
    ann, approval_id = fixtures.person("ann"), fixtures.approval()
    answer = ann.post(
        f"/ops/api/approvals/{approval_id}/handled",
        {"reason": "by hand", "digest": fixtures.digest(approval_id), **more},
    )
    assert (answer.status_code, "reference" in answer.json["errors"]) == (400, True)
    assert fixtures.approval_status(approval_id) == "pending"
    assert (
        ann.post(
            f"/ops/api/approvals/{approval_id}/reject",
            {"reason": "no", "digest": fixtures.digest(approval_id), "reference": "x"},
        ).status_code
        == 400
    )


def test_what_is_not_offered_is_refused_with_what_can_be_done_instead(fixtures: Any) -> None:
    ann, approval_id = fixtures.person("ann"), fixtures.approval()
    fixtures.sql("update sentinel.approvals set offers_approve = false")
    assert ann.get("/ops/api/approvals").json["approvals"][0]["offers"] == ["reject", "handled"]
    answer = ann.approve(approval_id)
    assert (answer.status_code, answer.json["type"]) == (409, "urn:sentinel:problem:conflict")
    assert "handled by hand" in answer.json["detail"]
    assert fixtures.sql("select count(*) from sentinel.approval_votes") == [(0,)]
    assert fixtures.approval_status(approval_id) == "pending"


def test_the_command_line_shows_what_is_offered_and_records_what_was_handled(fixtures: Any) -> None:
    bob, approval_id = fixtures.operator("bob"), fixtures.approval()
    env = {"SENTINEL_DATABASE_URL": fixtures.url}

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(group, list(arguments), env=env)

    (listed,) = json.loads(run("list", "--json").stdout)
    assert (listed["offers"], listed["handled_reference"]) == (["approve", "reject", "handled"], None)
    handled = ["handled", str(approval_id), "--as", bob.email, "--reason", "by hand"]
    assert run(*handled).exit_code == 2
    assert run(*handled, "--reference", "x" * 201).exit_code != 0
    done = run(*handled, "--reference", "ticket 7")
    assert (done.exit_code, done.stdout.splitlines()[0]) == (0, "Handled as bob@demo.local (local administrator).")
    (listed,) = json.loads(run("list", "--json").stdout)
    assert (listed["status"], listed["offers"], listed["handled_reference"]) == ("rejected", [], "ticket 7")


def test_one_command_rejects_what_a_key_or_an_agent_asked_and_nothing_else(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sentinel.cli.approvals._STEP", 2)
    env, key = {"SENTINEL_DATABASE_URL": fixtures.url}, fixtures.caller()

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(group, list(arguments), env=env)

    of_key = [fixtures.guard("200.00", key).approval_id for _ in range(5)]
    of_agent, of_another = fixtures.approval("210.00"), fixtures.approval("220.00")
    fixtures.sql("update sentinel.approvals set agent_id = 'another-agent' where approval_id = %s", of_another)
    bob = ("--as", fixtures.operator("bob").email, "--reason", "a flood")
    assert run("reject", *bob).exit_code == 2
    assert run("reject", str(of_agent), "--agent", "another-agent", *bob).exit_code == 2
    assert run("reject", "--agent", "another-agent", "--digest", "sha256:0", *bob).exit_code == 2
    assert run("reject", "--key", str(uuid.uuid4()), *bob).exit_code == 1
    assert fixtures.sql("select count(*) from sentinel.approval_votes") == [(0,)]

    done = run("reject", "--key", str(key.key_id), *bob, "--json")
    assert (done.exit_code, json.loads(done.stdout)) == (0, {"rejected": 5, "left": {}})
    assert [fixtures.approval_status(one) for one in of_key] == ["rejected"] * 5
    assert [fixtures.approval_status(one) for one in (of_agent, of_another)] == ["pending"] * 2

    # Who answers for a key of the agent does not decide what the agent asks, one by one or together.
    owner = fixtures.operator("olga")
    fixtures.caller(owner)
    agent = ("reject", "--agent", "retail-refund-agent")
    refused = run(*agent, "--as", owner.email, "--reason", "mine")
    assert (refused.exit_code, refused.stdout.splitlines()[0]) == (
        1, "0 rejected as olga@demo.local (local administrator)."
    )  # fmt: skip
    assert refused.stdout.splitlines()[1].startswith("1 not rejected: you own")
    assert run(*agent, "--as", fixtures.operator("vic", "viewer").email, "--reason", "no").exit_code == 1
    assert fixtures.approval_status(of_agent) == "pending"
    done = run(*agent, *bob)
    assert (done.exit_code, done.stdout) == (0, "1 rejected as bob@demo.local (local administrator).\n")
    assert [fixtures.approval_status(one) for one in (of_agent, of_another)] == ["rejected", "pending"]
    voted = fixtures.sql("select count(*), count(distinct operator_id), min(reason) from sentinel.approval_votes")
    assert voted == [(6, 1, "a flood")]


def test_what_one_agent_asked_can_be_listed(fixtures: Any) -> None:
    mine, others = fixtures.approval(), fixtures.approval()
    fixtures.sql("update sentinel.approvals set agent_id = 'another-agent' where approval_id = %s", others)
    ann = fixtures.person("ann")

    def listed(query: str) -> list[str]:
        return [one["approval_id"] for one in ann.get(f"/ops/api/approvals?{query}").json["approvals"]]

    assert listed("agent_id=another-agent") == listed("agent_id=another-agent&status=pending") == [str(others)]
    assert listed("agent_id=retail-refund-agent") == [str(mine)]
    assert listed("agent_id=nobody") == []
    assert ann.get("/ops/api/approvals?agent_id=%20").status_code == 400
    printed = CliRunner().invoke(
        group, ["list", "--agent", "another-agent", "--json"], env={"SENTINEL_DATABASE_URL": fixtures.url}
    )
    assert [one["approval_id"] for one in json.loads(printed.stdout)] == [str(others)]


def test_another_digest_than_the_shown_one_is_refused(fixtures: Any) -> None:
    ann, approval_id = fixtures.person("ann"), fixtures.approval()
    assert ann.approve(approval_id, digest="sha256:" + "0" * 64).status_code == 409
    assert fixtures.approval_status(approval_id) == "pending"


@pytest.mark.parametrize(
    "body",
    [{}, {"reason": ""}, {"reason": "  "}, {"reason": "x", "extra": 1}, {"reason": 1}, {"reason": "a\u202eb"}, []],
)
def test_a_vote_without_a_plain_reason_is_no_vote(fixtures: Any, body: Any) -> None:
    ann, approval_id = fixtures.person("ann"), fixtures.approval()
    given = {"digest": fixtures.digest(approval_id), **body} if isinstance(body, dict) else body
    assert ann.post(f"/ops/api/approvals/{approval_id}/approve", given).status_code == 400
    assert fixtures.approval_status(approval_id) == "pending"


def test_pages_follow_each_other_without_gap_or_repeat(fixtures: Any) -> None:
    ann, made = fixtures.person("ann"), [str(fixtures.approval()) for _ in range(5)]
    seen, cursor = [], ""
    while True:
        page = ann.get(f"/ops/api/approvals?limit=2&cursor={cursor}").json
        seen += [one["approval_id"] for one in page["approvals"]]
        cursor = page.get("next_cursor", "")
        if not cursor:
            break
    assert seen == made[::-1]


# Requester ≠ approver, machine ≠ approver ------------------------------------------------------------------------------


def ways_to_self_approval(fixtures: Any) -> list[str]:
    """Every way by which who answers for the asking key got its own approval through."""
    app, got, ways = fixtures.app(), [], ["owner of the rotated key"]
    owner = fixtures.operator("owner", "admin")
    person = fixtures.sign_in(owner, app)
    other_session = fixtures.sign_in(owner, app)
    token = person.post("/ops/api/tokens", {}).json["token"]
    bearer = {"Authorization": f"Bearer {token}"}
    script = app.test_client()

    def tried(name: str, attempt: Any) -> None:
        approval_id = fixtures.approval(owner=owner)
        ways.append(name)
        attempt(approval_id)
        if fixtures.approval_status(approval_id) != "pending":
            got.append(name)

    path = "/ops/api/approvals/{}/approve"
    tried("session", person.approve)
    tried("another session", other_session.approve)
    tried(
        "token",
        lambda a: script.post(path.format(a), json={"reason": "mine", "digest": fixtures.digest(a)}, headers=bearer),
    )
    tried("reject", person.reject)
    tried("service", lambda a: decide(fixtures, owner, a))
    tried(
        "local administrator in the owner's name",
        lambda a: decide(
            fixtures, Actor(owner.tenant_id, owner.operator_id, owner.email, "admin", LOCAL_ADMINISTRATOR), a
        ),
    )
    env = {"SENTINEL_DATABASE_URL": fixtures.url}
    tried(
        "command line",
        lambda a: CliRunner().invoke(group, ["approve", str(a), "--as", owner.email, "--reason", "mine"], env=env),
    )
    fixtures.sql("update sentinel.operators set email = 'renamed@demo.local' where operator_id = %s", owner.operator_id)
    tried("renamed", person.approve)
    fixtures.sql("update sentinel.operators set email = %s where operator_id = %s", owner.email, owner.operator_id)

    caller = fixtures.caller(owner)
    rotated = rotate_key(fixtures.pool, fixtures.tenant_id, caller.key_id)
    approval_id = fixtures.guard("200.00", caller).approval_id
    fixtures.sql("update sentinel.agent_keys set owner_operator_id = null where key_id = %s", caller.key_id)
    assert rotated.principal_id == caller.principal_id
    if person.approve(approval_id).status_code == 200:
        got.append("owner of the rotated key")
    print(f"N={len(ways)} ways to approve what one asked for oneself")
    return got


def test_who_answers_for_the_asking_key_cannot_decide_by_any_way(fixtures: Any) -> None:
    assert ways_to_self_approval(fixtures) == []


def test_the_check_for_self_approval_sees_a_rule_that_is_gone(fixtures: Any) -> None:
    fixtures.sql(
        "set role sentinel_owner; create or replace function sentinel.is_requester(a sentinel.approvals, operator uuid)"
        " returns boolean language sql stable as 'select false'"
    )
    assert len(ways_to_self_approval(fixtures)) == 9


def test_taking_over_the_key_afterwards_takes_the_right_away(fixtures: Any) -> None:
    ann, caller = fixtures.operator("ann"), fixtures.caller()
    approval_id = fixtures.guard("200.00", caller).approval_id
    fixtures.sql(
        "update sentinel.agent_keys set owner_operator_id = %s where key_id = %s", ann.operator_id, caller.key_id
    )
    assert decide(fixtures, ann, approval_id) == "forbidden"


def test_no_machine_approves(fixtures: Any) -> None:
    key = issue_key(fixtures.pool, fixtures.tenant_id, agent_id="retail-refund-agent").key
    approval_id, client = fixtures.approval(), fixtures.app().test_client()
    for headers in ({"X-API-Key": key}, {"Authorization": f"Bearer {key}"}):
        for verb in ("approve", "reject"):
            assert (
                client.post(
                    f"/ops/api/approvals/{approval_id}/{verb}", json={"reason": "x"}, headers=headers
                ).status_code
                == 401
            )
    with pytest.raises(Forbidden):
        resolve_approval(
            fixtures.pool, local_administrator(fixtures.tenant_id), approval_id, verdict="approve", reason="nobody",
            digest=fixtures.digest(approval_id),
        )  # fmt: skip
    assert fixtures.approval_status(approval_id) == "pending"


def test_the_role_is_looked_at_again_where_the_vote_is_recorded(fixtures: Any) -> None:
    viewer, approval_id = fixtures.operator("vic", "viewer"), fixtures.approval()
    pretending = Actor(viewer.tenant_id, viewer.operator_id, viewer.email, "admin")
    assert decide(fixtures, pretending, approval_id) == "forbidden"


def test_where_an_administrator_is_asked_for_an_approver_is_not_enough(fixtures: Any) -> None:
    approval_id = fixtures.approval()
    fixtures.sql("update sentinel.approvals set required_role = 'admin'")
    assert decide(fixtures, fixtures.operator("ann"), approval_id) == "forbidden"
    assert decide(fixtures, fixtures.operator("abe", "admin"), approval_id) == "approved"


# Two people ----------------------------------------------------------------------------------------------------------


def one_person_suffices(fixtures: Any) -> bool:
    """Whether one person's hundred clicks, eight at a time, approve what needs two."""
    ann, approval_id = fixtures.operator("ann"), fixtures.approval("500.00")
    with ThreadPoolExecutor(max_workers=8) as threads:
        said = list(threads.map(lambda _: decide(fixtures, ann, approval_id), range(100)))
    print(f"N={len(said)} words of one person, {said.count('recorded')} recorded")
    return fixtures.approval_status(approval_id) != "pending"


@pytest.mark.usefixtures("patient")
def test_one_person_clicking_a_hundred_times_never_suffices_where_two_are_asked_for(fixtures: Any) -> None:
    assert not one_person_suffices(fixtures)
    (votes,) = fixtures.sql("select count(*) from sentinel.approval_votes")[0]
    assert votes == 1
    bob, (approval_id,) = fixtures.operator("bob"), fixtures.sql("select approval_id from sentinel.approvals")[0]
    assert decide(fixtures, bob, approval_id) == "approved"


@pytest.mark.usefixtures("patient")
def test_the_check_for_two_people_sees_voices_that_are_not_told_apart(fixtures: Any) -> None:
    fixtures.sql("alter table sentinel.approval_votes drop constraint approval_votes_pkey")
    # People are told apart by the key of words, and again where they are counted.
    rewritten(
        fixtures,
        "sentinel.counted_votes",
        ("select distinct on (sentinel.person_of(a.tenant_id, p.operator_id)) p.operator_id", "select p.operator_id"),
    )
    assert one_person_suffices(fixtures)


def test_a_voice_no_longer_counts_when_its_person_could_not_give_it_now(fixtures: Any) -> None:
    ann, bob, cyd = (fixtures.operator(name) for name in ("ann", "bob", "cyd"))
    approval_id = fixtures.approval("500.00")
    assert decide(fixtures, ann, approval_id) == "recorded"
    fixtures.sql("update sentinel.operators set role = 'viewer' where email like 'ann%%'")
    assert decide(fixtures, bob, approval_id) == "recorded"
    assert decide(fixtures, cyd, approval_id) == "approved"


@pytest.mark.parametrize("since", ["active = false", "role = 'viewer'"])
def test_the_people_who_have_approved_are_told_as_they_count(fixtures: Any, since: str) -> None:
    ann, bob, cyd = (fixtures.operator(name) for name in ("ann", "bob", "cyd"))
    approval_id = fixtures.approval("500.00")
    assert decide(fixtures, ann, approval_id) == "recorded"
    change = f"update sentinel.operators set {since} where email like 'ann%%'"
    fixtures.sql(change)
    assert decide(fixtures, bob, approval_id) == "recorded"
    zoe, reader = fixtures.person("zoe", "viewer"), fixtures.browser("vic", "viewer")

    def shown() -> tuple[int, list[tuple[str, bool]]]:
        one = zoe.get(f"/ops/api/approvals/{approval_id}").json
        return one["approvals_given"], [(vote["operator"].partition("@")[0], vote["counts"]) for vote in one["votes"]]

    assert shown() == (1, [("ann", False), ("bob", True)])
    page = reader.get(f"/ops/approvals/{approval_id}").get_data(as_text=True)
    assert "1 of 2 people have approved" in page and page.count("no longer counts") == 1
    assert "1 of 2 people have approved" in reader.get("/ops/approvals").get_data(as_text=True)
    assert decide(fixtures, cyd, approval_id) == "approved"
    fixtures.sql(change.replace("ann", "bob"))
    # What was decided was decided by those who could then: nobody who has left since is taken away from it.
    assert shown() == (2, [("ann", True), ("bob", True), ("cyd", True)])


# One transition, none after the end ------------------------------------------------------------------------------------


def transitions(fixtures: Any, contenders: int = 12) -> int:
    """How many of so many people, half for and half against at one time, were told that they decided."""
    people, approval_id = [fixtures.operator(f"p{n}") for n in range(contenders)], fixtures.approval()
    fixtures.pool.size, fixtures.pool._wait_seconds = contenders, 30
    for _ in range(contenders - 4):
        fixtures.pool._free.put(None)
    with ThreadPoolExecutor(max_workers=contenders) as threads:
        said = list(
            threads.map(
                lambda n: decide(fixtures, people[n], approval_id, ("approve", "reject")[n % 2]), range(contenders)
            )
        )
    events = fixtures.sql(
        "select count(*) from sentinel.events where kind in ('approval_approved', 'approval_rejected')"
    )[0][0]
    decided = sum(result in ("approved", "rejected") for result in said)
    assert decided == events
    print(f"N={len(said)} at once, {decided} decided")
    return decided


@pytest.mark.usefixtures("patient")
def test_of_many_contenders_exactly_one_decides(fixtures: Any) -> None:
    assert transitions(fixtures) == 1


@pytest.mark.usefixtures("patient")
def test_the_check_for_one_transition_sees_a_check_then_act(fixtures: Any) -> None:
    rewritten(
        fixtures, "sentinel.resolve_approval", ("approval_id = approval for update", "approval_id = approval"),
        ("operation_id = a.operation_id for update", "operation_id = a.operation_id"),
    )  # fmt: skip
    with psycopg.connect(fixtures.url, autocommit=True) as admin:
        mutants.meet_before(admin, "sentinel.resolve_approval", "moment := clock_timestamp();")
    assert transitions(fixtures) > 1


def test_after_its_end_an_approval_cannot_be_decided(fixtures: Any) -> None:
    ann, approval_id = fixtures.person("ann"), fixtures.approval()
    fixtures.sql("update sentinel.approvals set expires_at = clock_timestamp()")
    assert ann.get(f"/ops/api/approvals/{approval_id}").json["status"] == "expired"
    assert ann.approve(approval_id).status_code == 409
    assert fixtures.approval_status(approval_id) == "expired"
    assert ann.reject(approval_id).status_code == 409
    assert fixtures.sql("select status, reason_code from sentinel.operation_states") == [
        ("expired", "approval_expired")
    ]


def test_the_end_and_a_vote_at_one_time_leave_one_of_them(fixtures: Any) -> None:
    ann, approval_id = fixtures.operator("ann"), fixtures.approval()
    fixtures.sql("update sentinel.approvals set expires_at = clock_timestamp() + interval '30 milliseconds'")
    with ThreadPoolExecutor(max_workers=4) as threads:
        for _ in range(40):
            threads.submit(decide, fixtures, ann, approval_id)
            threads.submit(run_housekeeping, fixtures.authority.pool, 300)
    ended = fixtures.sql(
        "select kind from sentinel.events where kind in ('approval_approved', 'approval_rejected', 'approval_expired')"
    )
    assert len(ended) == 1
