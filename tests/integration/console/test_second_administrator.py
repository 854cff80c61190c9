"""What gives somebody power waits for a second administrator once there are two: the life of such a change, and what is seen of it."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from click.testing import CliRunner
from markupsafe import escape

from ops_console.accounts.collect_change import collect_change
from sentinel.authority import protected_changes
from sentinel.authority.actor import Actor
from sentinel.authority.approvals import APPROVE, resolve_approval
from sentinel.authority.housekeeping import run_housekeeping
from sentinel.authority.keys import issue_key
from sentinel.authority.protected_changes import change_text
from sentinel.cli import main, operators
from sentinel.core.errors import Conflict, Forbidden
from tests.integration.console.second_administrator import ACTS, FIRST, SECRETLESS, Two, approve, power, waiting


@pytest.mark.parametrize("act", ACTS)
def test_what_one_of_two_administrators_asks_waits_and_is_done_when_the_second_approves(two: Two, act: str) -> None:
    fixtures = two.fixtures
    if act == "reactivate":
        fixtures.sql("update sentinel.operators set active = false where operator_id = %s", two.bob.operator_id)
    before = power(fixtures)
    approval_id = waiting(two.ask(act))
    assert power(fixtures) == before, "nothing is changed yet"
    if act in ("password", *SECRETLESS):
        assert waiting(two.ask(act)) == approval_id, "asking the same again is the same question"
    page = two.ada.get(f"/ops/approvals/{approval_id}").get_data(as_text=True)
    assert "Waiting for a second administrator" in page and "another administrator has to decide it" in page
    assert 'value="approve"' not in page and 'value="approve"' in two.bea.get(f"/ops/approvals/{approval_id}").text
    assert f"/ops/approvals/{approval_id}" in two.bea.get("/ops/approvals?kind=change").text
    # Neither who asked nor whoever is in their hands has a say, nor who is no administrator.
    fixtures.operator("fay", "admin")
    fixtures.operator("ann", "approver")
    fixtures.sql("update sentinel.operators set changed_by = (select operator_id from sentinel.operators where email = 'ada@demo.local')"
              " where email = 'fay@demo.local'")  # fmt: skip
    before = power(fixtures)
    for nobody in ("ada@demo.local", "fay@demo.local", "ann@demo.local"):
        assert fixtures.sign_in(nobody, two.app).approve(approval_id).status_code == 403, nobody
    assert power(fixtures) == before
    if act in SECRETLESS:
        approve(fixtures, approval_id, two.bea)
        assert two.ada.submit(f"/ops/approvals/{approval_id}/collect").status_code == 409
    else:
        agreed_on_page(two, approval_id, before)
    assert power(fixtures) != before
    assert "it was done" in two.ada.get(f"/ops/approvals/{approval_id}").text
    assert fixtures.sql("select outcome from sentinel.protected_changes") == [("done",)]


def agreed_on_page(two: Two, approval_id: str, before: Any) -> None:
    """The second approves; only who asked is given the password or key, once."""
    collect = f"/ops/approvals/{approval_id}/collect"
    assert two.ada.submit(collect).status_code == 409, "not approved yet"
    approve(two.fixtures, approval_id, two.bea)
    assert power(two.fixtures) == before, "done when it is collected"
    assert two.bea.submit(collect).status_code == 403
    assert "Collect it" in two.ada.get(f"/ops/approvals/{approval_id}").text
    made = two.ada.submit(collect)
    secret = made.text.partition('<code class="secret"')[2].partition(">")[2].partition("<")[0]
    assert made.status_code in (200, 201) and len(secret) >= 20
    again = two.ada.submit(collect)
    assert again.status_code == 409 and secret not in again.text and "collected before" in again.text
    for table in ("operators", "agent_keys", "protected_changes", "approvals", "events"):
        assert secret not in str(two.fixtures.sql(f"select t::text from sentinel.{table} t")), table


@pytest.mark.parametrize("act", ACTS)
def test_with_a_sole_administrator_nothing_waits(two: Two, act: str) -> None:
    """The mutant of the above, too: where the rule is gone, each of these acts takes effect at once."""
    two.fixtures.sql("update sentinel.operators set role = 'approver' where email = 'bea@demo.local'")
    if act == "reactivate":
        two.fixtures.sql("update sentinel.operators set active = false where operator_id = %s", two.bob.operator_id)
    before = power(two.fixtures)
    answer = two.ask(act) if act != "create" else two.ada.submit(
        "/ops/operators", operator_id=str(uuid.uuid4()), email="eve@demo.local", role="approver", password=FIRST)  # fmt: skip
    assert answer.status_code in (200, 201, 303) and "/ops/approvals/" not in answer.headers.get("Location", "")
    assert power(two.fixtures) != before
    assert two.fixtures.sql("select count(*) from sentinel.approvals") == [(0,)]


@pytest.mark.parametrize("how", ["rejected", "expired"])
def test_what_is_rejected_or_runs_out_was_never_done(two: Two, how: str) -> None:
    fixtures, before = two.fixtures, power(two.fixtures)
    asked = [waiting(two.ask(act)) for act in ("create", "issue", "role")]
    if how == "rejected":
        person = fixtures.sign_in("bea@demo.local", two.app)
        assert [person.reject(one).json["result"] for one in asked] == ["rejected"] * 3
    else:
        fixtures.sql("update sentinel.approvals set expires_at = clock_timestamp()")
        assert fixtures.sign_in("bea@demo.local", two.app).approve(asked[2]).status_code == 409
        run_housekeeping(fixtures.authority.pool, 900)
    assert [fixtures.approval_status(one) for one in asked] == [how] * 3
    assert two.ada.submit(f"/ops/approvals/{asked[0]}/collect").status_code == 409
    assert power(fixtures) == before


def test_what_was_approved_is_collected_within_a_day_by_an_administrator_whose_second_still_counts(two: Two) -> None:
    fixtures = two.fixtures
    late, gone = waiting(two.ask("create")), waiting(two.ask("issue"))
    for one in (late, gone):
        approve(fixtures, one, two.bea)
    before = power(fixtures)
    fixtures.sql("set session_replication_role = replica; update sentinel.approvals set decided_at = decided_at - interval '25 hours'"
              f" where approval_id = '{late}'")  # fmt: skip
    two.arranged = {"vote_without_event"}
    answer = two.ada.submit(f"/ops/approvals/{late}/collect")
    assert answer.status_code == 409 and "more than a day ago" in answer.text
    fixtures.sql("update sentinel.operators set role = 'viewer' where email = 'bea@demo.local'")
    assert two.ada.submit(f"/ops/approvals/{gone}/collect").status_code == 409
    fixtures.sql("update sentinel.operators set role = 'admin' where email = 'bea@demo.local'")
    ada = fixtures.sql("select operator_id from sentinel.operators where email = 'ada@demo.local'")[0][0]
    fixtures.sql("update sentinel.operators set role = 'viewer' where operator_id = %s", ada)
    assert two.ada.submit(f"/ops/approvals/{gone}/collect").status_code == 403
    fixtures.sql("update sentinel.operators set role = 'admin' where operator_id = %s", ada)
    assert power(fixtures) == before
    assert two.ada.submit(f"/ops/approvals/{gone}/collect").status_code == 201


def test_what_was_approved_by_somebody_who_left_is_asked_again_and_not_offered_for_collecting(two: Two) -> None:
    fixtures, cat = two.fixtures, two.fixtures.browser("cat", "admin", two.app, proved=True)
    asked = waiting(two.ask("password"))
    approve(fixtures, asked, two.bea)
    assert waiting(two.ask("password")) == asked and "/collect" in two.ada.get(f"/ops/approvals/{asked}").text
    fixtures.sql("update sentinel.operators set active = false where email = 'bea@demo.local'")
    page = two.ada.get(f"/ops/approvals/{asked}").text
    assert "/collect" not in page and "can no longer be collected" in page
    again = waiting(two.ask("password"))
    assert again != asked
    approve(fixtures, again, cat)
    assert two.ada.submit(f"/ops/approvals/{asked}/collect").status_code == 409
    assert two.ada.submit(f"/ops/approvals/{again}/collect").status_code == 200
    assert "can no longer be collected" not in two.ada.get(f"/ops/approvals/{again}").text


def test_a_crash_between_vote_and_act_leaves_both_undone_or_repeatable(two: Two) -> None:
    fixtures = two.fixtures
    role, key = waiting(two.ask("role")), waiting(two.ask("issue"))
    before = power(fixtures)
    broken = "alter table sentinel.event_rows add constraint broken check (kind not in ('operator_role_set', 'key_created')) not valid"
    fixtures.sql(broken)
    vote_given = {"verdict": "approve", "reason": "yes"}
    assert two.bea.submit(f"/ops/approvals/{role}", **vote_given, digest=fixtures.digest(role)).status_code >= 500
    assert (fixtures.approval_status(role), fixtures.sql("select count(*) from sentinel.approval_votes")) == (
        "pending",
        [(0,)],
    )
    approve(fixtures, key, two.bea)
    assert two.ada.submit(f"/ops/approvals/{key}/collect").status_code >= 500
    assert power(fixtures) == before
    fixtures.sql("alter table sentinel.event_rows drop constraint broken")
    approve(fixtures, role, two.bea)
    assert two.ada.submit(f"/ops/approvals/{key}/collect").status_code == 201
    assert fixtures.sql("select role from sentinel.operators where email = 'bob@demo.local'") == [("admin",)]


@pytest.mark.usefixtures("patient")
def test_two_who_approve_or_collect_at_once_do_it_once(two: Two) -> None:
    fixtures, admins = two.fixtures, [two.fixtures.operator(name, "admin") for name in ("cat", "dot")]
    role, key = uuid.UUID(waiting(two.ask("role"))), uuid.UUID(waiting(two.ask("issue")))
    (ada,) = fixtures.sql("select operator_id from sentinel.operators where email = 'ada@demo.local'")[0]
    asker = Actor(fixtures.tenant_id, ada, "ada@demo.local", "admin")

    def at_once(act: Callable[[Any], Any], people: list[Any]) -> list[str]:
        barrier = threading.Barrier(len(people))

        def one(person: Any) -> str:
            barrier.wait()
            try:
                act(person)
            except (Conflict, Forbidden) as error:
                return error.code
            return "done"

        with ThreadPoolExecutor(len(people)) as threads:
            return sorted(threads.map(one, people))

    for asked in (role, key):
        vote_given = {"verdict": APPROVE, "reason": "yes", "digest": fixtures.digest(asked)}
        vote = lambda who, asked=asked, vote_given=vote_given: resolve_approval(fixtures.pool, who, asked, **vote_given)  # noqa: E731
        assert at_once(vote, admins) == ["conflict", "done"]
    assert at_once(lambda who: collect_change(fixtures.pool, who, key), [asker, asker]) == ["conflict", "done"]
    assert fixtures.sql("select kind, count(*) from sentinel.events where kind in ('operator_role_set', 'key_created')"
                     " and body not like '%%local administrator%%' group by 1 order by 1") == [("key_created", 1), ("operator_role_set", 1)]  # fmt: skip


def test_an_account_in_ones_hands_asks_for_whoever_holds_it(two: Two) -> None:
    fixtures = two.fixtures
    fixtures.sql("update sentinel.operators set changed_by = (select operator_id from sentinel.operators where email = 'bea@demo.local')"
              " where email = 'ada@demo.local'")  # fmt: skip
    asked = waiting(two.ask("issue"))
    assert fixtures.sign_in("bea@demo.local", two.app).approve(asked).status_code == 403
    assert fixtures.sign_in(fixtures.operator("cat", "admin"), two.app).approve(asked).json["result"] == "approved"


def test_who_shuts_out_the_second_administrator_is_not_thereby_alone(two: Two) -> None:
    fixtures = two.fixtures
    (bea,) = fixtures.sql("select operator_id from sentinel.operators where email = 'bea@demo.local'")[0]
    assert two.ada.submit(f"/ops/operators/{bea}/deactivate").status_code == 303
    assert fixtures.sql("select active from sentinel.operators where operator_id = %s", bea) == [(False,)], (
        "this never waits"
    )
    before = power(fixtures)
    waiting(two.ask("create"))
    assert power(fixtures) == before
    # On the machine itself somebody else says that she is gone for good.
    done = CliRunner().invoke(
        operators.group, ["deactivate", "bea@demo.local"], env={"SENTINEL_DATABASE_URL": fixtures.url}
    )
    assert done.exit_code == 0, done.output
    assert two.ask("issue").status_code == 201


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("how", ["active = false, deactivated_by = %s", "role = 'approver', changed_by = %s"], ids=["deactivated", "demoted"])  # fmt: skip
def test_who_is_no_administrator_any_more_does_nothing_by_what_was_under_way(
    two: Two, act: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finding: the one who was left counted as a sole administrator, and what the other had under way was done at once."""
    fixtures, real, before = two.fixtures, protected_changes._ask, []
    ada, bea = (
        fixtures.sql("select operator_id from sentinel.operators where email = %s", f"{name}@demo.local")[0][0]
        for name in ("ada", "bea")
    )

    def after_it(*arguments: Any, **asked: Any) -> Any:
        fixtures.sql(f"update sentinel.operators set {how} where operator_id = %s", ada, bea)
        before.append(power(fixtures))
        return real(*arguments, **asked)

    monkeypatch.setattr(protected_changes, "_ask", after_it)
    assert two.ask(act, by=two.bea).status_code == 403
    assert [power(fixtures)] == before


