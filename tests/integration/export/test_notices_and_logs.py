"""Receivers by setting: Slack and mail notices about approvals that wait, and the decision log of OPA."""

from __future__ import annotations

import dataclasses
import gzip
import json
import re
import smtplib
import socket
import socketserver
import threading
import uuid
from collections.abc import Iterator
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest

from sentinel.authority.policies import declare_policies
from sentinel.authority.webhooks import list_endpoints
from sentinel.export import sender as sender_module
from sentinel.export.build import make_sender
from sentinel.export.deliveries import Deliveries
from sentinel.export.sender import EventSender
from sentinel.export.settings import ExportSettings, load_export_settings
from sentinel.platform.outbound import mail as mail_client
from sentinel.platform.settings import UnsafeConfiguration
from tests.support.event_receiver import answers
from tests.support.export_fixtures import EXPORT_SECRET, Export, exporting
from tests.support.fixtures import Fixtures, add_tenant, guard_body, unique
from tests.support.harness import decide, let_permits_expire
from tests.support.ledger_fixtures import wait_until
from tests.support.lifecycle import policy_change
from tests.support.scripted_server import Asked, ScriptedServer

CONSOLE = "https://console.shop.example/"


class Mailbox(socketserver.ThreadingTCPServer):
    """A mail server on loopback (RFC 5321, what one message needs) that keeps what it is handed."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), MailSession)
        self.taken: list[bytes] = []


class MailSession(socketserver.StreamRequestHandler):
    """One connection."""

    server: Mailbox

    def handle(self) -> None:
        """Answer each line; the lines after DATA, up to a lone dot, are the message."""
        self.wfile.write(b"220 mailbox\r\n")
        while line := self.rfile.readline():
            if line.upper().startswith(b"DATA"):
                self.wfile.write(b"354 go on\r\n")
                self.server.taken.append(b"".join(iter(self.rfile.readline, b".\r\n")))
            is_last = line.upper().startswith(b"QUIT")
            self.wfile.write(b"221 bye\r\n" if is_last else b"250 ok\r\n")
            if is_last:
                return


@pytest.fixture
def export(fixtures: Fixtures) -> Iterator[Export]:
    with exporting(fixtures) as made:
        yield made


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    made = ScriptedServer()
    made.script = answers(200)
    with made.running():
        yield made


def sender_with(export: Export, **settings: Any) -> EventSender:
    """A sender that also has receivers of these settings."""
    return make_sender(dataclasses.replace(export.settings, console_url=CONSOLE, **settings), export.pool)


def send(export: Export, sender: EventSender) -> None:
    export.fixtures.run_housekeeping()
    while sender.round():
        pass


def test_a_channel_is_told_of_an_approval_with_a_link_and_nothing_that_approves(
    export: Export, server: ScriptedServer
) -> None:
    sender = sender_with(export, slack_webhook_url=f"{server.url}/T/B/secret")
    export.fixtures.guard(value=1)
    answer = export.fixtures.guard(value=900)
    server.script = answers(500)
    send(export, sender)
    server.script = answers(200)
    export.due_now()
    send(export, sender)
    assert [asked.path for asked in server.asked] == ["/T/B/secret"] * 2, "the one that waits, until it is taken"
    assert server.asked[0].body == server.asked[1].body
    assert list(server.asked[0].json) == ["text"], "text alone: no button"
    text = server.asked[0].json["text"]
    assert text.startswith('*Approval needed: "refund. create" by retail-refund-agent, 900.00 USD*\nWhy: The amount ')
    assert re.search(r", until 20\d\d-\d\d-\d\d \d\d:\d\d UTC\n", text)
    assert text.endswith(f"{CONSOLE}ops/approvals/{answer['approval_id']}")
    (row,) = [
        one for one in list_endpoints(export.fixtures.console_pool, export.fixtures.tenant_id) if one.kind == "slack"
    ]
    assert (row.url, row.behind) == (None, 0), "the address is in no table"


def test_a_mailbox_is_told_of_an_approval(export: Export, monkeypatch: pytest.MonkeyPatch) -> None:
    handed_in: list[tuple[EmailMessage, str]] = []
    monkeypatch.setattr(mail_client, "_dial", lambda host, port, deadline: socket.socket())
    monkeypatch.setattr(smtplib.SMTP, "getreply", lambda self: (220, b"ready"))
    monkeypatch.setattr(smtplib.SMTP, "send_message", lambda self, mail, sender, to: handed_in.append((mail, *to)))
    sender = sender_with(
        export,
        mail_to="desk@shop.example",
        smtp_host="mail.shop.example",
        smtp_from="sentinel@shop.example",
        smtp_security="none",
    )
    answer = export.fixtures.guard(value=900)
    send(export, sender)
    ((mail, to),) = handed_in
    assert (to, mail["Subject"]) == (
        "desk@shop.example",
        'Approval needed: "refund. create" by retail-refund-agent, 900.00 USD',
    )
    assert f"{CONSOLE}ops/approvals/{answer['approval_id']}" in mail.get_content()
    assert mail["Message-ID"] == f"<{answer['decision_event_id']}.approval-requested@shop.example>", (
        "the same at every try"
    )


def test_a_notices_one_link_is_ours_whatever_an_agent_calls_itself(
    export: Export, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed_in: list[EmailMessage] = []
    monkeypatch.setattr(mail_client, "_dial", lambda host, port, deadline: socket.socket())
    monkeypatch.setattr(smtplib.SMTP, "getreply", lambda self: (220, b"ready"))
    monkeypatch.setattr(smtplib.SMTP, "send_message", lambda self, mail, sender, to: handed_in.append(mail))
    sender = sender_with(
        export, slack_webhook_url=f"{server.url}/T/B/secret", mail_to="desk@shop.example", smtp_host="mail.shop.example",
        smtp_from="sentinel@shop.example", smtp_security="none",
    )  # fmt: skip
    asked = {**guard_body(unique("link"), value=900), "agent_id": "https://evil.example/ops/approvals/1"}
    approval_id = export.fixtures.post("action/guard", asked).json["approval_id"]
    send(export, sender)
    ((mail,), (posted,)) = handed_in, server.asked
    who = 'by "https:// evil. example/ ops/ approvals/ 1", 900.00 USD'
    assert mail["Subject"].endswith(who) and who in posted.json["text"]
    for text in (mail["Subject"], mail.get_content(), posted.json["text"]):
        ours = f"{CONSOLE}ops/approvals/{approval_id}"
        assert re.findall(r"\S*\w[.:/@]+[A-Za-z]\S*", text.replace(ours, "")) == []


def test_a_mail_server_is_handed_one_mail_for_each_approval(export: Export) -> None:
    with Mailbox() as mailbox:
        threading.Thread(target=mailbox.serve_forever, daemon=True).start()
        sender = sender_with(
            export, mail_to="desk@shop.example", smtp_host="127.0.0.1", smtp_port=mailbox.server_address[1],
            smtp_from="sentinel@shop.example", smtp_security="none",
        )  # fmt: skip
        answers_given = [export.fixtures.guard(value=value) for value in (40, 900, 800)]
        send(export, sender)
        send(export, sender)
        mailbox.shutdown()
    mails = [message_from_bytes(one, policy=policy.default) for one in mailbox.taken]
    assert [mail["Subject"].split(", ")[1] for mail in mails] == ["900.00 USD", "800.00 USD"], "not of what is allowed"
    for mail, answer in zip(mails, answers_given[1:], strict=True):
        assert isinstance(mail, EmailMessage)
        assert mail.get_content().splitlines()[-1] == f"{CONSOLE}ops/approvals/{answer['approval_id']}"
        assert (mail["To"], mail["From"]) == ("desk@shop.example", "sentinel@shop.example")


def test_decisions_go_out_in_batches_as_opa_writes_its_log(export: Export, server: ScriptedServer) -> None:
    sender = sender_with(export, decision_log_url=f"{server.url}/logs", decision_log_token="t0ken")
    made = [export.fixtures.guard(value=1 + number) for number in range(3)]
    send(export, sender)
    (asked,) = server.asked
    assert (asked.headers["content-encoding"], asked.headers["authorization"]) == ("gzip", "Bearer t0ken")
    entries = json.loads(gzip.decompress(asked.body))
    assert [one["decision_id"] for one in entries] == [one["decision_event_id"] for one in made]
    numbers = [one["req_id"] for one in entries]
    assert numbers == sorted(set(numbers)) and all(type(one) is int and one > 0 for one in numbers), "the feed's own"
    first = entries[0]
    assert (first["path"], first["requested_by"], first["labels"]["app"]) == (
        "sentinel/retail-refund",
        "retail-refund-agent",
        "sentinel",
    )
    assert first["input"]["amount"] == {"value": 1, "currency": "USD"}
    assert first["result"]["decision"] == "ALLOW"
    assert first["bundles"]["retail-refund"]["revision"].startswith("sha256:")
    assert "/input/params" in first["erased"] and first["metrics"]["timer_server_handler_ns"] >= 0


def test_a_refusal_at_a_renewal_names_its_policy_and_its_agent(
    export: Export, server: ScriptedServer, tmp_path: Path
) -> None:
    sender, fixtures = sender_with(export, decision_log_url=f"{server.url}/logs"), export.fixtures
    body = guard_body(value=140)
    fixtures.guard(body)
    let_permits_expire(fixtures)
    policy_change(fixtures, tmp_path, 'approve_up_to: {USD: "1000.00"', 'approve_up_to: {USD: "100.00"')
    declare_policies(fixtures.authority)
    assert fixtures.guard(body)["decision"] == "DENY"
    send(export, sender)
    entry = [one for asked in server.asked for one in json.loads(gzip.decompress(asked.body))][-1]
    assert entry["result"] == {"decision": "DENY", "reason_code": "over_limit"}
    assert (entry["path"], entry.get("requested_by")) == ("sentinel/retail-refund", body["agent_id"])
    assert (entry["input"]["agent_id"], entry["input"]["action"]) == (body["agent_id"], body["action"])
    digest = fixtures.one("select policy_digest from sentinel.policies_in_force where policy_id = 'retail-refund'")
    assert entry["bundles"] == {"retail-refund": {"revision": digest}}


TRACE, SPAN, OTHER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", "0af7651916cd43dd8448eb211c80319c"


def asked_within(fixtures: Fixtures, traceparent: str, path: str, body: Any) -> Any:
    """The answer to a request with this header."""
    answered = fixtures.post(path, body, headers={"traceparent": traceparent})
    assert answered.status_code == 200, answered.text
    return answered.get_json()


def test_an_entry_names_the_trace_and_span_that_the_guard_came_from_however_it_was_recorded(
    export: Export, server: ScriptedServer
) -> None:
    sender, fixtures = sender_with(export, decision_log_url=f"{server.url}/logs"), export.fixtures
    within = f"00-{TRACE}-{SPAN}-01"
    alone, started, asks = guard_body(), guard_body(start_id=str(uuid.uuid4())), guard_body(value=900)
    duplicate = guard_body(params={"refund_id": alone["params"]["refund_id"]})
    traced = [asked_within(fixtures, within, "action/guard", body) for body in (alone, started, asks, duplicate)]
    assert [one["decision"] for one in traced] == ["ALLOW", "ALLOW", "APPROVAL_REQUIRED", "DENY"]
    together = asked_within(
        fixtures, within, "action/guard/batch", {"requests": [guard_body(), guard_body(), guard_body(value=900)]}
    )
    traced += [one["body"] for one in together["answers"]]
    # Who is given a recorded decision is not who was decided on.
    asked_within(fixtures, f"00-{OTHER}-{SPAN}-01", "action/guard", alone)
    question = {"subject": {"type": "agent", "id": alone["agent_id"]}, "action": {"name": alone["action"]}, "resource": {"type": "refund", "id": "rf_zen"},
                "context": {"idempotency_key": "zen"}}  # fmt: skip
    answered = fixtures.client.post(
        "/access/v1/evaluation", json=question, headers={"X-API-Key": fixtures.key, "traceparent": within}
    )
    assert answered.status_code == 200, answered.text
    untraced = [fixtures.guard()["decision_event_id"]]
    send(export, sender)
    entries = [one for asked in server.asked for one in json.loads(gzip.decompress(asked.body))]
    named = {one["decision_id"] for one in entries if (one.get("trace_id"), one.get("span_id")) == (TRACE, SPAN)}
    silent = {one["decision_id"] for one in entries if "trace_id" not in one and "span_id" not in one}
    assert {one["decision_event_id"] for one in traced} < named and len(named) == len(traced) + 1
    assert silent == set(untraced)
    assert fixtures.broken_invariants() == []


@pytest.mark.parametrize(
    "header",
    ["", "nonsense", f"00-{TRACE.upper()}-{SPAN}-01", f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", f"ff-{TRACE}-{SPAN}-01",
     f"00-{TRACE}-{SPAN}-01,00-{OTHER}-{SPAN}-01", f"00-{TRACE}-{SPAN}"],
)  # fmt: skip
def test_a_header_that_names_no_trace_is_kept_nowhere_and_harms_no_guard(fixtures: Fixtures, header: str) -> None:
    assert asked_within(fixtures, header, "action/guard", guard_body())["decision"] == "ALLOW"
    assert fixtures.one("select count(*) from sentinel.event_rows where trace is not null") == 0


def test_a_decision_without_a_trace_takes_no_byte_more(fixtures: Fixtures) -> None:
    """A row says which of its columns are empty in one bit each, in whole bytes: this column's bit was there already."""
    fixtures.guard()
    width = (
        "select array_agg(pg_column_size(r.*) order by r.event_id) from sentinel.event_rows r where kind = 'decision'"
    )
    (plain,) = fixtures.one(width)
    columns = "select count(*) from pg_attribute where attrelid = 'sentinel.event_rows'::regclass and attnum > 0"
    assert 16 < fixtures.one(columns) <= 24
    asked_within(fixtures, f"00-{TRACE}-{SPAN}-01", "action/guard", guard_body())
    assert 24 < fixtures.one(width)[1] - plain <= 32


