"""What each program's role must not do, tried one by one in the database (deploy/roles.sql)."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import errors as pg

from sentinel.store.database import AUTHORITY, BOARD, CONSOLE, ORDERS, WORKER, with_role
from tests.conftest import at
from tests.support.fixtures import Fixtures, guard_body, make_fixtures
from tests.support.harness import decide
from tests.support.logins import make_login
from tests.support.role_attempts import GLOBAL_HALT_OWNER, TRAILS, attempts, let_through


@pytest.fixture(scope="module")
def full(pg_server, migrated_template) -> Iterator[Fixtures]:  # type: ignore[no-untyped-def]
    """One database with a little of everything, for all attempts: none of them may change it."""
    with psycopg.connect(pg_server.admin_url, autocommit=True) as connection:
        connection.execute(f"create database roles_tried template {migrated_template} strategy file_copy".encode())
    fixtures = make_fixtures(at(pg_server.admin_url, "roles_tried"))
    done = guard_body(value=40)
    fixtures.start(done, fixtures.guard(done))
    fixtures.report(done)
    fixtures.guard(guard_body(value=41))
    decide(fixtures, fixtures.guard(guard_body(value=200))["approval_id"])
    fixtures.guard(guard_body(value=300))
    fixtures.run_housekeeping()
    fixtures.admin.execute(
        "insert into refunds.ledger_entries (tenant_id, ledger_entry_id, refund_id, amount_minor, currency, action, agent_id,"
        " requested_at, risk) select tenant_id, 'lge_r', 'rf_r', 100, 'USD', 'refund.create', 'a', now(), '{}' from sentinel.tenants limit 1")  # fmt: skip
    yield fixtures
    fixtures.close()
    with psycopg.connect(pg_server.admin_url, autocommit=True) as connection:
        connection.execute("drop database roles_tried with (force)")


def test_no_program_can_do_more_than_its_work(full: Fixtures) -> None:
    tried = attempts()
    print(f"N={len(tried)}")
    assert let_through(full, tried) == []


APPROVE = "update sentinel.approvals set status = 'approved', decided_at = now() where status = 'pending'"


@pytest.mark.parametrize("role", [AUTHORITY, CONSOLE])
def test_no_program_approves_without_the_voices_of_people(full: Fixtures, role: str) -> None:
    with full.as_role(role) as connection:
        with pytest.raises(pg.CheckViolation) as refused:
            connection.execute(APPROVE)
        assert refused.value.diag.constraint_name == "approval_has_voices"
        with pytest.raises(pg.CheckViolation) as refused:
            connection.execute("update sentinel.approvals set status = 'expired' where status = 'approved'")
        assert refused.value.diag.constraint_name == "approval_decided_once"


def test_the_authority_enters_no_approval_that_is_decided_already(full: Fixtures) -> None:
    columns = [
        name
        for (name,) in full.admin.execute(
            "select attname from pg_attribute where attrelid = 'sentinel.approvals'::regclass and attnum > 0 order by attnum"
        )
    ]
    values = ", ".join({"approval_id": "gen_random_uuid()"}.get(name, name) for name in columns)
    with full.as_role(AUTHORITY) as connection, pytest.raises(pg.CheckViolation):
        connection.execute(
            f"insert into sentinel.approvals ({', '.join(columns)}) select {values} from sentinel.approvals where status = 'approved'".encode()
        )


def test_mutant_without_the_trigger_lets_the_authority_approve(database_url: str) -> None:
    fixtures = make_fixtures(database_url)
    try:
        fixtures.guard(guard_body(value=200))
        fixtures.admin.execute("drop trigger check_approval on sentinel.approvals")
        with fixtures.as_role(AUTHORITY) as connection:
            assert connection.execute(APPROVE).rowcount == 1
        assert "approval_without_quorum" in fixtures.broken_invariants()
    finally:
        fixtures.close()


TOO_MUCH = (
    ("update on sentinel.halts", AUTHORITY, "update sentinel.halts set lifted_by = 'me', lifted_at = now()"),
    ("insert on refunds.ledger_events", WORKER, TRAILS[0]),
    ("execute on function refunds.write_ledger_events", WORKER, TRAILS[-1]),
)


@pytest.mark.parametrize(("grant", "role", "attempt"), TOO_MUCH, ids=[grant for grant, _, _ in TOO_MUCH])
def test_mutant_with_one_grant_too_many_is_caught(full: Fixtures, grant: str, role: str, attempt: str) -> None:
    assert (role, attempt) in attempts()
    full.admin.execute(f"grant {grant} to {role}".encode())
    try:
        assert let_through(full, [(role, attempt)]) == [f"{role}: {attempt}"]
    finally:
        full.admin.execute(f"revoke {grant} from {role}".encode())


@pytest.mark.parametrize("role", [*GLOBAL_HALT_OWNER, ORDERS])
def test_no_program_becomes_the_owner_or_another_program(full: Fixtures, role: str) -> None:
    """As a login that was granted exactly this role, which is how a deployment connects."""
    login = f"login_of_{role}"
    url = make_login(full.url, login, f"in role {role}")
    try:
        with psycopg.connect(with_role(url, role), autocommit=True) as connection:
            assert connection.execute("select current_user").fetchone() == (role,)
            for other in {"sentinel_owner", "sentinel_admin", *GLOBAL_HALT_OWNER, ORDERS} - {role}:
                with pytest.raises(pg.InsufficientPrivilege):
                    connection.execute(f"set role {other}".encode())
    finally:
        full.admin.execute(f"drop role {login}".encode())


def test_the_board_reads_its_three_views_and_nothing_private_is_in_them(full: Fixtures) -> None:
    with full.as_role(BOARD) as connection:
        for view in ("public_proofs", "public_feed", "public_tenants"):
            rows = connection.execute(f"select * from sentinel.{view}".encode())
            assert {column.name for column in rows.description or ()} <= {
                "tenant_id", "event_id", "agent_id", "body", "hash", "occurred_at", "position", "label", "is_bound"}  # fmt: skip
        kinds = connection.execute(
            "select count(*) from sentinel.public_proofs where body not like '%\"proof_id\"%'"
        ).fetchone()
        assert kinds == (0,)


def test_nothing_of_ours_is_open_to_the_public_role(full: Fixtures) -> None:
    open_to_all = full.admin.execute(
        "select n.nspname || '.' || p.proname from pg_proc p join pg_namespace n on n.oid = p.pronamespace"
        " where n.nspname in ('sentinel', 'refunds', 'orders') and has_function_privilege('public', p.oid, 'execute')"
        " union all select c.oid::regclass::text from pg_class c join pg_namespace n on n.oid = c.relnamespace"
        " where n.nspname in ('sentinel', 'refunds', 'orders') and c.relkind in ('r', 'v') and has_table_privilege('public', c.oid, 'select')"
        " union all select nspname from pg_namespace where nspname in ('sentinel', 'refunds', 'orders') and has_schema_privilege('public', oid, 'usage')"
    ).fetchall()  # fmt: skip
    assert open_to_all == []


def test_everything_of_ours_belongs_to_the_owner_that_nobody_logs_in_as(full: Fixtures) -> None:
    owners = full.admin.execute(
        "select distinct r.rolname, r.rolcanlogin, r.rolsuper from pg_class c join pg_namespace n on n.oid = c.relnamespace"
        " join pg_roles r on r.oid = c.relowner where n.nspname in ('sentinel', 'refunds', 'orders')").fetchall()  # fmt: skip
    assert owners == [("sentinel_owner", False, False)]


OWNERS_RIGHTS = {
    # The sender of events makes the receivers of its own settings, and no other; it ends those whose setting is gone.
    "open_endpoint", "keep_served",
    # It disables a webhook that says it is gone, and leaves the event of it.
    "disable_gone_endpoint",
    # The worker opens a card that it cannot answer, the public's listener answers one that it cannot write, of a row that it cannot read.
    "open_confirmations", "latest_confirmations", "answer_confirmation", "entry_is_open",
    # An analyst's decision moves a review that the console cannot touch, and is carried to the refund that it filed.
    "resolve_review", "track_filed_refunds",
    # The console is told whether a decision on an order is taken, and reads no more of its review for it.
    "has_live_refund", "has_undecided_refund", "refund_in_doubt",
    # The intake is told which of its orders' approvals are decided, and reads no other approval for it.
    "decided_approvals",
    # A report that contradicts a person sets the one halt that an authority may set.
    "record_contradiction",
    # Trails and order budgets are kept by whoever moves a row, and written by nobody otherwise.
    "write_events", "write_first_events", "write_ledger_events", "changes_within_budget", "open_order_budgets", "update_order_budgets", "update_order_paid",
    # Whoever receives a settlement system's webhooks keeps an event with it, and reads and changes nothing there.
    "record_settlement_event",
    # Locks that only the authority's role can take: the console gets exactly those that its own work needs.
    "take_halt_lock", "take_held_locks", "take_operators_lock", "take_tenants_lock",
    # And the intake those of the accounts of its own orders.
    "take_account_locks",
    # People and keys are changed in these ways only, which ask a second administrator; who asks is told whether it waits.
    "request_change", "make_approved_change", "is_change_pending",
    # Who had a row tried again, and why, is kept with the move; the console is told why a row stays of which it may not read all.
    "retry_entries", "retry_refusal",
    # Whether an analyst has put a refund away is known to the order's own tables, which the worker may not read.
    "is_closed_by_analyst",
    # A program that may read nothing of the authority's is told its tenant's public name.
    "tenant_label",
}  # fmt: skip
"""Functions that run with their owner's rights: no grant by column says what they do."""


def test_only_named_functions_run_with_their_owners_rights_and_none_looks_elsewhere(full: Fixtures) -> None:
    definers = dict(full.admin.execute(
        "select p.proname, p.proconfig from pg_proc p join pg_namespace n on n.oid = p.pronamespace"
        " where n.nspname in ('sentinel', 'refunds', 'orders') and p.prosecdef").fetchall())  # fmt: skip
    assert set(definers) == OWNERS_RIGHTS
    assert all("search_path=pg_catalog, pg_temp" in config for config in definers.values())