def test_taking_power_away_never_waits(two: Two) -> None:
    for path in (f"/ops/operators/{two.bob.operator_id}/end-sessions", f"/ops/operators/{two.bob.operator_id}/deactivate",
                 f"/ops/keys/{two.key_id}/revoke"):  # fmt: skip
        answer = two.ada.submit(path)
        assert (answer.status_code, "/ops/approvals" in answer.headers["Location"]) == (303, False), path
    assert two.fixtures.sql("select active from sentinel.operators where email = 'bob@demo.local'") == [(False,)]
    assert two.fixtures.sql("select count(*) from sentinel.agent_keys where revoked_at is null") == [(0,)]


def test_what_became_impossible_meanwhile_is_told_and_not_done(two: Two) -> None:
    fixtures, role = two.fixtures, waiting(two.ask("role"))
    fixtures.sql("update sentinel.operators set role = 'approver' where operator_id = %s", two.bob.operator_id)
    approve(fixtures, role, two.bea)
    assert fixtures.sql("select role from sentinel.operators where operator_id = %s", two.bob.operator_id) == [
        ("approver",)
    ]
    assert "another role by now" in two.ada.get(f"/ops/approvals/{role}").text


NOT_DONE = "Nothing was changed: this operator has another role by now; look again."


def shown_on_page(two: Two, asked: str) -> str:
    approve(two.fixtures, asked, two.bea)
    return str(two.bea.get("/ops/approvals").text)


