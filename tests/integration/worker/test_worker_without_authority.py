"""No answer is no permission: the ways an authority can fail, and that the worker finds back by itself (G18)."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from sentinel.store.database import WORKER
from tests.support.fake_authority import FakeAuthority
from tests.support.fake_faults import FAULTS, always
from tests.support.ledger_fixtures import LedgerFixtures, looping, new_row, wait_until, worker_settings
from tests.support.logins import program_url
from tests.support.ports import free_port
from worker.retail_refund_agent import main

CALLS = ("action/guard", "action/guard/start")


@pytest.mark.parametrize("fault", FAULTS)
def test_no_failing_answer_ever_leads_to_an_execution_and_the_row_recovers(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority, fault: str
) -> None:
    ledger_fixtures.add_with_orders(new_row("r"), new_row("second"))
    for call in CALLS:
        authority.misbehave = always(FAULTS[fault], call)
        with ledger_fixtures.agent(authority.url, guard_timeout_seconds=0.3) as agent:
            outcome = agent.run_once()
        assert ledger_fixtures.executions() == 0
        assert set(ledger_fixtures.states().values()) <= {"NEW", "GUARDING", "ALLOWED"}, errors(ledger_fixtures)
        assert outcome.failed
        assert ledger_fixtures.one("select last_error from refunds.ledger_entries")
        ledger_fixtures.make_due()
    authority.misbehave = lambda exchange: False
    with ledger_fixtures.agent(authority.url) as agent:
        assert not agent.run_once().failed
    assert set(ledger_fixtures.states().values()) == {"EXECUTED"}


@pytest.mark.parametrize("fault", FAULTS)
def test_where_the_start_comes_with_the_decision_no_failing_answer_leads_to_an_execution_either(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority, fault: str
) -> None:
    ledger_fixtures.add(new_row("r"), new_row("second"))
    authority.misbehave = always(FAULTS[fault], "action/guard")
    with ledger_fixtures.agent(authority.url, guard_timeout_seconds=0.3) as agent:
        assert agent.run_once().failed
    assert ledger_fixtures.executions() == 0
    # What may be started stays held; what surely is not waits as before.
    standing = ledger_fixtures.all("select distinct status, act_until is not null from refunds.ledger_entries")
    assert set(standing) <= {("GUARDING", True), ("NEW", False)}, errors(ledger_fixtures)
    stored = dict(
        ledger_fixtures.all("select 'refund:' || ledger_entry_id, start_id::text from refunds.ledger_entries")
    )
    ledger_fixtures.make_due()
    authority.misbehave = lambda exchange: False
    with ledger_fixtures.agent(authority.url) as agent:
        assert not agent.run_once().failed
    assert set(ledger_fixtures.states().values()) == {"EXECUTED"}
    assert {key: operation.start_id for key, operation in authority.operations.items()} == stored


@pytest.mark.parametrize("fault", FAULTS)
def test_switches_that_cannot_be_read_are_off(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority, fault: str
) -> None:
    ledger_fixtures.add(new_row("r"))
    authority.misbehave = always(FAULTS[fault], "switches")
    with ledger_fixtures.agent(authority.url, guard_timeout_seconds=0.3) as agent:
        agent.run_once()
    assert ledger_fixtures.executions() == 0
    assert ledger_fixtures.state("r") in ("NEW", "APPROVAL_REQUIRED")


def test_a_careless_worker_would_have_executed(authority: FakeAuthority) -> None:
    """The mutant: reading `decision` alone takes several of these answers for a permission."""
    import json
    import urllib.error
    import urllib.request

    allowed = {"ALLOW without a permit", "500"}
    believed: set[str] = set()
    for name, fault in FAULTS.items():
        if name == "hangs" or name.startswith("drips"):
            continue  # of a minute each there is no answer
        authority.misbehave = always(fault)
        request = urllib.request.Request(f"{authority.url}/api/sentinel/action/guard", b'{"resource": "refund/rf_1"}')
        try:
            text = urllib.request.urlopen(request, timeout=60 if name in allowed else 0.3).read()
        except urllib.error.HTTPError as error:
            text = error.read()
            error.close()
        except Exception:
            continue
        try:
            if json.loads(text)["decision"] == "ALLOW":
                believed.add(name)
        except (ValueError, KeyError, TypeError):
            continue
    assert allowed <= believed


def test_a_put_back_row_waits_before_it_is_tried_again(ledger_fixtures: LedgerFixtures) -> None:
    ledger_fixtures.add(new_row("r"))
    with ledger_fixtures.agent("http://127.0.0.1:9", backoff_seconds=600, backoff_max_seconds=600) as agent:
        agent.run_once()
    with ledger_fixtures.agent("http://127.0.0.1:9") as agent:
        assert agent.run_once().rows == []
    pause = ledger_fixtures.one(
        "select extract(epoch from next_attempt_at - clock_timestamp()) from refunds.ledger_entries"
    )
    assert 250 < pause <= 600


def test_an_outage_costs_no_attempt_is_shown_and_ends_by_itself(ledger_fixtures: LedgerFixtures) -> None:
    rows = 40
    ledger_fixtures.add(*(new_row(f"r{n}") for n in range(rows)))
    fake, port = FakeAuthority(), free_port()
    with (
        ledger_fixtures.agent(f"http://127.0.0.1:{port}", batch=10, max_attempts=4, backoff_max_seconds=0.5) as agent,
        looping(agent),
    ):
        wait_until(lambda: ("authority_unreachable",) in ledger_fixtures.all("select status from refunds.workers"))
        assert ledger_fixtures.one("select count(*) from refunds.ledger_entries where attempts = 0") >= rows - 2 * 10
        with fake.running(port):
            wait_until(lambda: ledger_fixtures.executions() == rows, 20)
    assert ledger_fixtures.one("select max(attempts) from refunds.ledger_entries") == 0


def test_a_start_without_an_answer_never_makes_the_row_new_again(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    ledger_fixtures.add_with_orders(new_row("r"))
    authority.misbehave = always(FAULTS["closes at once"], "action/guard/start")
    for _ in range(3):
        with ledger_fixtures.agent(authority.url) as agent:
            agent.run_once()
        ledger_fixtures.make_due()
    assert "action/guard/start" in authority.calls
    became = {status for (status,) in ledger_fixtures.all("select to_status from refunds.ledger_events")}
    assert "ALLOWED" in became and "NEW" not in became


def test_the_question_of_a_retry_is_the_first_one_even_if_the_facts_moved_on(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority
) -> None:
    ledger_fixtures.add(new_row("r", account_ref="acct"))
    authority.misbehave = always(FAULTS["500"], "action/guard")
    with ledger_fixtures.agent(authority.url) as agent:
        agent.run_once()
    first = ledger_fixtures.one("select guard_request from refunds.ledger_entries where ledger_entry_id = 'r'")
    ledger_fixtures.add(new_row("later", 42000, account_ref="acct"))
    authority.misbehave = lambda exchange: False
    ledger_fixtures.make_due()
    with ledger_fixtures.agent(authority.url) as agent:
        agent.run_once()
    assert authority.operations["refund:r"].body["params"] == first["params"]


def test_a_dry_run_changes_nothing_at_all(ledger_fixtures: LedgerFixtures, authority: FakeAuthority) -> None:
    from sentinel.client import Client
    from worker.refunds.build import open_simulator

    ledger_fixtures.add(new_row("low"), new_row("mid", 42000))
    before = snapshot(ledger_fixtures)
    settings = worker_settings(authority_url=authority.url)
    with (
        Client(authority.url, "key", agent_id="a") as client,
        open_simulator(settings, ledger_fixtures.ledger, client) as seer,
    ):
        found = {row.ledger_entry_id: row.decision for row in seer.simulate_due(10)}
    assert found == {"low": "ALLOW", "mid": "APPROVAL_REQUIRED"}
    assert snapshot(ledger_fixtures) == before
    assert set(authority.calls) == {"switches", "action/check"}


def test_a_dry_run_leaves_out_a_row_whose_facts_cannot_be_read(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sentinel.client import Client
    from worker.refunds.build import open_simulator

    ledger_fixtures.add(new_row("low"), new_row("mid", 42000))
    ledger, real = ledger_fixtures.ledger, ledger_fixtures.ledger.facts
    monkeypatch.setattr(ledger, "facts", lambda ids: {one: facts for one, facts in real(ids).items() if one != "mid"})
    with (
        Client(authority.url, "key", agent_id="a") as client,
        open_simulator(worker_settings(authority_url=authority.url), ledger, client) as seer,
    ):
        assert {row.ledger_entry_id: row.decision for row in seer.simulate_due(10)} == {"low": "ALLOW"}


def test_a_dry_run_says_which_rows_it_does_not_show(
    ledger_fixtures: LedgerFixtures, authority: FakeAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger_fixtures.add(new_row("lapsed"), new_row("lapsed-too"), new_row("held", agent_id="another"))
    assert len(ledger_fixtures.ledger.claim(10)) == 3
    ledger_fixtures.make_due()
    ledger_fixtures.admin.execute(
        "update refunds.ledger_entries set lease_until = clock_timestamp() + interval '1 hour' where agent_id = 'another'"
    )
    ledger_fixtures.add(*(new_row(name) for name in "abc"))
    monkeypatch.setenv("WORKER_DATABASE_URL", program_url(ledger_fixtures.url, WORKER))
    monkeypatch.setenv("SENTINEL_REFUND_AGENT_API_KEY", "key")
    monkeypatch.setenv("SENTINEL_URL", authority.url)

    def dry_run(limit: int, *words: str) -> Result:
        done = CliRunner().invoke(main, ["--dry-run", "--limit", str(limit), *words])
        assert done.exit_code == 0, done.output
        return done

    too_many = CliRunner().invoke(main, ["--dry-run", "--limit", str(2**63 - 1)])
    assert too_many.exit_code == 2 and "is not in the range" in too_many.stderr
    assert dry_run(1_000_000_000).exit_code == 0

    more = "There are more than these 2; --limit shows more."
    lapsed = "2 rows whose claim has expired are processed first and are not shown."
    for limit, shown, is_more in ((2, ["a", "b"], True), (3, ["a", "b", "c"], False)):
        for words in ((), ("--json",)):
            done = dry_run(limit, *words)
            assert ((more in done.stderr), (lapsed in done.stderr)) == (is_more, True), done.stderr
        found = json.loads(done.stdout)
        assert [row["ledger_entry_id"] for row in found["rows"]] == shown
        assert (found["more"], found["lapsed"]) == (is_more, 2)


def snapshot(fixtures: LedgerFixtures) -> list[object]:
    """Everything in the refunds schema, with the system columns that any write would change."""
    tables = [
        name for (name,) in fixtures.all("select tablename from pg_tables where schemaname = 'refunds' order by 1")
    ]
    return [fixtures.all(f"select xmin::text, ctid::text, t::text from refunds.{name} t order by 2") for name in tables]


def errors(fixtures: LedgerFixtures) -> list[tuple[object, ...]]:
    """What the rows say about themselves."""
    return fixtures.all("select ledger_entry_id, status, attempts, last_error from refunds.ledger_entries")