def test_a_batch_that_is_not_taken_is_sent_again_whole_and_given_up_event_by_event(
    export: Export, server: ScriptedServer
) -> None:
    sender = sender_with(export, decision_log_url=f"{server.url}/logs")
    made = [export.fixtures.guard()["decision_event_id"] for _ in range(3)]
    server.script = answers(503)
    send(export, sender)
    export.due_now()
    send(export, sender)
    assert server.asked[0].body == server.asked[1].body
    export.let_hours_pass(24)
    export.due_now()
    send(export, sender)
    rows = export.fixtures.admin.execute(
        "select event_id::text from sentinel.dead_letters order by position"
    ).fetchall()
    assert [event_id for (event_id,) in rows] == made


def test_of_a_batch_that_is_not_taken_only_the_old_decisions_are_given_up(
    export: Export, server: ScriptedServer
) -> None:
    sender = sender_with(export, decision_log_url=f"{server.url}/logs")
    old = export.fixtures.guard()["decision_event_id"]
    server.script = answers(503)
    send(export, sender)
    export.let_hours_pass(24)
    young = export.fixtures.guard()["decision_event_id"]
    export.due_now()
    send(export, sender)
    rows = export.fixtures.admin.execute("select event_id::text from sentinel.dead_letters").fetchall()
    assert [event_id for (event_id,) in rows] == [old]
    server.script = answers(200)
    export.due_now()
    send(export, sender)
    (entry,) = json.loads(gzip.decompress(server.asked[-1].body))
    assert entry["decision_id"] == young


