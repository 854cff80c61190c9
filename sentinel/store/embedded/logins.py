"""The logins of a cluster: one per program, each with its own secret.

Set while no server runs, by PostgreSQL's single-user mode, so that there is no moment at which anybody may enter. A folder
that an older version made, which let every local user in, is changed the same way at its next start.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import tempfile
from pathlib import Path

from sentinel.store.embedded.account import Account, chown_to_account
from sentinel.store.embedded.binaries import Binaries
from sentinel.store.embedded.failures import EmbeddedError, from_output
from sentinel.store.embedded.launch import launch
from sentinel.store.embedded.passwords import LOGINS, SUPERUSER, Passwords, scram_verifier

_RULES = """\
# Written by sentinel at every start. Each login has a secret of its own: the files in ../passwords of the data folder.
local all all scram-sha-256
"""
_SALT_BYTES = 16
_SECONDS = 180
_CREATE = "do $$ begin if not exists (select from pg_roles where rolname = '{0}') then create role {0}; end if; end $$;"


def ensure_logins(data_dir: Path, passwords: Passwords, binaries: Binaries, account: Account) -> None:
    """Give every login its secret and require one, unless that is done already. No server may run on `data_dir`."""
    rules = data_dir / "pg_hba.conf"
    if not passwords.missing() and rules.exists() and rules.read_text() == _RULES:
        return
    passwords.make_missing()
    _run_alone(data_dir, _statements(passwords), binaries, account)
    # Last, so that an interrupted run is repeated at the next start.
    _replace(rules, account)


def _statements(passwords: Passwords) -> bytes:
    """A statement a line: single-user mode reads them so."""
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
    # An error in a statement does not end it, and is no exit status.
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
