"""Pages while a database does not answer: they say so and no more, and never "nothing was changed" of what may have been."""

from __future__ import annotations

import re
import uuid
from html import unescape
from typing import Any

import pytest
from structlog.testing import capture_logs

from ops_console.api import approvals as approvals_api
from ops_console.api import halts as halts_api
from ops_console.pages import account, approval_batch, approvals, keys, ledger, shell
from sentinel.core.errors import EngineUnavailable
from tests.integration.console.approval_pages import card, digest_of, say
from tests.support.orders_console_fixtures import queued
from tests.support.ports import free_port

CAUSE = 'the database cannot be reached: connection to server at "10.0.0.9", port 5432 failed: role "inner_login"'


@pytest.mark.parametrize(
    ("method", "path", "fields"),
    [("GET", "/ops", {}), ("GET", "/ops/halts", {}), ("POST", "/ops/halts", {"target": "x"}),
     ("POST", "/ops/sign-in", {"email": "ann@demo.local", "password": "secret"})],
)  # fmt: skip
def test_a_stranger_learns_nothing_of_a_database_that_is_away(
    fixtures: Any, method: str, path: str, fields: dict[str, str]
) -> None:
    port = free_port()
    client = fixtures.app(database_url=f"postgresql://inner_login@127.0.0.1:{port}/inner").test_client()
    client.set_cookie("sentinel", "x" * 43)
    with capture_logs() as lines:
        answer = client.open(path, method=method, data=fields or None, headers={"Accept": "text/html"})
    assert (answer.status_code, answer.headers.get("Retry-After")) == (503, "1")
    for inner in ("127.0.0.1", str(port), "inner", "cannot be reached"):
        assert inner not in answer.text, inner
    assert "The database gave no usable answer." in answer.text
    causes = [line["cause"] for line in lines if line["event"] == "engine_unavailable"]
    assert len(causes) == 1, lines
    assert "127.0.0.1" in causes[0]


def words(answer: Any) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", unescape(answer.text)).split())


def test_without_the_ledger_the_console_still_shows_and_decides(fixtures: Any) -> None:
    """Its database is another one, and away."""
    app = fixtures.app(ledger_url=f"postgresql://inner_login@127.0.0.1:{free_port()}/inner")
    ann, approval_id, order_id = fixtures.browser("ann", app=app, proved=True), fixtures.approval(), queued(fixtures)
    for path in ("/ops", "/ops/overview/now"):
        answer = ann.get(path)
        shown = words(answer)
        assert answer.status_code == 200
        assert "Refunds pending 1" in shown
        assert (
            "Errors given up by the worker or refused by the settlement system; may have been paid: see the entry not read"
            in shown
        )
        assert "Worker lag not read" in shown
        assert "Refund worker not read" in shown
        assert "Reports pending not read" in shown
        assert "never seen" not in shown
        assert "all outcomes are reported" not in shown
    for path in (f"/ops/approvals/{approval_id}", f"/ops/orders/demo/{order_id}"):
        answer = ann.get(path)
        assert answer.status_code == 200
        assert "The order's refund budget cannot be read now: the ledger does not respond." in answer.text, path
    assert say(ann, approval_id).status_code == 303
    assert "Approved." in card(ann, approval_id)
    assert ann.get("/ops/ledger").status_code == 503


def away(*_: Any, **__: Any) -> Any:
    raise EngineUnavailable(CAUSE)