def kept_served(export: Export, sender: EventSender, seconds: int) -> int:
    """A settled sender says what it serves; how many receivers ended that nobody had for so long."""
    return sender._deliveries.keep_served(seconds)


def test_a_receiver_whose_setting_was_taken_out_ends_and_begins_anew_with_it(
    export: Export, server: ScriptedServer
) -> None:
    fixtures, settings = export.fixtures, {"decision_log_url": f"{server.url}/logs"}
    with_log = sender_with(export, **settings)
    assert kept_served(export, with_log, 0) == 0, "one that is served goes on"
    without = sender_with(export)
    assert kept_served(export, without, 3600) == 0, "its sender may be down for a while"
    assert kept_served(export, without, 0) == 1
    for _ in range(3):
        fixtures.guard()
    send(export, without)
    deliveries = Deliveries(export.pool, ["webhook"], lease_seconds=1, give_up_seconds=1)
    assert deliveries.counts().behind == 0
    listed = {one.kind: one.behind for one in list_endpoints(fixtures.console_pool, fixtures.tenant_id)}
    assert listed["decision_log"] == 0
    assert kept_served(export, with_log, 0) == 0, "its sender had no database for so long, and is there again"
    later = fixtures.guard()["decision_event_id"]
    send(export, with_log)
    (asked,) = server.asked
    assert [one["decision_id"] for one in json.loads(gzip.decompress(asked.body))] == [later], "what comes from now on"


