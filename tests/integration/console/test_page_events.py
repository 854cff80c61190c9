"""The page of events: the whole log once, whatever the pages' size; filters; and a CSV that is inert and complete."""

from __future__ import annotations

import csv
import hashlib
import json
import re
import threading
import tracemalloc
import uuid
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from typing import Any

import pytest

from ops_console.pages import events as page
from ops_console.pages.events import BEGINS_FORMULA, COLUMNS, csv_lines, inert_json
from ops_console.read_models import events as store
from sentinel.authority.actor import local_administrator
from sentinel.authority.halts import lift_halt, set_halt
from sentinel.authority.housekeeping import run_housekeeping
from sentinel.authority.in_doubt import resolve_in_doubt
from sentinel.authority.policies import declare_policies, remember_policies
from sentinel.core.canonical import canonical_json
from sentinel.store.ids import new_id
from sentinel.store.migrate import SCHEMA, schema_text
from tests.integration.console.test_page_policies import words

# An agent of this name cannot come through the API; the log is read as if one had.
EVIL = '=HYPERLINK("http://x.example","here")<script>\u202e'
EVENT = "select sentinel.append_event(%s, %s, %s, null, %s, clock_timestamp(), jsonb_build_object('reason', %s::text))"


def shown(answer: Any) -> list[str]:
    """The hashes on a page, in its order."""
    return re.findall(r"<small>(sha256:[0-9a-f]{64})</small>", answer.get_data(as_text=True))


def older(answer: Any) -> str | None:
    found = re.search(r'class="older"><a[^>]* href="([^"]+)"', answer.get_data(as_text=True))
    return found[1].replace("&amp;", "&") if found else None


def walked(vic: Any, path: str) -> list[str]:
    """Every event of a filter, page by page."""
    found: list[str] = []
    following: str | None = path
    while following:
        answer = vic.get(following)
        assert answer.status_code == 200
        found += shown(answer)
        following = older(answer)
    return found


def test_every_kind_of_event_that_is_written_is_offered_to_choose_from() -> None:
    written = set(re.findall(r"(?:append_event|event_of)\(\s*[^;']*?'([a-z_]+)'", schema_text()))
    acts = re.findall(r"\bact (?:=|<>) '([a-z_]+)'", (SCHEMA / "authority" / "operators.sql").read_text())
    receivers = re.findall(r"'(webhook_[a-z_]+)'", (SCHEMA / "authority" / "event_endpoints.sql").read_text())
    assert len(written) > 20 and "confirmed" in acts and len(set(receivers)) == 4
    written |= {f"operator_{act}" for act in acts} | set(receivers)
    assert written - {"event", "approval_", "operator_"} - set(store.KINDS) == set()


@pytest.fixture
def log(fixtures: Any) -> Any:
    """Twelve events of ours, one that made the key, and one of somebody else's."""
    caller = fixtures.caller()
    for value in ("10.00", "20.00", "200.00"):
        fixtures.guard(value, caller)
    for number in range(8):
        kind = "halt_set" if number % 4 == 0 else "start"
        fixtures.sql(EVENT, fixtures.tenant_id, new_id(), kind, EVIL if number == 5 else "an-agent", EVIL)
    fixtures.sql(EVENT, fixtures.tenant("elsewhere"), new_id(), "halt_set", "an-agent", "not ours")
    return fixtures


