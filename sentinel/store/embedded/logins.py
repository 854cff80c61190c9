"""The logins of a cluster, one per program, and their secrets: one file each, mode 0600, made once.

The server keeps only a verifier of each secret (SCRAM-SHA-256, RFC 5802); the file is the one place with the secret
itself. Logins are set by PostgreSQL's single-user mode, while no server runs, so that at no moment anybody can connect
without a secret. A folder that an older version made, which admitted every local user, is changed the same way at its
next start.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sentinel.store.database import AUTHORITY, BOARD, CONSOLE, EXPORTER, ORDERS, PUBLIC, WORKER
from sentinel.store.embedded.account import Account, chown_to_account
from sentinel.store.embedded.binaries import Binaries
from sentinel.store.embedded.failures import EmbeddedError, from_output
from sentinel.store.embedded.layout import open_ours
from sentinel.store.embedded.process import launch

SUPERUSER = "sentinel_admin"
"""The login that makes the cluster and migrates; no program connects as it."""

LOGINS = (SUPERUSER, AUTHORITY, WORKER, ORDERS, CONSOLE, EXPORTER, PUBLIC, BOARD)

_ITERATIONS = 4096


@dataclass(frozen=True)
class Passwords:
    """The secrets of the logins: files in `folder`, each named like its login."""

    folder: Path

    def of(self, login: str) -> str:
        """The secret of a login; "" for one that is not in LOGINS. Raises `EmbeddedError` when its file is missing or unreadable."""
        if login not in LOGINS:
            return ""
        try:
            found = (self.folder / login).read_text().strip()
        except FileNotFoundError:
            found = ""
        except OSError as error:
            raise EmbeddedError(
                f"the secret of {login} in {self.folder} cannot be read: {error.strerror}; run as the owner of that folder"
            ) from error
        if not found:
            raise EmbeddedError(
                f"the secret of {login} is not in {self.folder}: stop the programs that use this database (an older version made"
                " no secrets) and start again, which makes one"
            )
        return found

    def missing(self) -> list[str]:
        """Logins without a secret."""
        return [login for login in LOGINS if not self._is_there(login)]

    def make_missing(self) -> None:
        """Make the missing secrets. Call with the start lock held."""
        if not self.folder.is_dir():
            self.folder.mkdir(mode=0o700)
            parent = self.folder.parent.stat()
            if os.geteuid() == 0 != parent.st_uid:
                os.chown(self.folder, parent.st_uid, parent.st_gid)
        for login in self.missing():
            with os.fdopen(open_ours(self.folder / login, os.O_WRONLY | os.O_TRUNC), "w") as file:
                file.write(secrets.token_urlsafe(32))

    def _is_there(self, login: str) -> bool:
        path = self.folder / login
        return path.exists() and path.stat().st_size > 0


def scram_verifier(password: str, salt: bytes) -> str:
    """The SCRAM verifier of an ASCII password (the form of `pg_authid.rolpassword`); it is no credential."""
    salted = hashlib.pbkdf2_hmac("sha256", password.encode("ascii"), salt, _ITERATIONS)
    stored_key = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    salt64, stored64, server64 = (base64.b64encode(part).decode() for part in (salt, stored_key, server_key))
    return f"SCRAM-SHA-256${_ITERATIONS}:{salt64}${stored64}:{server64}"


_RULES = """\
# Written by sentinel at every start. Each login has a secret of its own: the files in ../passwords of the data folder.
local all all scram-sha-256
"""
_SALT_BYTES = 16
_SECONDS = 180
_CREATE = "do $$ begin if not exists (select from pg_roles where rolname = '{0}') then create role {0}; end if; end $$;"


def ensure_logins(data_dir: Path, passwords: Passwords, binaries: Binaries, account: Account) -> None:
    """Give every login its secret and make the server require it, unless that is done. No server may run on `data_dir`."""
    rules = data_dir / "pg_hba.conf"
    if not passwords.missing() and rules.exists() and rules.read_text() == _RULES:
        return
    passwords.make_missing()
    _run_alone(data_dir, _statements(passwords), binaries, account)
    # Last, so that an interrupted run is repeated at the next start.
    _replace(rules, account)


def _statements(passwords: Passwords) -> bytes:
    """The statements that set the logins, one per line, because single-user mode ends a statement with its line."""
    lines = [_CREATE.format(login) for login in LOGINS if login != SUPERUSER]
    for login in LOGINS:
        verifier = scram_verifier(passwords.of(login), secrets.token_bytes(_SALT_BYTES))
        lines.append(f"alter role {login} login password '{verifier}';")
    return "\n".join(lines).encode() + b"\n"


def _run_alone(data_dir: Path, statements: bytes, binaries: Binaries, account: Account) -> None:
    command = [str(binaries.bin_dir / "postgres"), "--single", "-D", str(data_dir), "postgres"]
    with tempfile.TemporaryFile() as given:
        given.write(statements)
        given.seek(0)
        with launch(command, account, subprocess.PIPE, given=given) as process:
            try:
                said = process.communicate(timeout=_SECONDS)[0].decode(errors="replace")
            except subprocess.TimeoutExpired:
                process.kill()
                raise EmbeddedError(
                    f"PostgreSQL did not set its logins within {_SECONDS} s: is the disk very slow?"
                ) from None
    # An error in a statement neither ends single-user mode nor sets its exit status.
    if process.returncode != 0 or "ERROR:" in said or "FATAL:" in said:
        raise from_output(said, "setting the logins of PostgreSQL", data_dir)


def _replace(rules: Path, account: Account) -> None:
    fd, name = tempfile.mkstemp(prefix="pg_hba.", dir=rules.parent)
    draft = Path(name)
    try:
        with os.fdopen(fd, "w") as file:
            file.write(_RULES)
            file.flush()
            os.fsync(file.fileno())
        chown_to_account(draft, account)
        draft.replace(rules)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
