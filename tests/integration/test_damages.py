"""The doctor sees damage: each of a table of damages is named with the id of what is damaged, and a sound fixtures with nothing."""

from __future__ import annotations

import json
import shutil
import time
import tracemalloc
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from psycopg import sql

from sentinel.authority import checkpointer
from sentinel.authority.checkpointer import DIFFERENCES_KEPT, Checkpointer, compare_checkpoints
from sentinel.authority.checkpoints import Checkpoint, CheckpointBroken, CheckpointEntry, CheckpointFile, read_line
from sentinel.authority.halts import set_halt
from sentinel.authority.keys import issue_key, revoke_key, rotate_key
from sentinel.cli.main import main
from sentinel.cli.scratch import listening
from sentinel.core.errors import EngineUnavailable
from sentinel.core.merkle import TreeHead
from sentinel.platform.resources import invariants_sql, policies_dir
from sentinel.store.database import AUTHORITY, CONSOLE
from sentinel.store.invariants import Invariant, check_invariant, limit_statements, read_invariants, run_invariants
from sentinel.store.safety import PROTECTING, safety_faults
from tests.support.damages import BEYOND, DAMAGES, NEWEST, SEVENTEEN, SIX, Damage, rewritten
from tests.support.fixtures import Fixtures, add_tenant, guard_body, unique
from tests.support.harness import actor, decide
from tests.support.kept_databases import KeptDatabases
from tests.support.ledger_fixtures import LedgerFixtures
from tests.support.logins import make_login
from tests.support.workflow_fixtures import BRANCHES, Shop

RETAIL = BRANCHES["retail/standard"]
INVARIANTS = read_invariants(invariants_sql())


class Honest:
    """A set of fixtures in which every kind of thing is there once, as it should be, and its checkpoints."""

    def __init__(self, fixtures: Fixtures, folder: Path) -> None:
        self.fixtures, self.file = fixtures, folder / "checkpoints.jsonl"
        ledger = LedgerFixtures(fixtures.url, fixtures.tenant_id)
        with listening(fixtures.app) as url:
            shop = Shop(ledger, url, fixtures.key)
            shop.enter(RETAIL, "paid", value=400)
            shop.enter(RETAIL, "asked", value=42_000)
            shop.enter(RETAIL, "waits", value=43_000)
            shop.run()
            decide(
                fixtures, fixtures.one("select approval_id from refunds.ledger_entries where ledger_entry_id = 'asked'")
            )
            shop.run(2)
            assert {shop.stands("paid")[0], shop.stands("asked")[0]} == {"EXECUTED"}
        ledger.close()
        live = guard_body(value=3)
        started = guard_body(value=3)
        denied = guard_body(params={"risk": {"duplicate_refund": True, "stale_window": False, "suspicious_reason": False, "customer_attempts_24h": 1}})  # fmt: skip
        allowed = [fixtures.guard(body) for body in (live, started)]
        assert fixtures.start(started, allowed[1]).status_code == 200
        assert fixtures.guard(denied)["decision"] == "DENY"
        self.added = fixtures.one(
            "select a.id from (select gen_random_uuid() as id) a where sentinel.add_operator(%s, a.id, 'added@x.example', 'x', 'approver',"
            " false, null, 'the machine', gen_random_uuid()) = 'added'", fixtures.tenant_id)  # fmt: skip
        self.deactivated = fixtures.one(
            "select a.id from (select gen_random_uuid() as id) a where sentinel.add_operator(%s, a.id, 'gone@x.example', 'x', 'admin',"
            " false, null, 'the machine', gen_random_uuid()) = 'added'", fixtures.tenant_id)  # fmt: skip
        fixtures.one(
            "select sentinel.change_operator(%s, %s, 'deactivated', null, null, null, 'the machine', gen_random_uuid())",
            fixtures.tenant_id, self.deactivated,
        )  # fmt: skip
        self._issue_keys()
        fixtures.one(
            "select sentinel.turn_switch_on(%s, 'retail.quality', null, null, 5, 10, 'the machine', 'a tenth at most', gen_random_uuid())",
            fixtures.tenant_id,
        )  # fmt: skip
        fixtures.one(
            "select sentinel.add_endpoint(%s, jsonb_build_object('endpoint_id', gen_random_uuid(), 'url', 'https://siem.example',"
            " 'event_types', array['halt']), 'the machine', gen_random_uuid())", fixtures.tenant_id)  # fmt: skip
        fixtures.one(
            "select sentinel.disable_gone_endpoint(tenant_id, endpoint_id, gen_random_uuid()) from sentinel.event_endpoints"
        )
        set_halt(
            fixtures.console_pool, actor(fixtures, "admin"), scope="agent", target="nobody", reason="the newest event"
        )
        fixtures.run_housekeeping()
        self.names = self._names(live["idempotency_key"], started["idempotency_key"], denied["idempotency_key"])

    def _issue_keys(self) -> None:
        """A key that is revoked, and one that runs out because it was rotated."""
        pool, tenant = self.fixtures.console_pool, self.fixtures.tenant_id
        self.revoked, old = (issue_key(pool, tenant, agent_id="an-agent").key_id for _ in range(2))
        revoke_key(pool, tenant, self.revoked)
        rotate_key(pool, tenant, old, expires_days=30)
        self.rotated = old

    def _names(self, live: str, started: str, denied: str) -> dict[str, Any]:
        one = self.fixtures.one
        of = "select s.{} from sentinel.operations o join sentinel.operation_states s using (tenant_id, operation_id) where idempotency_key = %s"
        paid = one("select operation_id from refunds.executions where ledger_entry_id = 'paid'")
        return {
            "tenant": self.fixtures.tenant_id, "viewer": self.fixtures.operators["viewer"], "admin": self.fixtures.operators["admin"], "added": self.added,
            "deactivated": self.deactivated, "revoked_key": self.revoked, "rotated_key": self.rotated,
            "webhook": one("select endpoint_id from sentinel.event_endpoints where kind = 'webhook'"),
            "halt": one("select halt_id from sentinel.halts where target = 'nobody'"),
            "paid": paid, "paid_event": one("select decision_event_id from sentinel.operation_states where operation_id = %s", paid),
            "execution": one("select execution_id from refunds.executions where ledger_entry_id = 'paid'"),
            "live": one(of.format("operation_id"), live), "live_permit": one(of.format("permit_id"), live),
            "other_start": one(of.format("start_id"), started),
            "denied": one(of.format("operation_id"), denied), "denied_event": one(of.format("decision_event_id"), denied),
            "approval": one("select approval_id from refunds.ledger_entries where ledger_entry_id = 'asked'"),
            "open_approval": one("select approval_id from refunds.ledger_entries where ledger_entry_id = 'waits'"),
            "limit_key": one("select min(policy_id || '/' || limits[1] || '|' || subject) from sentinel.budgets where held[1] > 0"),
            "newest": one("select event_id from sentinel.feed order by position desc limit 1"),
        }  # fmt: skip

    def put(self, damage: Damage) -> None:
        """Do it."""
        for name, value in self.names.items():
            assert value is not None, name
        self.fixtures.admin.execute(self.filled(damage.sql).encode())

    def filled(self, text: str) -> str:
        """A text of the table with the ids of this fixtures."""
        for name, value in self.names.items():
            text = text.replace("{" + name + "}", str(value))
        return text

    def named(self, check: str | None = None) -> dict[str, str]:
        """What the doctor's checks say now, by check, or only this one, within a transaction."""
        asked = [one for one in INVARIANTS if check in (None, one.name)]
        verdicts = [check_invariant(self.fixtures.admin, one) for one in asked]
        found = {one.name: one.summary for one in verdicts if one.violations}
        if check not in (None, "checkpoints"):
            return found
        differences = compare_checkpoints(self.fixtures.admin, self.file).differences
        return found | ({"checkpoints": ", ".join(differences)} if differences else {})