def test_pages_of_any_size_show_every_event_of_the_tenant_once(log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    vic, ours = log.browser("vic", "viewer"), "select hash from sentinel.events where tenant_id = %s"
    every = [row[0] for row in log.sql(f"{ours} order by event_id desc", log.tenant_id)]
    assert len(every) == 12 and walked(vic, "/ops/events") == every
    first = vic.get("/ops/events")
    assert "not ours" not in first.get_data(as_text=True) and "<script>\u202e" not in first.get_data(as_text=True)
    assert "U+202E" in words(first) and "200.00 USD" in words(first) and "halt set" in words(first)
    halts = [row[0] for row in log.sql(f"{ours} and kind = 'halt_set' order by event_id desc", log.tenant_id)]
    starts = [
        row[0]
        for row in log.sql(f"{ours} and kind = 'start' and agent_id = 'an-agent' order by event_id desc", log.tenant_id)
    ]
    for size, looked in ((50, 20_000), (3, 20_000), (2, 3), (3, 2), (1, 1)):
        monkeypatch.setattr(page, "PAGE_SIZE", size)
        monkeypatch.setattr(store, "LOOKED_AT", looked)
        assert walked(vic, "/ops/events") == every, (size, looked)
        assert walked(vic, "/ops/events?kind=halt_set") == halts, (size, looked)
        assert walked(vic, "/ops/events?kind=start&agent=an-agent") == starts, (size, looked)


def test_a_filter_finds_by_operation_and_time_and_says_what_it_does_not_understand(log: Any) -> None:
    vic = log.browser("vic", "viewer")
    (operation_id,) = log.sql("select operation_id from sentinel.operations limit 1")[0]
    assert len(walked(vic, f"/ops/events?operation={operation_id}")) == 1
    assert walked(vic, "/ops/events?since=2000-01-01T00:00&until=2001-01-01T00:00") == []
    assert len(walked(vic, "/ops/events?since=2000-01-01T00:00&until=2199-01-01T00:00")) == 12
    for query in (
        "operation=7",
        "since=yesterday",
        "before=x",
        "kind=Halt%20Set",
        "agent=%F0%9F%92%A5",
        "until=0001-01-01",
    ):
        answer = vic.get(f"/ops/events?{query}")
        assert answer.status_code == 400 and "said refused" in answer.get_data(as_text=True), query
        assert vic.get(f"/ops/events/export.csv?{query}").status_code == 400


def test_the_export_is_complete_inert_and_proves_its_bodies(log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    log.publish()
    vic = log.browser("vic", "viewer")
    answer = vic.get("/ops/events/export.csv")
    assert re.fullmatch(
        r'attachment; filename="sentinel-events-\d{4}-\d\d-\d\d\.csv"', answer.headers["Content-Disposition"]
    )
    assert (
        answer.headers["Content-Type"].startswith("text/csv") and answer.headers["X-Content-Type-Options"] == "nosniff"
    )
    rows = list(csv.DictReader(StringIO(answer.get_data(as_text=True), newline=""), strict=True))
    assert len(rows) == 12 and tuple(rows[0]) == page.COLUMNS
    for row in rows:
        assert not [cell for cell in row.values() if cell[:1] in tuple("=+-@\t\r")], row
        assert "sha256:" + hashlib.sha256(row["body"].encode()).hexdigest() == row["hash"]
    assert {row["amount_minor"] for row in rows} == {"", "1000", "2000", "20000"}
    assert ("'" + EVIL) in {row["agent_id"] for row in rows}
    assert sorted(int(row["position"]) for row in rows) == list(range(1, 13))
    monkeypatch.setattr(page, "MOST_EXPORTED", 4)
    assert len(vic.get("/ops/events/export.csv").get_data(as_text=True).splitlines()) == 5
    halts = vic.get("/ops/events/export.csv?kind=halt_set").get_data(as_text=True)
    assert halts.count(',"halt_set",') == 2


STARTED = (
    "update sentinel.operation_states set status = 'started', started_at = clock_timestamp() - interval '1 hour',"
    " act_until = clock_timestamp() - interval '1 hour' where operation_id = %s"
)
AGENT = "retail-refund-agent"


def kinds_and_agents(answer: Any) -> list[tuple[str, str]]:
    """(kind, agent) of a file's events, sorted."""
    assert answer.status_code == 200
    rows = csv.DictReader(StringIO(answer.get_data(as_text=True), newline=""), strict=True)
    return sorted((row["kind"], row["agent_id"]) for row in rows)


def test_the_events_of_an_agent_have_its_doubts_with_their_ends_and_its_halts(fixtures: Any) -> None:
    abe = fixtures.operator("abe", "admin")
    operation_id = fixtures.guard("10.00").operation_id
    fixtures.sql(STARTED, operation_id)
    assert run_housekeeping(fixtures.authority.pool, 0).fell_in_doubt == 1
    resolve_in_doubt(fixtures.pool, abe, operation_id, executed=True, evidence="looked it up")
    for scope, target in (("agent", AGENT), ("agent_action", f"{AGENT} refund.create"), ("agent", "another")):
        halt = set_halt(fixtures.pool, abe, scope=scope, target=target, reason="a look")
        lift_halt(fixtures.pool, abe, halt.halt_id, reason="looked")
    told = ["key_created", "decision", "in_doubt", "in_doubt_resolved", *("halt_set", "halt_lifted") * 2]
    vic = fixtures.browser("vic", "viewer")
    assert kinds_and_agents(vic.get(f"/ops/events/export.csv?agent={AGENT}")) == sorted((kind, AGENT) for kind in told)
    bodies = fixtures.sql("select body::jsonb ->> 'agent_id', body::jsonb ->> 'action' from sentinel.events"
                          " where kind in ('in_doubt', 'in_doubt_resolved')")  # fmt: skip
    assert bodies == [(AGENT, "refund.create")] * 2


def test_an_event_whose_row_names_no_agent_is_found_by_that_of_its_operation_or_halt(fixtures: Any) -> None:
    operation_id = fixtures.guard("10.00").operation_id
    for kind, operation, body in (
        ("in_doubt", operation_id, {"reason": "no_report"}),
        ("in_doubt_resolved", operation_id, {"executed": True}),
        ("halt_lifted", None, {"scope": "agent", "target": AGENT}),
        ("halt_set", None, {"scope": "agent_action", "target": f"{AGENT} refund.create"}),
        ("halt_set", None, {"scope": "action", "target": AGENT}),
    ):
        fixtures.sql("select sentinel.append_event(%s, %s, %s, %s, null, clock_timestamp(), %s::jsonb)",
                     fixtures.tenant_id, new_id(), kind, operation, json.dumps(body))  # fmt: skip
    vic = fixtures.browser("vic", "viewer")
    told = ["key_created", "decision", "in_doubt", "in_doubt_resolved", "halt_lifted", "halt_set"]
    assert kinds_and_agents(vic.get(f"/ops/events/export.csv?agent={AGENT}")) == sorted((kind, AGENT) for kind in told)
    assert len(walked(vic, f"/ops/events?agent={AGENT}")) == len(told)
    assert ("halt_set", "") in kinds_and_agents(vic.get("/ops/events/export.csv"))


EVERY = "concerns=every+tenant"


def test_an_administrator_reads_what_concerns_every_tenant_on_the_page_and_in_the_file(fixtures: Any) -> None:
    declare_policies(fixtures.authority)
    kept = [
        (one.digest, one.policy.policy_id, one.policy.version, "{}")
        for one in fixtures.authority.policies.library.policies
    ]
    remember_policies(fixtures.authority.pool, kept[1:])
    machine = local_administrator(fixtures.tenant_id)
    halt = set_halt(fixtures.pool, machine, scope="global", reason="a drill")
    lift_halt(fixtures.pool, machine, halt.halt_id, reason="over")
    fixtures.guard("10.00")
    app = fixtures.app()
    abe, ann = fixtures.browser("abe", "admin", app), fixtures.browser("ann", "approver", app)
    hashes = "select hash from sentinel.events where tenant_id = %s order by event_id desc"
    every, ours = ([row[0] for row in fixtures.sql(hashes, owner)] for owner in (uuid.UUID(int=0), fixtures.tenant_id))
    assert len(every) == len(kept) + 3 and ours
    assert (walked(abe, f"/ops/events?{EVERY}"), walked(abe, "/ops/events")) == (every, ours)
    assert len(walked(abe, f"/ops/events?{EVERY}&kind=policy_in_force")) == len(kept)
    file = abe.get(f"/ops/events/export.csv?{EVERY}")
    kinds = sorted([*("policy_in_force",) * len(kept), "policies_withdrawn", "halt_set", "halt_lifted"])
    assert [kind for kind, _ in kinds_and_agents(file)] == kinds
    assert "sentinel-events-every-tenant-" in file.headers["Content-Disposition"]
    assert 'name="concerns"' in abe.get("/ops/events").text and 'name="concerns"' not in ann.get("/ops/events").text
    for path in ("/ops/events", "/ops/events/export.csv"):
        assert ann.get(f"{path}?{EVERY}").status_code == 403
        assert abe.get(f"{path}?concerns=elsewhere").status_code == 400
    assert f"/ops/events?{EVERY}&amp;kind=policy_in_force" in abe.get(f"/ops/policies/{kept[1][1]}").text


def test_the_file_of_every_tenant_is_continued_in_the_same_log(fixtures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    declare_policies(fixtures.authority)
    fixtures.guard("10.00")
    monkeypatch.setattr(page, "MOST_EXPORTED", 1)
    abe = fixtures.browser("abe", "admin")
    following: str | None = f"/ops/events/export.csv?{EVERY}"
    found: list[str] = []
    while following:
        answer = abe.get(following)
        found += file_of(answer)[0]
        link = re.fullmatch(r'<([^>]+)>; rel="next"', answer.headers.get("Link", ""))
        following = link[1] if link else None
    every = "select event_id::text from sentinel.events where tenant_id = %s order by event_id desc"
    assert found == [row[0] for row in fixtures.sql(every, uuid.UUID(int=0))] and len(found) > 1


def file_of(answer: Any) -> tuple[list[str], str | None]:
    """The ids of a file's events, and the one behind which its name says that the next file begins."""
    assert answer.status_code == 200
    rows = csv.DictReader(StringIO(answer.get_data(as_text=True), newline=""), strict=True)
    behind = re.search(r'-continues-behind-([0-9a-f-]{36})\.csv"$', answer.headers["Content-Disposition"])
    assert ("Link" in answer.headers) == (behind is not None)
    return [row["event_id"] for row in rows], behind[1] if behind else None


def test_files_that_continue_each_other_hold_every_event_once(log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    moment = "2026-05-04T12:00:00Z"
    for _ in range(6):
        log.sql(EVENT.replace("clock_timestamp()", f"'{moment}'"), log.tenant_id, new_id(), "start", "one-batch", "x")
    monkeypatch.setattr(page, "MOST_EXPORTED", 4)
    vic, agent = log.browser("vic", "viewer"), "select event_id::text from sentinel.events where agent_id = 'one-batch'"
    every = [row[0] for row in log.sql(f"{agent} order by event_id desc")]
    first, behind = file_of(vic.get("/ops/events/export.csv?agent=one-batch"))
    shown_behind = vic.get(f"/ops/events?agent=one-batch&behind={behind}")
    assert len(shown(shown_behind)) == 2
    export = re.search(r'<a href="([^"]+)">Download as CSV', shown_behind.get_data(as_text=True))
    assert export is not None, "a plain link: with `download` a browser saves the sign-in page under the file's link"
    second, ended = file_of(vic.get(export[1].replace("&amp;", "&")))
    assert (first + second, ended) == (every, None)
    following = re.fullmatch(
        r'<([^>]+)>; rel="next"', vic.get("/ops/events/export.csv?agent=one-batch").headers["Link"]
    )
    assert following is not None and file_of(vic.get(following[1])) == (second, None)
    assert vic.get("/ops/events/export.csv?behind=7").status_code == 400


def test_a_file_of_a_filter_that_fits_nothing_looks_through_a_bounded_part_of_the_log(
    log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(store, "LOOKED_AT", 2)
    monkeypatch.setattr(store, "MOST_PAGES", 3)
    real = store.events_page
    monkeypatch.setattr(store, "events_page", lambda *given, **named: asked.append(1) or real(*given, **named))
    vic = log.browser("vic", "viewer")
    found, behind = file_of(vic.get("/ops/events/export.csv?agent=nobody"))
    assert (found, len(asked)) == ([], 3) and behind is not None
    for _ in range(2):
        found, behind = file_of(vic.get(f"/ops/events/export.csv?agent=nobody&behind={behind}"))
    assert (found, behind, len(asked)) == ([], None, 7), "the files after it go on where it ended"


FORMULAS = (
    "x;=1+1;y",
    "; =1+1",
    ";\u200b=1",
    "a;-1",
    "a;;@x",
    "a;\uff1d1",
    "plain; text",
    ";",
    "a=b;c",
    'say ";=1"',
    ';"=1',
)


REASONS = """
set session_replication_role = replica;
insert into sentinel.event_rows (tenant_id, event_id, occurred_at, transaction_id, kind, hash, body)
select '{tenant_id}', ('01900000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid, clock_timestamp(), pg_current_xact_id(),
  'approval_vote', sha256(n::text::bytea), '{{"reason":"' || repeat('x', 2000) || case when n = 7 then '👍' else '' end || '"}}'
from generate_series(1, 2000) n
"""
"""2,000 long reasons, one with a character beyond the first 65,536."""


def test_an_emoji_in_a_reason_makes_no_file_take_many_times_its_size_in_memory(fixtures: Any) -> None:
    """The finding: eight times, which for a file of 20,000 such events is most of what a pod has."""
    vic = fixtures.browser("vic", "viewer")
    fixtures.sql(REASONS.format(tenant_id=fixtures.tenant_id))
    vic.get("/ops/events/export.csv?kind=halt_set")  # whatever is loaded by the first request
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        answer = vic.get("/ops/events/export.csv")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    size = len(answer.get_data())
    assert size > 4_000_000
    assert most - before < 4 * size


def test_of_many_files_that_are_asked_for_at_once_few_are_made(fixtures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The finding: each took its memory at once, so that some clicks on the link could end the console's process."""
    fixtures.guard("20.00")
    vic, begun, go_on, cells = fixtures.browser("vic", "viewer"), threading.Semaphore(0), threading.Event(), page._cells

    def slowly(row: Any) -> Any:
        begun.release()
        assert go_on.wait(90)
        return cells(row)

    monkeypatch.setattr(page, "_cells", slowly)
    with ThreadPoolExecutor(page.MOST_AT_ONCE) as threads:
        files = [threads.submit(vic.get, "/ops/events/export.csv") for _ in range(page.MOST_AT_ONCE)]
        try:
            assert all(begun.acquire(timeout=60) for _ in files)
            refused = vic.get("/ops/events/export.csv")
        finally:
            go_on.set()
    assert refused.status_code == 409 and "try again in a moment" in words(refused)
    assert [one.result().status_code for one in files] == [200] * page.MOST_AT_ONCE
    assert vic.get("/ops/events/export.csv").status_code == 200


def read_by_semicolons(cells: list[str]) -> list[str]:
    """The cells of a table that a spreadsheet begins where the semicolon is its list separator."""
    _, *lines = csv_lines(COLUMNS, [[1, cell] for cell in cells])
    return [cell for line in lines for cell in next(csv.reader([line.rstrip()], delimiter=";"))]


def acting(cells: Iterable[str]) -> list[str]:
    return [cell for cell in cells if cell[:1] in BEGINS_FORMULA or re.match(r"[\s\u200b]*[=+@\uff1d-]", cell)]


def test_no_text_begins_a_cell_that_acts_where_the_separator_is_a_semicolon(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = [canonical_json({"note": text, "by": "me"}) for text in FORMULAS]
    written = [inert_json(body) for body in bodies]
    assert acting(read_by_semicolons([*written, *FORMULAS])) == []
    assert [canonical_json(json.loads(body)) for body in written] == bodies, (
        "the event's JSON, of whose form the hash is"
    )
    assert [one == other for one, other in zip(written, bodies, strict=True)][-5:] == [True, True, True, False, True]
    # The mutant writes cells as they are.
    monkeypatch.setattr(page, "_separated", lambda text, instead: text)
    assert len(acting(read_by_semicolons([inert_json(body) for body in bodies]))) >= 6


def test_the_mutant_that_writes_cells_as_they_are_turns_red(log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ops_console.pages.events.inert", lambda cell: cell)
    text = log.browser("vic", "viewer").get("/ops/events/export.csv").get_data(as_text=True)
    assert [cell for row in csv.reader(StringIO(text, newline="")) for cell in row if cell.startswith("=")] == [EVIL]
