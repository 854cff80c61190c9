"""The secrets of the database's logins: one file each, mode 0600, made once.

The server keeps only what checks a secret (SCRAM-SHA-256, RFC 5802); the file is the one place where it can be read.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from sentinel.store.database import AUTHORITY, BOARD, CONSOLE, EXPORTER, ORDERS, WORKER
from sentinel.store.embedded.failures import EmbeddedError
from sentinel.store.embedded.layout import open_ours

SUPERUSER = "sentinel_admin"
"""Makes the cluster and migrates; no program connects as it."""

LOGINS = (SUPERUSER, AUTHORITY, WORKER, ORDERS, CONSOLE, EXPORTER, BOARD)

_ITERATIONS = 4096


@dataclass(frozen=True)
class Passwords:
    """The files in `folder`, each named like its login."""

    folder: Path

    def of(self, login: str) -> str:
        """The secret of a login; "" for one that is none of ours. Raises `EmbeddedError` where its file cannot be read."""
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
                f"the secret of {login} is not in {self.folder}: stop what runs on this database (an older version made"
                " no secrets) and start again, which makes one"
            )
        return found

    def missing(self) -> list[str]:
        """Logins without a secret."""
        return [login for login in LOGINS if not self._is_there(login)]

    def make_missing(self) -> None:
        """Make what is missing. Call with the start lock held."""
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
