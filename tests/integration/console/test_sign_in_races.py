"""What ends a person's sessions ends those that are being opened too: a sign-in or a token that was under way opens nothing."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from ops_console.accounts import operator_tokens, operators, sessions, sign_in
from ops_console.accounts.operator_tokens import issue_token
from sentinel.core.errors import Unauthenticated
from tests.integration.console.conftest import PASSWORD
from tests.integration.console.second_factors import api_sign_in, code_of, enrol, forget_used_codes, with_secrets
from tests.support.fixtures import quick_hash
from tests.support.ledger_fixtures import wait_until

pytestmark = pytest.mark.usefixtures("patient")
LIVING = "select count(*) from sentinel.operator_sessions where operator_id = %s and revoked_at is null"
WAITING = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
NEW_PASSWORD = "another horse battery staple"
Change = Callable[[Any, Any], None]


def password_changed(fixtures: Any, ann: Any) -> None:
    known = operators.credentials_of(fixtures.pool, ann.tenant_id, ann.operator_id)
    assert known is not None
    event_id, new_hash = uuid.uuid4(), quick_hash(NEW_PASSWORD)
    assert operators.change_password(fixtures.pool, known, new_hash, keep_session=None, event_id=event_id)


def password_reset(fixtures: Any, ann: Any) -> None:
    _on_the_machine(fixtures, ann, "password_reset", quick_hash(NEW_PASSWORD))


def factor_reset(fixtures: Any, ann: Any) -> None:
    fixtures.sql(
        "insert into sentinel.second_factors (tenant_id, operator_id, secret, confirmed_at) values (%s, %s, 'x', now())"
        " on conflict do nothing", ann.tenant_id, ann.operator_id)  # fmt: skip
    _on_the_machine(fixtures, ann, "second_factor_reset")


def deactivated_and_reactivated(fixtures: Any, ann: Any) -> None:
    _on_the_machine(fixtures, ann, "deactivated")
    _on_the_machine(fixtures, ann, "reactivated")


def access_ended(fixtures: Any, ann: Any) -> None:
    _on_the_machine(fixtures, ann, "access_ended")


def _on_the_machine(fixtures: Any, ann: Any, act: str, given: str | None = None) -> None:
    change = "select sentinel.change_operator(%s, %s, %s, %s, null, null, 'the machine', gen_random_uuid())"
    with psycopg.connect(fixtures.url) as connection:
        assert connection.execute(change, [ann.tenant_id, ann.operator_id, act, given]).fetchone() == ("done",)


def while_under_way(fixtures: Any, statement: str, fields: dict[str, Any], change: Callable[[], None]) -> None:
    """`change` begins after `statement` was asked and before it is committed: it waits for it."""
    with psycopg.connect(fixtures.url) as first:
        first.execute(statement, fields)
        changing = threading.Thread(target=change)
        changing.start()
        wait_until(lambda: fixtures.sql(WAITING)[0][0] > 0)
        first.commit()
        changing.join()


CHANGES = (password_changed, password_reset, factor_reset, deactivated_and_reactivated)


@pytest.mark.parametrize("change", CHANGES)
def test_a_sign_in_that_was_under_way_opens_nothing_after_the_change(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch, change: Change
) -> None:
    app, ann = with_secrets(fixtures), fixtures.operator("ann")
    secret = enrol(fixtures, fixtures.at_page(ann.email, app))
    forget_used_codes(fixtures)
    whole = sign_in.use_code

    def changed_meanwhile(*given: Any) -> bool:
        # Password and code fit: from here on the sign-in looked at nothing more.
        used = whole(*given)
        change(fixtures, ann)
        return used

    monkeypatch.setattr(sign_in, "use_code", changed_meanwhile)
    answer = api_sign_in(app, ann.email, PASSWORD, code=code_of(fixtures, secret))
    assert answer.status_code == 401
    assert "Set-Cookie" not in answer.headers
    assert fixtures.sql(LIVING, ann.operator_id) == [(0,)]
    ((succeeded,),) = fixtures.sql("select succeeded from sentinel.sign_in_attempts order by attempted_at desc limit 1")
    assert succeeded is False


@pytest.mark.parametrize("change", CHANGES)
def test_a_session_that_is_being_opened_is_ended_by_the_change(fixtures: Any, change: Change) -> None:
    """The sign-in was first: the change waits for it and then ends what it opened."""
    app, ann = with_secrets(fixtures), fixtures.operator("ann")
    enrol(fixtures, fixtures.at_page(ann.email, app))
    known = operators.credentials_of(fixtures.pool, ann.tenant_id, ann.operator_id)
    assert known is not None
    fields = {
        "tenant_id": ann.tenant_id, "operator_id": ann.operator_id, "session_hash": b"x" * 32, "csrf_token": "x" * 43, "kind": "api",
        "address": "10.0.0.1", "user_agent": "", "absolute_seconds": 3600, "password_hash": known.password_hash,
        "changed_by_another": known.changed_by_another,
    }  # fmt: skip
    while_under_way(fixtures, sessions.INSERT_SESSION, fields, lambda: change(fixtures, ann))
    assert fixtures.sql(LIVING, ann.operator_id) == [(0,)]


ENDS_TOKENS = (password_reset, factor_reset, deactivated_and_reactivated, access_ended)


def session_of(fixtures: Any, ann: Any) -> Any:
    fixtures.at_page(ann.email)
    return fixtures.sql("select session_id from sentinel.operator_sessions where operator_id = %s", ann.operator_id)[0][
        0
    ]


@pytest.mark.parametrize("change", ENDS_TOKENS)
def test_a_token_is_made_only_in_a_session_that_lives(fixtures: Any, change: Change) -> None:
    ann = fixtures.operator("ann")
    session_id = session_of(fixtures, ann)
    change(fixtures, ann)
    with pytest.raises(Unauthenticated):
        issue_token(fixtures.pool, ann, session_id, label="late", expires_days=1)
    assert fixtures.sql("select count(*) from sentinel.operator_tokens") == [(0,)]


@pytest.mark.parametrize("change", ENDS_TOKENS)
def test_a_token_that_is_being_made_is_revoked_by_the_change(fixtures: Any, change: Change) -> None:
    ann = fixtures.operator("ann")
    fields = {
        "tenant_id": ann.tenant_id, "operator_id": ann.operator_id, "session_id": session_of(fixtures, ann),
        "token_id": uuid.uuid4(), "token_hash": b"x" * 32, "label": "early", "expires_seconds": 60,
    }  # fmt: skip
    while_under_way(fixtures, operator_tokens.INSERT_TOKEN, fields, lambda: change(fixtures, ann))
    assert fixtures.sql("select count(*), count(revoked_at) from sentinel.operator_tokens") == [(1, 1)]
