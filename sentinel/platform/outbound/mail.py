"""Sends mail by the standard library: one connection per mail, one deadline, every failure a value.

Of a server's answer only the three-digit code is kept: its text often repeats the address.
"""

from __future__ import annotations

import contextlib
import re
import smtplib
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formatdate, parseaddr
from functools import partial

from sentinel.core.hosts import is_loopback
from sentinel.platform.outbound.client import connect, look_up

# One plain address, without the characters that could start a header, a list of addresses or a source route.
_ADDRESS = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.)*[A-Za-z0-9-]{1,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SmtpAccount:
    """The account that mail is submitted with. `security` is none, starttls or tls; certificates are always checked."""

    host: str
    port: int
    sender: str
    security: str = "starttls"
    username: str = ""
    password: str = field(default="", repr=False)
    timeout_seconds: float = 10.0

    @property
    def domain(self) -> str:
        """The sender's domain, with which we greet the server (EHLO), without asking a name server for our own name."""
        return parseaddr(self.sender)[1].rpartition("@")[2] or "localhost"


@dataclass(frozen=True, slots=True)
class Mail:
    """One plain-text mail. `message_id` is the same at every attempt; `to` is one address, None if none is known."""

    message_id: str
    to: str | None = field(repr=False)
    subject: str = field(repr=False)
    text: str = field(repr=False)
    language: str = "en"


@dataclass(frozen=True, slots=True)
class MailFailure:
    """The mail was certainly or probably not accepted; `kind` says why. `final`: a retry would fail the same way."""

    kind: str
    final: bool = False


def is_mail_address(text: str) -> bool:
    """Whether it is one plain address that a mail can be sent to."""
    return _ADDRESS.fullmatch(text) is not None


def account_faults(account: SmtpAccount, needed_for: str) -> list[str]:
    """What is wrong with the SMTP_ settings of an account, a line each; `needed_for` is the setting that needs one."""
    faults = [
        f"{variable}: required with {needed_for}"
        for variable, value in (("SMTP_HOST", account.host), ("SMTP_FROM", account.sender))
        if not value
    ]
    if account.security == "none" and account.host and not is_loopback(account.host):
        # Mail may hold a link that is a bearer secret: it does not travel in the clear.
        faults.append("SMTP_SECURITY: none is only for a mail server on this machine")
    return faults


class Mailer:
    """Submits mails with one account. Thread-safe; nothing raises."""

    def __init__(self, account: SmtpAccount) -> None:
        self._account = account

    def send(self, mail: Mail) -> MailFailure | None:
        """Submit one mail within `timeout_seconds` in all. None when the server has accepted it."""
        if mail.to is None or not is_mail_address(mail.to):
            return MailFailure("smtp: no address", final=True)
        deadline = time.monotonic() + self._account.timeout_seconds
        try:
            with self._connected(deadline) as server:
                server.send_message(self._written(mail), self._account.sender, [mail.to])
        except (
            smtplib.SMTPException,
            OSError,
            ValueError,
            RuntimeError,
        ) as error:  # the last: no thread can be started
            return _failure(error, out_of_time=time.monotonic() >= deadline)
        return None

    @contextlib.contextmanager
    def _connected(self, deadline: float) -> Iterator[smtplib.SMTP]:
        account, tls = self._account, _Tls(deadline)
        server = smtplib.SMTP(local_hostname=account.domain, timeout=account.timeout_seconds)
        server._host = account.host  # type: ignore[attr-defined]  # what starttls checks the certificate against
        # A timeout per read does not bound a server that sends a byte now and then: this thread bounds the whole call.
        done = threading.Event()
        threading.Thread(target=_shut_at, args=(server, deadline, done), name="smtp-watch", daemon=True).start()
        try:
            server.sock = _dial(account.host, account.port, deadline)
            if account.security == "tls":
                server.sock = tls.wrap_socket(server.sock, server_hostname=account.host)
            code, said = server.getreply()
            if code != 220:
                raise smtplib.SMTPConnectError(code, said)
            if account.security == "starttls":
                server.starttls(context=tls)  # type: ignore[call-overload]
            if account.username:
                server.login(account.username, account.password)
            yield server
            with contextlib.suppress(smtplib.SMTPException, OSError):
                server.quit()
        finally:
            done.set()
            server.close()

    def _written(self, mail: Mail) -> EmailMessage:
        written = EmailMessage(policy=SMTP)
        written["From"], written["To"], written["Subject"] = self._account.sender, mail.to, mail.subject
        written["Date"] = formatdate()
        # The same id at every attempt: a mailbox that gets the mail twice can recognise that.
        written["Message-ID"] = f"<{mail.message_id}@{self._account.domain}>"
        written["Auto-Submitted"] = "auto-generated"
        written["Content-Language"] = mail.language
        written.set_content(mail.text, cte="quoted-printable")
        return written


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the deadline is over")
    return left


def _dial(host: str, port: int, deadline: float) -> socket.socket:
    """Connect within the deadline; smtplib's own way looks a name up without a limit and gives each address the whole time."""
    left = partial(_left, deadline)
    return connect(look_up(host, port, left()), left)


class _Tls:
    """Stands in for an `ssl.SSLContext`; bounds the handshake, in which no other thread can shut down the connection."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline

    def wrap_socket(self, link: socket.socket, *, server_hostname: str) -> ssl.SSLSocket:
        """The connection over TLS, its handshake done by the deadline. Raises `OSError`."""
        link.settimeout(_left(self._deadline))
        return ssl.create_default_context().wrap_socket(link, server_hostname=server_hostname)


def _shut_at(server: smtplib.SMTP, deadline: float, done: threading.Event) -> None:
    """Shut down the connection at the deadline, repeatedly until the waiting call has ended."""
    while not done.wait(max(0.1, deadline - time.monotonic())):
        # Between two steps there may be no socket yet, or none any more.
        with contextlib.suppress(OSError, AttributeError):
            server.sock.shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr]


def _failure(error: Exception, *, out_of_time: bool) -> MailFailure:
    """The failure as a code. Only a 5xx about this address or mail is final: trouble with our own account can be fixed."""
    if out_of_time or isinstance(error, TimeoutError):
        return MailFailure("smtp: timeout")
    code = _code(error)
    if code is None:
        return MailFailure(f"smtp: {type(error).__name__}")
    about_this_mail = isinstance(error, (smtplib.SMTPRecipientsRefused, smtplib.SMTPDataError))
    return MailFailure(f"smtp: {code}", final=about_this_mail and 500 <= code < 600)


def _code(error: Exception) -> int | None:
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return next((code for code, _ in error.recipients.values()), None)
    return error.smtp_code if isinstance(error, smtplib.SMTPResponseException) and error.smtp_code > 0 else None