def shown_in_batch(two: Two, asked: str) -> str:
    fields = {"id": asked, "digest": two.fixtures.digest(asked), "verdict": "approve", "reason": "we spoke about it"}
    return str(two.bea.submit("/ops/approvals/batch", **fields).text)


def printed_by_command(two: Two, asked: str) -> str:
    vote_given = ["approvals", "approve", asked, "--as", "bea@demo.local", "--reason", "we spoke about it"]
    return CliRunner().invoke(main.main, vote_given, env={"SENTINEL_DATABASE_URL": two.fixtures.url}).output


def test_several_decided_together_say_exactly_what_is_asked_of_people_and_keys(two: Two) -> None:
    """The finding: the line of a change had its resource and a digest; "bob becomes a viewer" and "an administrator" looked the same."""
    asked = [waiting(two.ask(act)) for act in ("role", "issue")]
    shown = two.bea.get("/ops/approvals/batch?" + "&".join(f"id={one}" for one in asked)).text
    for approval_id in asked:
        (request,) = two.fixtures.sql(
            "select request from sentinel.protected_changes where approval_id = %s", approval_id
        )[0]
        assert str(escape(change_text(request))) in shown
    assert shown.count("requested by ada@demo.local") == 2
    assert "<code>admin</code>" in shown and "<code>heartbeat</code>" in shown and "<code>a-b</code>" in shown