@pytest.fixture
def honest(fixtures: Fixtures, tmp_path: Path) -> Honest:
    made = Honest(fixtures, tmp_path)
    assert sum(len(one.entries) for one in CheckpointFile(made.file).append(fixtures.authority.pool)) > 10
    return made


def checkpoints_of(file: Path) -> list[Checkpoint]:
    """Every checkpoint of a file, in order."""
    with file.open("rb") as lines:
        return [found for line in lines if (found := read_line(line)) is not None]


@contextmanager
def undone(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """A transaction that is taken back, in which no trigger fires and no foreign key is looked at."""
    connection.execute("begin")
    try:
        connection.execute("set local session_replication_role = replica")
        yield
    finally:
        connection.execute("rollback")


def test_each_damage_is_named_with_the_id_of_what_is_damaged(honest: Honest) -> None:
    with undone(honest.fixtures.admin):
        assert honest.named() == {}, "a sound fixtures"
    unseen = {}
    for damage in DAMAGES:
        with undone(honest.fixtures.admin):
            honest.put(damage)
            # The others are asked only where it is not named: ninety statements, planned anew for each damage.
            if honest.filled(damage.names) not in honest.named(damage.check).get(damage.check, ""):
                unseen[damage.name] = honest.named()
    print(
        f"{len(SEVENTEEN) + len(SIX)} damages and {len(BEYOND)} more, {len(DAMAGES) - len(unseen)} named with their id"
    )
    assert unseen == {}
    assert honest.fixtures.broken_invariants() == []


def test_an_event_that_is_touched_at_any_position_is_located(honest: Honest) -> None:
    """Rewritten with its hash, or deleted with its position; a mutant that compares numbers sees no rewriting."""
    fixtures = honest.fixtures
    events = [
        event for (event,) in fixtures.admin.execute("select event_id from sentinel.feed order by position").fetchall()
    ]
    seen = by_numbers = 0
    for event in events:
        for touch in (rewritten("newest", "}$", ',"more":1}'), NEWEST):
            with undone(fixtures.admin):
                fixtures.admin.execute(touch.replace("{newest}", str(event)).encode())
                differences = compare_checkpoints(fixtures.admin, honest.file).differences
                seen += len(differences) == 1 and differences[0].startswith(f"event {event} ")
                by_numbers += fixtures.one("select count(*) from sentinel.feed") != len(events)
    print(f"{2 * len(events)} events touched, {seen} located")
    assert (seen, by_numbers) == (2 * len(events), len(events))


def test_the_command_says_it_and_ends_with_1(honest: Honest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENTINEL_DATABASE_URL", honest.fixtures.url)
    sound = CliRunner().invoke(main, ["doctor", "--checkpoint", str(honest.file)])
    assert sound.exit_code == 0, sound.output
    assert "all well" in sound.output and "not checked" not in sound.output
    honest.fixtures.admin.execute("set session_replication_role = replica")
    for damage in (SEVENTEEN[0], SEVENTEEN[12], SEVENTEEN[14]):
        honest.put(damage)
    done = CliRunner().invoke(main, ["doctor", "--json", "--checkpoint", str(honest.file)])
    assert done.exit_code == 1
    bad = {one["name"]: one for one in json.loads(done.stdout) if not one["ok"]}
    for damage in (SEVENTEEN[0], SEVENTEEN[12], SEVENTEEN[14]):
        assert any(honest.filled(damage.names) in one for one in bad[damage.check]["damaged"]), damage.name
    without = CliRunner().invoke(main, ["doctor"])
    assert "checkpoints: not checked, without a checkpoint file nobody can tell" in without.output


@pytest.mark.parametrize("role", [AUTHORITY, CONSOLE, "sentinel_worker"])
def test_any_program_s_own_login_will_do(honest: Honest, monkeypatch: pytest.MonkeyPatch, role: str) -> None:
    login = f"login_{uuid.uuid4().hex[:8]}"
    admin = honest.fixtures.admin
    url = make_login(honest.fixtures.url, login, f"in role {role}")
    try:
        monkeypatch.setenv("SENTINEL_DATABASE_URL", url)
        done = CliRunner().invoke(main, ["doctor", "--json", "--checkpoint", str(honest.file)])
        assert done.exit_code == 0, done.output
        checks = {one["name"]: one for one in json.loads(done.stdout)}
        assert all(one["ok"] for one in checks.values())
        unchecked = {name for name, one in checks.items() if not one["checked"]}
        assert (unchecked == set()) == (role == CONSOLE)
        assert ("held_differs" in unchecked) == (role == "sentinel_worker")
        assert all("permission denied" in checks[name]["detail"] for name in unchecked)
    finally:
        admin.execute(sql.SQL("drop role {}").format(sql.Identifier(login)))


def test_the_console_may_ask_every_invariant(honest: Honest) -> None:
    with honest.fixtures.as_role(CONSOLE) as connection:
        verdicts = run_invariants(connection, invariants_sql())
    assert [one.name for one in verdicts if one.unchecked or one.violations] == []


def test_a_ledger_whose_authority_is_elsewhere_is_not_compared_with_it(honest: Honest) -> None:
    with undone(honest.fixtures.admin):
        for table in ("operation_rows", "operation_states", "event_rows", "feed", "feed_heads", "budgets", "usage_parts", "velocity", "approvals", "approval_votes", "halts", "switches", "agent_keys", "event_endpoints"):  # fmt: skip
            honest.fixtures.admin.execute(f"delete from sentinel.{table}".encode())
        verdicts = [check_invariant(honest.fixtures.admin, one) for one in read_invariants(invariants_sql())]
    assert [one.name for one in verdicts if one.violations] == []
    assert {"executions_without_start", "execution_of_another"} <= {one.name for one in verdicts if one.unchecked}


def test_an_invariant_that_only_counts_is_refused(fixtures: Fixtures) -> None:
    with undone(fixtures.admin), pytest.raises(ValueError, match="must return the ids"):
        check_invariant(fixtures.admin, Invariant("one", "a sentence", "select count(*) from sentinel.operations"))


def test_what_cannot_even_be_read_is_a_violation_and_not_an_end(honest: Honest) -> None:
    with undone(honest.fixtures.admin):
        honest.fixtures.admin.execute("update sentinel.operation_rows set request = 'no JSON', digest = sha256('no JSON')")  # fmt: skip
        said = honest.named()
    assert "invalid input syntax for type json" in said["request_differs"]
    assert str(honest.names["paid"]) in said["request_altered"]


def test_no_role_of_a_program_can_write_the_file(fixtures: Fixtures) -> None:
    """Files of the server are for superusers and those who were given `pg_write_server_files`: none of ours is."""
    query = "select rolname from pg_roles where (rolname like 'sentinel%%' and not rolsuper or rolname = 'board_reader') and pg_has_role(rolname, 'pg_write_server_files', 'member')"
    assert fixtures.admin.execute(query.encode()).fetchall() == []


def test_a_checkpoint_goes_on_where_the_last_ended_in_any_process(honest: Honest) -> None:
    fixtures = honest.fixtures
    for number in range(3):
        fixtures.guard(value=1)
        fixtures.run_housekeeping()
        assert CheckpointFile(honest.file).append(fixtures.authority.pool), f"another process, {number}"
    assert CheckpointFile(honest.file).append(fixtures.authority.pool) == [], "nothing is new"
    known = checkpoints_of(honest.file)
    rows = fixtures.admin.execute(
        "select f.tenant_id, e.hash from sentinel.feed f join sentinel.events e using (tenant_id, event_id) order by position"
    ).fetchall()
    newest = [one for one in known if one.tenant_id == fixtures.tenant_id][-1]
    hashes = [hash for tenant, hash in rows if tenant == fixtures.tenant_id]
    assert newest.root == TreeHead().extended(one.encode() for one in hashes).root.hex()
    assert compare_checkpoints(fixtures.admin, honest.file).covered == len(rows)


def test_of_several_tenants_each_goes_on_from_its_own_newest_line(honest: Honest) -> None:
    """Every process reads the lines of the others between those that it writes."""
    fixtures, others = honest.fixtures, [add_tenant(honest.fixtures.url, f"other-{number}")[0] for number in range(4)]
    for _ in range(3):
        for tenant_id in (fixtures.tenant_id, *others):
            fixtures.admin.execute(
                "select sentinel.append_event(%s, gen_random_uuid(), 'drill', null, null, clock_timestamp(), '{}')",
                [tenant_id],
            )
        fixtures.run_housekeeping()
        written = CheckpointFile(honest.file).append(fixtures.authority.pool)
        assert {fixtures.tenant_id, *others} <= {one.tenant_id for one in written}
    compared = compare_checkpoints(fixtures.admin, honest.file)
    assert (compared.differences, compared.covered) == ((), fixtures.one("select count(*) from sentinel.feed"))


def test_a_new_file_is_written_in_portions_between_which_the_house_is_kept(
    honest: Honest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sentinel.authority.checkpoints.AT_ONCE", 3)
    monkeypatch.setattr("sentinel.authority.checkpointer.ROUND_SECONDS", 0.0)
    file, known = tmp_path / "new.jsonl", checkpoints_of(honest.file)
    checkpointer, events = Checkpointer(file), sum(len(one.entries) for one in known)
    portions, covered = 0, 0
    while covered < events:
        checkpointer.round(honest.fixtures.authority.pool)
        portions, before, covered = portions + 1, covered, compare_checkpoints(honest.fixtures.admin, file).covered
        assert covered - before in (1, 2, 3), "one portion, and the next one is due at once"
    assert portions > 3
    assert {one.tenant_id: one.head for one in checkpoints_of(file)} == {one.tenant_id: one.head for one in known}
    checkpointer.round(honest.fixtures.authority.pool)
    honest.fixtures.guard(value=1)
    honest.fixtures.run_housekeeping()
    size = file.stat().st_size
    checkpointer.round(honest.fixtures.authority.pool)
    assert file.stat().st_size == size, "now a minute is waited for"


def test_in_portions_no_tenant_waits_for_another_that_is_never_done(
    honest: Honest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sentinel.authority.checkpoints.AT_ONCE", 3)
    fixtures, other = honest.fixtures, add_tenant(honest.fixtures.url, "other-tenant")[0]
    file = CheckpointFile(tmp_path / "new.jsonl")
    written: list[uuid.UUID] = []
    for _ in range(12):
        for _ in range(3):
            fixtures.guard(value=1)
        fixtures.run_housekeeping()
        written += [one.tenant_id for one in file.append(fixtures.authority.pool, seconds=0)]
    assert fixtures.tenant_id < other and {fixtures.tenant_id, other} <= set(written)


def test_a_machine_of_its_own_keeps_checkpoints_by_the_command(
    honest: Honest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SENTINEL_DATABASE_URL", honest.fixtures.url)
    file = tmp_path / "elsewhere" / "kept.jsonl"
    command = ["checkpoint", "--json", "--file", str(file)]
    known = sum(len(one.entries) for one in checkpoints_of(honest.file))
    assert [json.loads(CliRunner().invoke(main, command).stdout)["events"] for _ in range(2)] == [known, 0]
    assert file.read_bytes() == honest.file.read_bytes()
    honest.fixtures.admin.execute("set session_replication_role = replica")
    honest.put(next(one for one in BEYOND if "count set back" in one.name))
    assert CliRunner().invoke(main, command).exit_code == 1


def test_a_line_cut_off_by_a_crash_is_passed_over(honest: Honest) -> None:
    with honest.file.open("ab") as file:
        file.write(b'{"tenant_id":"01')
    honest.fixtures.guard(value=1)
    honest.fixtures.run_housekeeping()
    assert len(CheckpointFile(honest.file).append(honest.fixtures.authority.pool)) == 1
    assert compare_checkpoints(honest.fixtures.admin, honest.file).differences == ()


def test_a_line_cut_off_stays_apart_from_the_next_one_also_where_the_database_was_away_meanwhile(
    honest: Honest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise EngineUnavailable("away")

    file, pool = CheckpointFile(honest.file), honest.fixtures.authority.pool
    with honest.file.open("ab") as cut_off:
        cut_off.write(b'{"tenant_id":"01')
    with monkeypatch.context() as patch:
        patch.setattr("sentinel.authority.checkpoints.call_with_retry", away)
        with pytest.raises(EngineUnavailable):
            file.append(pool)
    honest.fixtures.guard(value=1)
    honest.fixtures.run_housekeeping()
    assert len(file.append(pool)) == 1
    assert compare_checkpoints(honest.fixtures.admin, honest.file).differences == ()


def test_a_file_that_another_process_began_anew_is_read_from_its_beginning(honest: Honest) -> None:
    """It was moved aside, and has grown past the length of the old one before this process looks at it again."""
    fixtures, pool = honest.fixtures, honest.fixtures.authority.pool
    here, another = CheckpointFile(honest.file), CheckpointFile(honest.file)
    assert (here.append(pool), another.append(pool)) == ([], [])
    honest.file.rename(honest.file.with_suffix(".aside"))
    for file in (another, here):
        fixtures.guard(value=1)
        fixtures.run_housekeeping()
        assert file.append(pool)
    assert honest.file.stat().st_size > honest.file.with_suffix(".aside").stat().st_size
    compared = compare_checkpoints(fixtures.admin, honest.file)
    assert (compared.differences, compared.covered) == ((), fixtures.one("select count(*) from sentinel.feed"))


def test_of_a_file_that_has_grown_each_tenants_newest_line_alone_is_read_with_its_events(
    honest: Honest, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, read = honest.file.read_bytes(), list[bytes]()
    gone = Checkpoint(uuid.uuid4(), TreeHead(1), "", (CheckpointEntry(uuid.uuid4(), "0" * 16),)).line()
    honest.file.write_bytes(gone * 500 + lines + gone * 500)
    honest.fixtures.guard(value=1)
    honest.fixtures.run_housekeeping()

    def counted(line: bytes) -> Checkpoint | None:
        read.append(line)
        return read_line(line)

    monkeypatch.setattr("sentinel.authority.checkpoints.read_line", counted)
    file, pool = CheckpointFile(honest.file), honest.fixtures.authority.pool
    written: list[Checkpoint] = []
    portions = 0
    while not written or file.is_behind:
        portions += not read
        written += file.append(pool, seconds=0)
    assert portions > 1000, "a line at a time, between which the house is kept"
    assert len(read) <= honest.fixtures.one("select count(*) from sentinel.feed_heads")
    assert [one.tenant_id for one in written] == [honest.fixtures.tenant_id]
    assert written[-1].head.size == honest.fixtures.one(
        "select position from sentinel.feed_heads where tenant_id = %s", honest.fixtures.tenant_id
    )
    honest.file.write_bytes(lines + written[-1].line())
    assert compare_checkpoints(honest.fixtures.admin, honest.file).differences == ()


def test_a_checkpoint_file_is_compared_in_memory_that_does_not_grow_with_it(fixtures: Fixtures, tmp_path: Path) -> None:
    """Of a tenant that is gone with its events: each of them is counted, the first are named."""
    lines, at_once, file, gone = 100, 250, tmp_path / "long.jsonl", uuid.uuid4()
    with file.open("wb") as written:
        for line in range(1, lines + 1):
            entries = tuple(CheckpointEntry(uuid.uuid4(), "0" * 16) for _ in range(at_once))
            written.write(Checkpoint(gone, TreeHead(line * at_once), "", entries).line())
    tracemalloc.start()
    try:
        found = compare_checkpoints(fixtures.admin, file)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (found.found, found.covered) == (lines * at_once, lines * at_once)
    assert 0 < len(found.differences) <= DIFFERENCES_KEPT
    assert all(text.startswith("event ") and str(gone) in text for text in found.differences)
    assert peak < 1_000_000 < file.stat().st_size, f"{peak} bytes for a file of {file.stat().st_size}"


def test_a_long_checkpoint_file_is_read_without_a_statement_for_longer_than_a_program_s_transaction_may_rest(
    fixtures: Fixtures, tmp_path: Path
) -> None:
    """The server ended the session meanwhile, and the doctor said that the database cannot be used."""
    lines, at_once, file, gone = 300, 1000, tmp_path / "long.jsonl", uuid.uuid4()
    entries = tuple(CheckpointEntry(uuid.uuid4(), "0" * 16) for _ in range(at_once))
    with file.open("wb") as written:
        for line in range(1, lines + 1):
            written.write(Checkpoint(gone, TreeHead(line * at_once), "", entries).line())
    with psycopg.connect(fixtures.url, autocommit=True) as connection:
        connection.execute("set idle_in_transaction_session_timeout = '200ms'")
        with connection.transaction():
            limit_statements(connection, 5)
            began = time.monotonic()
            assert compare_checkpoints(connection, file).found == lines * at_once
            print(f"{time.monotonic() - began:.1f} s")


def test_nothing_is_built_on_evidence_that_differs_from_its_checkpoint(honest: Honest, caplog: Any) -> None:
    fixtures, size = honest.fixtures, honest.file.stat().st_size
    fixtures.admin.execute("set session_replication_role = replica")
    honest.put(next(one for one in BEYOND if "count set back" in one.name))
    fixtures.guard(value=1)
    fixtures.run_housekeeping()
    with pytest.raises(CheckpointBroken, match=str(honest.names["newest"])):
        CheckpointFile(honest.file).append(fixtures.authority.pool)
    failures: list[int] = []
    Checkpointer(honest.file, count_failure=lambda: failures.append(1)).round(fixtures.authority.pool)
    assert failures == [1], "the log says so, it is counted, and the house is kept on"
    assert honest.file.stat().st_size == size
    assert compare_checkpoints(fixtures.admin, honest.file).differences == (
        f"event {honest.names['newest']} is gone, position {checkpoints_of(honest.file)[-1].head.size} of tenant {fixtures.tenant_id}",
    )


def test_a_log_that_differs_holds_back_no_other_tenant_that_is_behind(
    honest: Honest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one tenant's log differed, the others together got one short round a minute."""
    monkeypatch.setattr("sentinel.authority.checkpoints.AT_ONCE", 3)
    monkeypatch.setattr("sentinel.authority.checkpointer.ROUND_SECONDS", 0.0)
    fixtures, pool = honest.fixtures, honest.fixtures.authority.pool
    other = add_tenant(fixtures.url, "other-tenant")[0]
    assert fixtures.tenant_id < other
    for _ in range(12):
        fixtures.admin.execute(
            "select sentinel.append_event(%s, gen_random_uuid(), 'drill', null, null, clock_timestamp(), '{}')", [other]
        )
    fixtures.run_housekeeping()
    head = fixtures.one("select position from sentinel.feed_heads where tenant_id = %s", other)
    fixtures.admin.execute("set session_replication_role = replica")
    honest.put(next(one for one in BEYOND if "count set back" in one.name))
    told: list[str] = []
    monkeypatch.setattr(checkpointer.log, "error", lambda event, cause: told.append(cause), raising=False)
    failures: list[int] = []
    kept = Checkpointer(honest.file, count_failure=lambda: failures.append(1))
    for _ in range(20):
        kept.round(pool)
    assert [one.head.size for one in checkpoints_of(honest.file) if one.tenant_id == other][-1:] == [head]
    assert failures == [1], "the next minute has not come"
    kept._due = 0.0
    for _ in range(20):
        kept.round(pool)
    assert (failures, len(told)) == ([1, 1], 1), "counted each minute, logged once"


def test_every_trigger_of_the_schemas_is_looked_for(fixtures: Fixtures) -> None:
    found = fixtures.admin.execute(
        "select t.tgrelid::regclass::text, string_agg(t.tgname, ' ' order by t.tgname::text) from pg_trigger t where not t.tgisinternal group by 1"
    ).fetchall()
    assert dict(found) == PROTECTING


@pytest.fixture(scope="session")
def altered(kept_databases: KeptDatabases, migrated_template: str) -> Iterator[psycopg.Connection[Any]]:
    """A database whose triggers tests switch off, each in a transaction that it takes back."""
    with (
        kept_databases.copy_of(migrated_template) as url,
        psycopg.connect(url, autocommit=True) as connection,
    ):
        yield connection


@pytest.mark.parametrize("table", PROTECTING)
def test_a_trigger_that_is_switched_off_is_named(altered: psycopg.Connection[Any], table: str) -> None:
    assert [one for one in safety_faults(altered) if "triggers" in one] == []
    with undone(altered):
        altered.execute(f"alter table {table} disable trigger user".encode())
        (fault,) = [one for one in safety_faults(altered) if "triggers" in one]
    assert table in fault


def test_a_check_that_takes_too_long_is_told_as_one_that_nobody_knows_of_and_the_others_are_made(
    fixtures: Fixtures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "invariants.sql"
    file.write_text(
        "-- slow: it never ends\nselect 'x' from pg_sleep(60);\n\n-- quick: nothing is there\nselect 'x' where false;\n"
    )
    slow, quick = run_invariants(fixtures.admin, file, minutes=0.003)
    assert (slow.unchecked, slow.ran_out) == ("it took longer than its time limit", True)
    assert (quick.violations, quick.unchecked, quick.ran_out) == (0, "", False)
    monkeypatch.setenv("SENTINEL_DATABASE_URL", fixtures.url)
    monkeypatch.setattr("sentinel.cli.doctor.invariants_sql", lambda: file)
    done = CliRunner().invoke(main, ["doctor", "--minutes", "0.003"])
    assert done.exit_code == 1
    assert (
        "BAD  slow: not checked, it took longer than its time limit: it never ends; allow more with --minutes"
        in done.output
    )
    assert "ok   quick: nothing is there" in done.output


def test_a_comparison_with_the_checkpoints_that_takes_too_long_is_told_and_the_others_are_made(
    honest: Honest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_long(connection: psycopg.Connection[Any], file: Path) -> None:
        connection.execute("select pg_sleep(60)")

    monkeypatch.setenv("SENTINEL_DATABASE_URL", honest.fixtures.url)
    monkeypatch.setattr("sentinel.cli.doctor.compare_checkpoints", too_long)
    done = CliRunner().invoke(main, ["doctor", "--minutes", "0.05", "--checkpoint", str(honest.file)])
    assert done.exit_code == 1
    assert "BAD  checkpoints: not checked, it took longer than its time limit; allow more with --minutes" in done.output
    assert "ok   held_differs:" in done.output


def test_each_check_has_a_snapshot_of_its_own_which_ends_with_it(fixtures: Fixtures, tmp_path: Path) -> None:
    file = tmp_path / "invariants.sql"
    file.write_text("-- one: when it began\nselect now()::text;\n\n-- two: when it began\nselect now()::text;\n")
    one, two = run_invariants(fixtures.admin, file)
    assert one.damaged < two.damaged


# Parts of limits over a rolling hour, each within its cap: so many of one limit, five minutes apart, and those of two others.
PUT_PARTS = """
insert into sentinel.usage_parts (tenant_id, limit_key, bucket, window_seconds, cap_minor, captured_minor)
select %(tenant_id)s, 'p/total|USD', timestamptz '2026-01-01 00:00Z' + nth * interval '5 minutes', 3600, 100, 1 from generate_series(1, %(number)s) as nth
union all select %(tenant_id)s, 'p/twice|USD', at::timestamptz, 3600, 100, 60
from unnest(array['2026-01-01 00:00Z', '2026-01-01 01:00Z', '2026-01-01 03:00Z', '2026-01-01 03:55Z']) as at
union all select %(tenant_id)s, 'p/day|USD', at::timestamptz, 0, 100, 60 from unnest(array['2026-01-01 00:00Z', '2026-01-02 00:00Z']) as at
"""
# Halts of an agent, each of a second, one after the other; and one of another agent, under which it started an operation.
PUT_HALTS = """
insert into sentinel.halts (tenant_id, halt_id, scope, target, reason, set_by, set_at, lifted_by, lifted_at)
select %(tenant_id)s, gen_random_uuid(), 'agent', agent, 'test', 'test', at, 'test', at + interval '1 second'
from (select 'agent-' || nth as agent, timestamptz '2020-01-01 00:00Z' + nth * interval '2 seconds' as at from generate_series(1, 3) nth
      union all select 'often', timestamptz '2020-01-01 00:00Z' + nth * interval '2 seconds' from generate_series(1, %(number)s) as nth
      union all select o.agent_id, s.started_at - interval '0.5 seconds' from sentinel.operation_states s join sentinel.operations o using (tenant_id, operation_id)
      where s.operation_id = %(started)s) halted
"""


def compared(connection: psycopg.Connection[Any], query: str) -> int:
    """The most rows that one step of the query looks at."""
    (found,) = connection.execute(f"explain (analyze, format json) {query}".encode()).fetchone() or ([],)

    def rows(node: dict[str, Any]) -> float:
        removed = sum(node.get(name, 0) for name in ("Rows Removed by Filter", "Rows Removed by Join Filter"))
        own = (node["Actual Rows"] + removed) * node["Actual Loops"]
        return max([own, *(rows(part) for part in node.get("Plans", ()))])

    return int(rows(found[0]["Plan"]))


@pytest.mark.fresh_database
def test_the_caps_of_a_limit_in_use_for_years_are_checked_without_comparing_each_part_with_every_other(
    fixtures: Fixtures,
) -> None:
    """The finding: a limit over a rolling hour had so many parts after some months that the doctor never finished."""
    (caps,) = [one for one in read_invariants(invariants_sql()) if one.name == "cap_exceeded"]
    fixtures.admin.execute(PUT_PARTS, {"tenant_id": fixtures.tenant_id, "number": 2000})
    fixtures.admin.execute("set time zone 'UTC'")
    with fixtures.admin.transaction():
        found = check_invariant(fixtures.admin, caps)
    assert found.damaged == ("budget p/twice|USD from 2026-01-01 03:55:00+00",)
    assert compared(fixtures.admin, caps.query) < 20_000


@pytest.mark.fresh_database
def test_starts_under_a_halt_are_found_without_comparing_each_with_every_halt_there_ever_was(
    fixtures: Fixtures,
) -> None:
    (halted,) = [one for one in read_invariants(invariants_sql()) if one.name == "started_under_halt"]
    started = [fixtures.guard(guard_body(value=1, start_id=str(uuid.uuid4())))["operation_id"] for _ in range(5)]
    with fixtures.admin.transaction():
        fixtures.admin.execute("set local session_replication_role = replica")
        fixtures.admin.execute(PUT_HALTS, {"tenant_id": fixtures.tenant_id, "number": 2000, "started": started[2]})
    with fixtures.admin.transaction():
        found = check_invariant(fixtures.admin, halted)
    assert f"operation {started[2]}" in found.damaged
    assert compared(fixtures.admin, halted.query) < 5000


def test_a_table_that_is_not_there_is_damage_and_ends_no_other_check(fixtures: Fixtures, tmp_path: Path) -> None:
    file = tmp_path / "invariants.sql"
    file.write_text(
        "-- gone: what is kept is there\nselect kept::text from sentinel.no_such_table;\n\n-- quick: nothing is there\nselect 'x' where false;\n"
    )
    gone, quick = run_invariants(fixtures.admin, file)
    assert gone.violations == 1 and "no_such_table" in gone.damaged[0]
    assert (quick.violations, quick.unchecked) == (0, "")


def test_the_doctor_looks_at_the_policies_that_are_in_use(
    honest: Honest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(policies_dir(), tmp_path / "policies", ignore=shutil.ignore_patterns("*.py"))
    file = tmp_path / "policies" / "retail_refund.yaml"
    file.write_text(file.read_text().replace("then: ALLOW", "then: ALOW"))
    monkeypatch.setenv("SENTINEL_DATABASE_URL", honest.fixtures.url)
    monkeypatch.setenv("SENTINEL_POLICIES_DIR", str(tmp_path / "policies"))
    done = CliRunner().invoke(main, ["doctor", "--json", "--checkpoint", str(honest.file)])
    bad = {one["name"]: one["detail"] for one in json.loads(done.stdout) if not one["ok"]}
    assert done.exit_code == 1 and set(bad) == {"policies", "policy cases"}
    assert "ALOW" in bad["policies"] and "ALOW" in bad["policy cases"]


def test_policies_without_cases_are_not_checked_by_them_and_nothing_is_wrong(
    honest: Honest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "refunds.yaml").write_text((policies_dir() / "retail_refund.yaml").read_text())
    monkeypatch.setenv("SENTINEL_DATABASE_URL", honest.fixtures.url)
    monkeypatch.setenv("SENTINEL_POLICIES_DIR", str(tmp_path))
    done = CliRunner().invoke(main, ["doctor", "--json", "--checkpoint", str(honest.file)])
    checks = {one["name"]: one for one in json.loads(done.stdout)}
    assert (done.exit_code, checks["policy cases"]["checked"]) == (0, False), done.stdout
    assert checks["policy cases"]["detail"] == f"not checked, there are none in {tmp_path / 'cases'}"


EVENTS_OF = """
insert into sentinel.event_rows (tenant_id, event_id, kind, body, hash, occurred_at)
select %s, gen_random_uuid(), 'drill', '{}', sentinel.hash_bytes(sentinel.sha256_text('{}')), clock_timestamp()
"""


def test_a_broken_tenant_does_not_keep_the_others_from_their_checkpoints(fixtures: Fixtures, tmp_path: Path) -> None:
    """The finding: tenants behind it in the order of ids got none as long as it was broken."""
    pool, file = fixtures.authority.pool, CheckpointFile(tmp_path / "checkpoints.jsonl")
    other = add_tenant(fixtures.url, unique("other").replace("_", "-"))
    first, last = sorted([fixtures.tenant_id, other[0]])

    def events_of_both() -> None:
        for tenant_id in (first, last):
            fixtures.admin.execute(EVENTS_OF, [tenant_id])
        fixtures.run_housekeeping()

    events_of_both()
    assert {one.tenant_id for one in file.append(pool)} >= {first, last}
    events_of_both()
    fixtures.admin.execute("set session_replication_role = replica")
    fixtures.admin.execute("update sentinel.feed set position = position + 1000 where tenant_id = %s", [first])
    with pytest.raises(CheckpointBroken, match=str(first)):
        file.append(pool)
    lines = [read_line(line) for line in (tmp_path / "checkpoints.jsonl").read_bytes().splitlines()]
    assert len([one for one in lines if one is not None and one.tenant_id == last]) == 2


@pytest.mark.parametrize("content", [b"\x00\xff\x8a no checkpoint\n", b'{"tenant_id": "cut'])
def test_a_file_without_a_checkpoint_is_never_taken_for_one_that_matches(
    honest: Honest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.setenv("SENTINEL_DATABASE_URL", honest.fixtures.url)
    other = tmp_path / "other.jsonl"

    def found() -> dict[str, object]:
        done = CliRunner().invoke(main, ["doctor", "--json", "--checkpoint", str(other)])
        return next(one for one in json.loads(done.stdout) if one["name"] == "checkpoints")

    other.write_bytes(content)
    with pytest.raises(CheckpointBroken, match="not a checkpoint file"):
        compare_checkpoints(honest.fixtures.admin, other)
    assert found()["ok"] is False
    other.write_bytes(b"")
    assert found()["checked"] is False and "no checkpoint yet" in str(found()["detail"])