def test_what_is_sent_to_a_setting_is_its_own_tenants_whoever_else_sends_from_this_database(
    export: Export, server: ScriptedServer
) -> None:
    """The finding: a sender took the receivers of its kinds of every tenant, and sent what was theirs to its own address."""
    fixtures = export.fixtures
    other_tenant, other_key, _ = add_tenant(fixtures.url, "other")
    with ScriptedServer().running() as others:
        own = sender_with(export, decision_log_url=f"{server.url}/logs", tenant_id=fixtures.tenant_id)
        theirs = sender_with(export, decision_log_url=f"{others.url}/logs", tenant_id=other_tenant)
        asked = [fixtures.guard(), fixtures.post("action/guard", guard_body(), key=other_key).get_json()]
        send(export, own)
        assert (len(server.asked), len(others.asked)) == (1, 0)
        others.script = answers(500)
        send(export, theirs)
        export.let_hours_pass(24)
        export.due_now()
        send(export, theirs)
        again = "update sentinel.dead_letters set resend_asked_at = clock_timestamp(), resend_asked_by = 'a' where tenant_id = %s"
        assert fixtures.admin.execute(again, [other_tenant]).rowcount == 1
        others.script = answers(200)
        send(export, own)
        assert len(server.asked) == 1, "nor what is sent again"
        send(export, theirs)
    sent = [[*map(decisions_in, one.asked)] for one in (server, others)]
    assert sent == [[[asked[0]["decision_event_id"]]], [[asked[1]["decision_event_id"]]] * 3]