def test_whoever_made_a_key_of_an_agent_called_as_the_console_decides_what_others_ask(two: Two) -> None:
    """The finding: what is asked by the pages counted as asked by that key, and so by its owner, for good."""
    (bea,) = two.fixtures.sql("select operator_id from sentinel.operators where email = 'bea@demo.local'")[0]
    issue_key(two.fixtures.pool, two.fixtures.tenant_id, agent_id="console", owner_operator_id=bea)
    approve(two.fixtures, waiting(two.ask("role")), two.bea)
    assert two.fixtures.sql("select outcome from sentinel.protected_changes") == [("done",)]


@pytest.mark.parametrize("way", [shown_on_page, shown_in_batch, printed_by_command])
def test_who_approves_is_told_whether_it_was_done(two: Two, way: Callable[[Two, str], str]) -> None:
    fixtures, bob = two.fixtures, two.bob.operator_id
    asked = waiting(two.ask("role"))
    fixtures.sql("update sentinel.operators set role = 'approver' where operator_id = %s", bob)
    told = way(two, asked)
    assert NOT_DONE in told and "is done." not in told
    fixtures.sql("update sentinel.operators set role = 'viewer' where operator_id = %s", bob)
    told = way(two, waiting(two.ask("role")))
    assert "It is done." in told and "Nothing was changed" not in told
    told = way(two, waiting(two.ask("issue")))
    assert "It is done when the requester collects the password or key." in told


