"""Ways to customers: each failure is a value, secrets stay where they belong, mail ends in time."""

from __future__ import annotations

import json
import logging
import socket
import ssl
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from email import message_from_bytes
from email.policy import default
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sentinel.demo.access import DemoAccess
from sentinel.demo.command import Ports, _environment
from sentinel.platform.outbound import mail
from sentinel.platform.outbound.mail import SmtpAccount
from sentinel.platform.settings import UnsafeConfiguration
from tests.support.ports import free_port
from tests.support.scripted_server import SLACK
from worker.notify import (
    FILE_NAME,
    Delivered,
    Failed,
    FileNotifier,
    LogNotifier,
    Message,
    Messenger,
    SmtpNotifier,
    confirm_message,
    notifier_from,
)
from worker.refunds.settings import WorkerSettings, read_settings

pytestmark = pytest.mark.slow

CARD = uuid.UUID(int=7)
LINK = "https://console.example/confirm/" + "s" * 140
SECRET = "only-for-tests-of-notes-0123456789"


def message(**over: Any) -> Message:
    """A message to a customer; `over` replaces a card's fields."""
    fields: dict[str, Any] = {
        "confirmation_id": CARD, "language": "de", "contact": "someone@shop.example", "scenario": "fee", "amount_minor": 98000,
        "currency": "EUR", "order_ref": "ORD\u202e-1", "expires_at": datetime(2030, 1, 2, 3, 4, tzinfo=UTC), "link": LINK,
    }  # fmt: skip
    return confirm_message(**{**fields, **over})


def test_a_message_says_amount_order_end_and_link_in_the_customers_language() -> None:
    german = message()
    for text in ("980,00\xa0€", "ORD[U+202E]-1", "2. Januar 2030, 03:04 Uhr UTC", LINK):
        assert text in german.text
    english = message(language="fr", order_ref=None)
    assert english.language == "en"
    assert "Order" not in english.text
    assert "Coupon worth: €980.00" in message(language="en", scenario="compensation").text


def test_an_orders_name_is_no_second_link() -> None:
    told = message(order_ref="https://evil.example/pay?now").text
    assert "https:// evil. example/ pay?now" in told
    assert told.count("https://") == 2 and LINK in told


def test_a_printed_message_holds_nothing_that_only_its_customer_may_see() -> None:
    printed = repr(message())
    assert str(CARD) in printed
    assert not any(secret in printed for secret in ("sss", "someone", "ORD", "980"))


# The log


def test_the_log_has_the_cards_id_and_neither_link_nor_address(caplog: pytest.LogCaptureFixture) -> None:
    assert LogNotifier().deliver(message()) == Delivered()
    assert str(CARD) in caplog.text
    assert leaks(caplog.text) == []


def leaks(printed: str) -> list[str]:
    """What must never be in a log."""
    return [secret for secret in (LINK, "s" * 20, "someone@shop", "ORD") if secret in printed]


def test_a_notifier_that_logs_the_message_would_be_caught(caplog: pytest.LogCaptureFixture) -> None:
    """The mutant."""
    logging.getLogger("worker.notify").warning("%s", message().text)
    assert leaks(caplog.text)


# The file


def test_the_outbox_gets_one_line_per_message_for_its_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "var" / "outbox"
    notifier = FileNotifier(folder)
    assert [notifier.deliver(message()) for _ in range(2)] == [Delivered()] * 2
    lines = [json.loads(line) for line in (folder / FILE_NAME).read_text().splitlines()]
    assert [line["link"] for line in lines] == [LINK, LINK]
    assert (lines[0]["to"], lines[0]["confirmation_id"]) == ("someone@shop.example", str(CARD))
    assert (folder / FILE_NAME).stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700