def test_what_may_have_been_done_is_not_said_to_be_undone(fixtures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to a vote's commit was lost, and nobody answers since."""
    approval_id = fixtures.approval()
    ann = fixtures.browser("ann", proved=True)
    vote = {"verdict": "approve", "reason": "looked at it", "digest": digest_of(ann, approval_id)}
    whole = approvals.approval_detail
    monkeypatch.setattr(approvals, "cast_vote", away)
    monkeypatch.setattr(
        approvals, "approval_detail", lambda *given: monkeypatch.setattr(approvals, "approval_detail", away) or whole(*given)
    )  # fmt: skip
    answer = ann.submit(f"/ops/approvals/{approval_id}", **vote)
    assert (answer.status_code, answer.headers.get("Retry-After")) == (503, "1")
    assert "It is not known whether your request was executed" in answer.text
    assert "Nothing was changed" not in answer.text
    assert "not possible" not in answer.text
    assert "10.0.0.9" not in answer.text
    # Shown again with the form, where that can be read.
    monkeypatch.setattr(approvals, "approval_detail", whole)
    answer = ann.submit(f"/ops/approvals/{approval_id}", **vote)
    assert answer.status_code == 503
    assert "It is not known whether your request was executed" in answer.text
    assert "10.0.0.9" not in answer.text
    # And of each line of several.
    monkeypatch.setattr(approval_batch, "cast_vote", away)
    answer = ann.submit("/ops/approvals/batch", id=str(approval_id), **vote, reference="")
    assert "It is not known whether your request was executed" in answer.text
    assert "0 of 1 decision was recorded; for 1 this is not known." in answer.text
    assert ">refused<" not in answer.text
    assert "10.0.0.9" not in answer.text


def test_of_several_each_is_told_although_one_got_no_answer(fixtures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [fixtures.approval(value) for value in ("200.00", "210.00", "220.00")]
    ann, whole = fixtures.browser("ann"), approval_batch.approval_detail

    def silent_about_one(context: Any, person: Any, approval_id: Any) -> Any:
        return away() if str(approval_id) == str(made[1]) else whole(context, person, approval_id)

    monkeypatch.setattr(approval_batch, "approval_detail", silent_about_one)
    monkeypatch.setattr(shell, "take_messages", away)
    answer = ann.submit(
        "/ops/approvals/batch", id=[str(one) for one in made], digest=[fixtures.digest(one) for one in made],
        verdict=["reject"] * 3, reason="the same case", reference="",
    )  # fmt: skip
    assert answer.status_code == 200
    assert "2 of 3 decisions were recorded; for 1 this is not known." in answer.text
    assert all(str(one) in answer.text for one in made)
    assert ">refused<" not in answer.text and "10.0.0.9" not in answer.text
    assert [fixtures.approval_status(one) for one in made] == ["rejected", "pending", "rejected"]


@pytest.mark.parametrize(
    ("path", "name", "module", "verb", "fields"),
    [("/ops/keys", "key_id", keys, "issue_key", {"label": "one", "scopes": "guard"}),
     ("/ops/account/tokens", "token_id", account, "issue_token", {"label": "one"}),
     ("/ops/ledger", "request_id", ledger, "process_one", {})],
)  # fmt: skip
def test_a_form_that_may_have_made_something_makes_no_second_one_when_it_is_sent_again(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch, path: str, name: str, module: Any, verb: str, fields: dict[str, str]
) -> None:
    """The finding: it came back under another id, so that sending it again made a second key."""
    abe, sent = fixtures.browser("abe", "admin", proved=True), str(uuid.uuid4())
    monkeypatch.setattr(module, verb, away)
    answer = abe.submit(path, **{name: sent, **fields})
    assert answer.status_code == 503 and "It is not known whether" in answer.text
    assert f'name="{name}" value="{sent}"' in answer.text
    assert sent not in abe.get("/ops/account" if module is account else path).text


def test_the_api_does_not_say_that_what_may_be_on_record_is_not(fixtures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    approval_id, ann = fixtures.approval(), fixtures.person("ann", "admin")
    digest = fixtures.digest(approval_id)
    for module, name in ((approvals_api, "resolve_approval"), (halts_api, "set_halt"), (halts_api, "list_halts")):
        monkeypatch.setattr(module, name, away)
    acts = (
        ann.post(f"/ops/api/approvals/{approval_id}/approve", {"digest": digest, "reason": "looked at it"}),
        ann.post("/ops/api/halts", {"scope": "tenant", "reason": "a drill"}),
    )
    public = fixtures.app(database_url=f"postgresql://inner_login@127.0.0.1:{free_port()}/inner").test_client()
    reads = (ann.get("/ops/api/halts"), public.get("/ops/api/live/feed"), public.get("/ops/api/live/stream"))
    for answer in (*acts, *reads):
        told = answer.json
        assert (answer.status_code, told["type"]) == (503, "urn:sentinel:problem:engine-unavailable"), answer.text
        assert answer.headers["Retry-After"] == "1"
        assert "could not be recorded" not in answer.text
        assert not {"decision", "reason_code"} & told.keys()
        assert "10.0.0.9" not in answer.text and "inner" not in answer.text
    for answer in acts:
        assert "It is not known whether your request was executed" in answer.json["detail"]
        assert "retryable" not in answer.json
    for answer in reads:
        assert answer.json["detail"] == "The database gave no usable answer. Try again in a moment."


def test_what_was_done_is_told_on_the_next_page_that_can_be_read(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    approval_id = fixtures.approval()
    ann = fixtures.browser("ann", proved=True)
    vote = {"verdict": "approve", "reason": "looked at it", "digest": digest_of(ann, approval_id)}
    assert ann.submit(f"/ops/approvals/{approval_id}", **vote).status_code == 303
    with monkeypatch.context() as patched:
        patched.setattr(approvals, "approval_detail", away)
        answer = ann.get(f"/ops/approvals/{approval_id}")
    assert answer.status_code == 503
    assert "Approved." not in answer.text
    assert "Nothing was changed" not in answer.text
    assert "Approved." in card(ann, approval_id)