def test_a_program_that_approves_is_told_whether_it_was_done(two: Two) -> None:
    fixtures, person = two.fixtures, two.fixtures.sign_in("bea@demo.local", two.app)
    asked = waiting(two.ask("role"))
    assert "outcome" not in person.get(f"/ops/api/approvals/{asked}").json
    fixtures.sql("update sentinel.operators set role = 'approver' where operator_id = %s", two.bob.operator_id)
    outcome = {"outcome": "changed", "outcome_text": "this operator has another role by now; look again"}
    told = person.approve(asked).json
    assert told == {"result": "approved", "approvals_given": 1, "people_required": 1, **outcome}
    assert outcome.items() <= person.get(f"/ops/api/approvals/{asked}").json.items()
    key = waiting(two.ask("issue"))
    assert person.approve(key).json == {"result": "approved", "approvals_given": 1, "people_required": 1}
    assert two.ada.submit(f"/ops/approvals/{key}/collect").status_code == 201
    assert person.get(f"/ops/api/approvals/{key}").json["outcome"] == "done"


def test_what_an_administrator_asked_who_is_none_any_more_is_told_so(two: Two) -> None:
    fixtures, asked = two.fixtures, waiting(two.ask("reset-second-factor"))
    person = fixtures.sign_in("bea@demo.local", two.app)
    fixtures.sql("update sentinel.operators set role = 'viewer' where email = 'ada@demo.local'")
    told = person.approve(asked).json
    assert (told["outcome"], told["outcome_text"]) == ("role", "the requester is no longer an administrator")
    assert fixtures.sql("select count(*) from sentinel.second_factors") == [(1,)]


# What is asked is what is shown, to operators and to nobody else --------------------------------------------------------


def test_the_queue_shows_what_is_asked_exactly_and_without_a_secret(two: Two) -> None:
    fixtures = two.fixtures
    asked = waiting(two.ask("issue"))
    person = fixtures.sign_in("bea@demo.local", two.app)
    shown = person.get(f"/ops/api/approvals/{asked}").json
    assert shown["change_text"] == "New key for agent a-b with the scopes guard, heartbeat, without expiry"
    assert (shown["requested_by"], shown["action"], shown["required_role"], shown["offers"]) == (
        "ada@demo.local", "key.issue", "admin", ["approve", "reject"])  # fmt: skip
    assert (
        shown["change"]["params"]["scopes"] == ["guard", "heartbeat"]
        and shown["change"]["requested_by"] == "ada@demo.local"
    )
    assert sorted(shown["change"]["params"]) == ["agent_id", "key_id", "label", "scopes"]
    handled = person.post(
        f"/ops/api/approvals/{asked}/handled", {"reason": "x", "reference": "y", "digest": shown["digest"]}
    )
    assert handled.status_code == 409
    assert (
        person.post(f"/ops/api/approvals/{asked}/approve", {"reason": "x", "digest": "sha256:other"}).status_code == 409
    )
    assert "New key for agent a-b" in two.bea.get(f"/ops/approvals/{asked}").text
    told = CliRunner().invoke(main.main, ["approvals", "show", asked], env={"SENTINEL_DATABASE_URL": fixtures.url})
    assert "New key for agent a-b" in told.output and "requested by: ada@demo.local" in told.output
    events = fixtures.sql("select kind, body from sentinel.events where kind = 'change_asked'")
    assert [kind for kind, _ in events] == ["change_asked"] and shown["digest"] in events[0][1]


def test_a_stored_request_that_was_altered_is_not_done(two: Two) -> None:
    fixtures = two.fixtures
    asked = waiting(two.ask("issue"))
    approve(fixtures, asked, two.bea)
    fixtures.sql("update sentinel.protected_changes set request = replace(request, 'heartbeat', 'report')")
    assert two.ada.submit(f"/ops/approvals/{asked}/collect").status_code == 409
    assert "does not match the digest" in two.ada.get(f"/ops/approvals/{asked}").text


def test_no_agent_and_no_public_page_sees_what_administrators_ask(two: Two) -> None:
    from sentinel.authority.approvals import decided_since, find_approval

    fixtures, asked = two.fixtures, uuid.UUID(waiting(two.ask("role")))
    approve(fixtures, str(asked), two.bea)
    (start,) = fixtures.sql("select now() - interval '1 hour'")[0]
    assert decided_since(fixtures.authority.pool, fixtures.tenant_id, start, 100) == []
    row = find_approval(fixtures.authority.pool, fixtures.tenant_id, asked)
    assert row is not None and row.change
    fixtures.publish()
    assert fixtures.sql("select count(*) from sentinel.public_proofs") == [(0,)]
    assert "bob@" not in two.app.test_client().get("/ops/api/live/feed").get_data(as_text=True)