def test_writers_at_once_do_not_mix_their_lines(tmp_path: Path) -> None:
    writers = [threading.Thread(target=FileNotifier(tmp_path).deliver, args=(message(),)) for _ in range(16)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len([json.loads(line) for line in (tmp_path / FILE_NAME).read_text().splitlines()]) == 16


def test_half_a_line_that_a_crash_left_swallows_no_message(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text('{"confirmation_id": "half')
    assert FileNotifier(tmp_path).deliver(message()) == Delivered()
    assert json.loads((tmp_path / FILE_NAME).read_text().splitlines()[-1])["link"] == LINK


def test_a_file_that_cannot_be_written_is_a_failure_and_leaves_no_half_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    assert FileNotifier(tmp_path / "file").deliver(message()) == Failed("file: File exists")
    (tmp_path / FILE_NAME).symlink_to(tmp_path / "elsewhere")
    assert isinstance(FileNotifier(tmp_path).deliver(message()), Failed)
    assert not (tmp_path / "elsewhere").exists()
    (tmp_path / FILE_NAME).unlink()
    FileNotifier(tmp_path).deliver(message())
    before = (tmp_path / FILE_NAME).read_bytes()

    def full_disk(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("worker.notify.os.fsync", full_disk)
    assert FileNotifier(tmp_path).deliver(message()) == Failed("file: No space left on device")
    assert (tmp_path / FILE_NAME).read_bytes() == before


# Mail

OK = (
    b"220 ready\r\n",
    b"250-here\r\n250 8BITMIME\r\n",
    b"250 ok\r\n",
    b"250 ok\r\n",
    b"354 go on\r\n",
    b"250 taken\r\n",
    b"221 bye\r\n",
)
"""Greeting, then the answers to EHLO, MAIL, RCPT, DATA, the mail itself and QUIT."""


def but(place: int, answer: bytes) -> tuple[bytes, ...]:
    """A server that answers well until `place`, says that, and is polite to RSET and QUIT."""
    return (*OK[:place], answer, b"250 ok\r\n", b"221 bye\r\n")


@contextmanager
def mail_server(answers: Sequence[bytes], *, drip_seconds: float = 0.0) -> Iterator[SimpleNamespace]:
    """A scripted mail server on loopback; `got` is what it received. After its last answer it says nothing more."""
    listener = socket.create_server(("127.0.0.1", 0))
    found = SimpleNamespace(port=listener.getsockname()[1], got=b"")
    thread = threading.Thread(target=_serve, args=(listener, answers, drip_seconds, found), daemon=True)
    thread.start()
    yield found
    listener.close()
    thread.join(5)


def _serve(listener: socket.socket, answers: Sequence[bytes], drip_seconds: float, found: SimpleNamespace) -> None:
    try:
        connection, _ = listener.accept()
    except OSError:
        return
    with connection, connection.makefile("rb") as lines:
        connection.settimeout(60)
        try:
            for place, answer in enumerate(answers):
                if place:
                    found.got += _one_command(lines, whole_mail=answers[place - 1].startswith(b"354"))
                for byte in answer if drip_seconds else ():
                    connection.sendall(bytes([byte]))
                    time.sleep(drip_seconds)
                if not drip_seconds:
                    connection.sendall(answer)
            lines.read()
        except OSError:
            pass


def _one_command(lines: Any, *, whole_mail: bool) -> bytes:
    got = line = lines.readline()
    while whole_mail and line not in (b".\r\n", b""):
        line = lines.readline()
        got += line
    return bytes(got)


def mail_by(server: SimpleNamespace, **over: Any) -> SmtpNotifier:
    """A notifier that hands in at the scripted server."""
    fields = {
        "host": "127.0.0.1",
        "port": server.port,
        "sender": "Shop <refunds@shop.example>",
        "security": "none",
        "timeout_seconds": 30.0,
    }
    return SmtpNotifier(SmtpAccount(**{**fields, **over}))


def test_a_mail_is_handed_in_whole() -> None:
    with mail_server(OK) as server:
        assert mail_by(server).deliver(message()) == Delivered()
    head, _, mail = server.got.partition(b"data\r\n")
    assert b"ehlo shop.example" in head.lower()
    assert b"mail FROM:<refunds@shop.example>" in head
    assert b"rcpt TO:<someone@shop.example>" in head
    read = message_from_bytes(mail.rpartition(b"\r\n.\r\n")[0], policy=default)
    assert read["To"] == "someone@shop.example"
    assert read["Subject"] == "Bitte bestätigen Sie Ihren Erstattungsantrag"
    assert read["Message-ID"] == f"<{CARD}@shop.example>"
    assert LINK in read.get_content()
    assert max(map(len, mail.splitlines())) < 100, "no relay has to break a line of ours"


@pytest.mark.parametrize(
    ("answers", "failure"),
    [
        (but(3, b"550 no such user someone@shop.example\r\n"), Failed("smtp: 550", final=True)),
        (but(3, b"451 later\r\n"), Failed("smtp: 451")), (but(5, b"554 spam\r\n"), Failed("smtp: 554", final=True)),
        (but(5, b"452 full\r\n"), Failed("smtp: 452")), (but(2, b"553 not from you\r\n"), Failed("smtp: 553")),
        ((b"554 go away\r\n",), Failed("smtp: 554")), ((b"garbage\r\n",), Failed("smtp: SMTPServerDisconnected")),
        ((b"220 " + b"x" * 100_000,), Failed("smtp: 500")),
    ],
    ids=["unknown customer", "later", "spam", "full", "sender", "closed", "garbage", "endless"],
)  # fmt: skip
def test_what_a_mail_server_refuses_is_a_code_without_an_address(answers: tuple[bytes, ...], failure: Failed) -> None:
    with mail_server(answers) as server:
        found = mail_by(server).deliver(message())
    assert isinstance(found, Failed)
    if failure.kind == "smtp: SMTPServerDisconnected":
        assert found.kind.startswith("smtp: ")
    else:
        assert found == failure
    assert "@" not in found.kind


def test_a_server_that_is_not_there_is_a_failure() -> None:
    server = SimpleNamespace(port=free_port())
    assert mail_by(server).deliver(message()) == Failed("smtp: ConnectionRefusedError")


@pytest.mark.parametrize("answers", [(), OK[:1], OK[:4], OK[:5]], ids=["greeting", "ehlo", "rcpt", "mail"])
def test_a_server_that_falls_silent_is_not_waited_for(answers: tuple[bytes, ...]) -> None:
    with mail_server(answers) as server:
        began = time.monotonic()
        assert mail_by(server, timeout_seconds=0.4).deliver(message()) == Failed("smtp: timeout")
        assert time.monotonic() - began < SLACK


def test_a_server_that_drips_is_not_waited_for_either() -> None:
    with mail_server((b"220 " + b"slow" * 100,), drip_seconds=0.1) as server:
        began = time.monotonic()
        assert mail_by(server, timeout_seconds=0.6).deliver(message()) == Failed("smtp: timeout")
        assert time.monotonic() - began < SLACK


def test_addresses_that_let_nobody_connect_take_one_deadline_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The finding: each address had the whole time, and the look-up of the name any time it liked."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        address = full.getsockname()
        crowd = [socket.socket() for _ in range(4)]
        for one in crowd:
            one.setblocking(False)
            one.connect_ex(address)
        targets = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", address)] * 200
        monkeypatch.setattr(mail, "look_up", lambda host, port, seconds: targets)
        began = time.monotonic()
        found = mail_by(SimpleNamespace(port=address[1]), timeout_seconds=0.4).deliver(message())
        for one in crowd:
            one.close()
    assert found == Failed("smtp: timeout")
    assert time.monotonic() - began < SLACK


def test_a_name_server_that_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: silent.wait(60))
    began = time.monotonic()
    found = mail_by(SimpleNamespace(port=1), timeout_seconds=0.4).deliver(message())
    silent.set()
    assert found == Failed("smtp: timeout")
    assert time.monotonic() - began < SLACK


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_a_handshake_has_what_is_left_of_the_time(monkeypatch: pytest.MonkeyPatch, security: str) -> None:
    """Over TLS nobody else can end a call in the middle of the handshake."""
    given: list[float | None] = []

    def note(self: Any, link: socket.socket, **_: Any) -> Any:
        given.append(link.gettimeout())
        raise OSError("seen enough")

    monkeypatch.setattr(ssl.SSLContext, "wrap_socket", note)
    answers = (*OK[:1], b"250-here\r\n250 STARTTLS\r\n", b"220 go\r\n")
    with mail_server(answers, drip_seconds=0.002) as server:
        assert mail_by(server, security=security, timeout_seconds=9.0).deliver(message()) == Failed("smtp: OSError")
    assert given[0] is not None and given[0] < 9.0


def test_a_mail_that_was_taken_is_delivered_even_if_the_server_never_says_goodbye() -> None:
    with mail_server(OK[:6]) as server:
        assert mail_by(server, timeout_seconds=2).deliver(message()) == Delivered()


def test_no_mail_goes_out_in_the_clear_where_tls_is_wanted() -> None:
    with mail_server(OK) as server:
        assert mail_by(server, security="starttls").deliver(message()) == Failed("smtp: SMTPNotSupportedError")
    assert b"FROM" not in server.got
    with mail_server((*OK[:1], b"250-here\r\n250 STARTTLS\r\n", b"220 go\r\n", b"not tls at all\r\n")) as server:
        found = mail_by(server, security="starttls", timeout_seconds=1.0).deliver(message())
    assert isinstance(found, Failed)
    assert b"FROM" not in server.got
    with mail_server(OK) as server:
        assert isinstance(mail_by(server, security="tls", timeout_seconds=1.0).deliver(message()), Failed)
    assert b"FROM" not in server.got


@pytest.mark.parametrize(
    "contact", [None, "", "someone", "a@b, c@d", "a@b\r\nBcc: c@d", "<a@b>", "a b@c", "ä@b.example", "+491234567"]
)
def test_what_is_no_plain_address_gets_no_mail(contact: str | None) -> None:
    notifier = SmtpNotifier(SmtpAccount(host="127.0.0.1", port=1, sender="a@b.example"))
    assert notifier.deliver(message(contact=contact)) == Failed("smtp: no address", final=True)


# The messenger


class FakeCards:
    """Cards that were taken, and what was noted about them."""

    def __init__(self, *attempts: int) -> None:
        self.noted: list[tuple[Any, ...]] = []
        self.attempts = attempts

    def wake_answered(self) -> int:
        return 0

    def undelivered(self, limit: int, longest_seconds: float) -> list[Any]:
        fields = {
            "ledger_entry_id": "l", "digest": "", "order_ref": "ORD", "channel": "private", "scenario": "fee", "amount_minor": 980,
            "currency": "EUR", "language": None, "contact": "someone@shop.example", "expires_at": datetime(2030, 1, 1, tzinfo=UTC),
        }  # fmt: skip
        return [SimpleNamespace(confirmation_id=CARD, delivery_attempts=n, **fields) for n in self.attempts[:limit]]

    def link(self, _: Any) -> str:
        return LINK

    def mark_delivered(self, card: uuid.UUID) -> None:
        self.noted.append((card,))

    def postpone(self, *noted: Any) -> None:
        self.noted.append(noted)


class Scripted:
    """A notifier that answers as told."""

    name, longest_seconds = "scripted", 0.0

    def __init__(self, *outcomes: Delivered | Failed | Exception) -> None:
        self.outcomes = list(outcomes)

    def deliver(self, _: Message) -> Delivered | Failed:
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def test_what_did_not_go_out_is_tried_again_and_stops_nobody_else(capsys: pytest.CaptureFixture[str]) -> None:
    cards = FakeCards(1, 3, 1, 2)
    notifier = Scripted(
        Failed("smtp: 451"), ValueError("someone@shop.example"), Failed("smtp: 550", final=True), Delivered()
    )
    assert Messenger(cards, notifier).deliver_due(10) == 1  # type: ignore[arg-type]
    assert cards.noted == [
        (CARD, "smtp: 451", 15.0), (CARD, "defect: ValueError", 60.0), (CARD, "smtp: 550", None), (CARD,)
    ]  # fmt: skip
    assert leaks("".join(capsys.readouterr())) == []


# Settings


def settings(monkeypatch: pytest.MonkeyPatch, **env: str) -> WorkerSettings:
    """Settings from exactly this environment."""
    for name in (
        "CONFIRM_SECRETS",
        "SENTINEL_SECRET_KEYS",
        "SENTINEL_DATABASE_URL",
        "WORKER_DATABASE_URL",
        "SENTINEL_DATA_DIR",
        *env,
    ):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    return read_settings(needs_authority=False)


def test_the_secrets_of_links_fall_back_to_the_authoritys_and_to_the_embedded_databases(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own, shared = SECRET + "-own", SECRET + "-shared"
    assert settings(monkeypatch, CONFIRM_SECRETS=f"{own}, {SECRET}", SENTINEL_SECRET_KEYS=shared).confirm_secrets == (
        own,
        SECRET,
    )
    assert settings(monkeypatch, SENTINEL_SECRET_KEYS=shared).confirm_secrets == (shared,)
    (tmp_path / "secret_key").write_text(SECRET + "\n")
    assert settings(monkeypatch, SENTINEL_DATA_DIR=str(tmp_path)).confirm_secrets == (SECRET,)
    assert (
        settings(monkeypatch, SENTINEL_DATA_DIR=str(tmp_path), SENTINEL_DATABASE_URL="postgresql://x").confirm_secrets
        == ()
    )


def test_what_is_started_by_hand_on_a_demos_folder_signs_links_as_the_demo_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "secret_key").write_text(SECRET + "\n")
    for name in ("CONFIRM_SECRETS", "SENTINEL_SECRET_KEYS"):
        monkeypatch.delenv(name, raising=False)
    demos = _environment(defaultdict(str), tmp_path, DemoAccess("tenant", "key", []), Ports(1, 2, 3, 4))
    signs, *known = settings(monkeypatch, SENTINEL_DATA_DIR=str(tmp_path)).confirm_secrets
    assert signs == demos["worker"]["CONFIRM_SECRETS"] == demos["console"]["CONFIRM_SECRETS"]
    assert known == [SECRET], "links of before the demo"


def test_the_notifier_is_the_one_that_was_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    base = {"SENTINEL_DATA_DIR": str(tmp_path)}
    assert notifier_from(settings(monkeypatch, **base)).name == "file"
    assert notifier_from(settings(monkeypatch, **base, WORKER_NOTIFIER="log")).name == "log"
    mail = {"WORKER_NOTIFIER": "smtp", "SMTP_HOST": "mail.example", "SMTP_FROM": "a@b.example"}
    assert notifier_from(settings(monkeypatch, **base, **mail)).name == "smtp"


@pytest.mark.parametrize(
    ("env", "named"),
    [
        ({"CONFIRM_SECRETS": "short"}, "CONFIRM_SECRETS"), ({"CONFIRM_BASE_URL": "console"}, "CONFIRM_BASE_URL"),
        ({"CONFIRM_BASE_URL": "https://x/?a"}, "CONFIRM_BASE_URL"), ({"CONFIRM_EXPIRES_SECONDS": "5"}, "CONFIRM_EXPIRES_SECONDS"),
        ({"CONFIRM_EXPIRES_SECONDS": "soon"}, "CONFIRM_EXPIRES_SECONDS"), ({"WORKER_NOTIFIER": "fax"}, "WORKER_NOTIFIER"),
        ({"WORKER_NOTIFIER": "smtp"}, "SMTP_HOST"),
        ({"WORKER_NOTIFIER": "smtp", "SMTP_HOST": "mail.example", "SMTP_FROM": "a@b", "SMTP_SECURITY": "none"}, "SMTP_SECURITY"),
        ({"WORKER_NOTIFIER": "smtp", "SMTP_HOST": "mail.example", "SMTP_FROM": "a@b", "SMTP_SECURITY": "ssl"}, "SMTP_SECURITY"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_named_at_start(monkeypatch: pytest.MonkeyPatch, env: dict[str, str], named: str) -> None:
    with pytest.raises(UnsafeConfiguration, match=named):
        settings(monkeypatch, **env)