def decisions_in(asked: Asked) -> list[str]:
    """The decisions of a portion of a decision log."""
    return [one["decision_id"] for one in json.loads(gzip.decompress(asked.body))]


def test_a_running_sender_says_what_it_serves_and_ends_the_rest(
    export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender_with(export, decision_log_url="http://127.0.0.1:1/logs")
    sender_with(export, slack_webhook_url="http://127.0.0.1:1/T")
    monkeypatch.setattr(sender_module, "SETTLED_SECONDS", 0.0)
    export.fixtures.admin.execute("update sentinel.event_endpoints set served_at = served_at - interval '8 days'")
    stop = threading.Event()
    running = sender_with(export, slack_webhook_url="http://127.0.0.1:1/T")
    thread = threading.Thread(target=running.run, args=(stop, 1))
    thread.start()
    ended = "select kind, disabled_reason from sentinel.event_endpoints where disabled_at is not null"
    wait_until(lambda: export.fixtures.admin.execute(ended).fetchall())
    stop.set()
    thread.join()
    assert export.fixtures.admin.execute(ended).fetchall() == [("decision_log", "setting")]


def test_a_question_that_nobody_can_answer_any_more_is_told_to_nobody(export: Export, server: ScriptedServer) -> None:
    fixtures, sender = export.fixtures, sender_with(export, slack_webhook_url=f"{server.url}/T/B/secret")
    ran_out, decided, waits = (fixtures.guard(value=900)["approval_id"] for _ in range(3))
    fixtures.admin.execute("set session_replication_role = replica")
    fixtures.admin.execute(
        "update sentinel.approvals set expires_at = clock_timestamp() where approval_id = %s", [ran_out]
    )
    fixtures.admin.execute(
        "update sentinel.approvals set status = 'rejected', decided_at = clock_timestamp() where approval_id = %s",
        [decided],
    )
    fixtures.admin.execute("set session_replication_role = origin")
    send(export, sender)
    assert [asked.json["text"].rpartition("/")[2] for asked in server.asked] == [waits]


def test_nor_is_one_that_was_decided_while_the_notices_before_it_were_sent(
    export: Export, server: ScriptedServer
) -> None:
    """The finding: whether an approval waits was read with 200 events, and their notices sent for 20 seconds."""
    fixtures, sender = export.fixtures, sender_with(export, slack_webhook_url=f"{server.url}/T/B/secret")
    first, decided, last = (fixtures.guard(value=900)["approval_id"] for _ in range(3))

    def meanwhile(asked: Asked) -> None:
        if first in asked.json["text"]:
            decide(fixtures, decided, "reject")
        asked.answer(200, b"ok")

    server.script = meanwhile
    send(export, sender)
    assert [asked.json["text"].rpartition("/")[2] for asked in server.asked] == [first, last]


def test_faults_of_the_settings_are_told_at_once_without_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "SENTINEL_DATABASE_URL": "postgresql://x", "SENTINEL_EXPORT_SECRETS": "short", "SENTINEL_EXPORT_MAIL_TO": "a, b",
        "SENTINEL_EXPORT_SLACK_WEBHOOK_URL": "https://10.0.0.1/T/secret-part", "SENTINEL_EXPORT_THREADS": "many",
    }  # fmt: skip
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UnsafeConfiguration) as refused:
        load_export_settings()
    for name in (*list(given)[1:], "SMTP_HOST", "SMTP_FROM"):
        assert f"{name}:" in refused.value.detail, name
    assert "secret-part" not in refused.value.detail


def test_settings_are_read() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SENTINEL_EXPORT_DATABASE_URL", "postgresql://elsewhere")
        patch.setenv("SENTINEL_EXPORT_SECRETS", f"{EXPORT_SECRET}, an-older-one-0123456789-0123456789")
        found = load_export_settings(threads=2)
    assert isinstance(found, ExportSettings) and found.threads == 2 and found.by_setting == {}
    assert found.secrets == (EXPORT_SECRET, "an-older-one-0123456789-0123456789")
    assert EXPORT_SECRET not in repr(found.client)
