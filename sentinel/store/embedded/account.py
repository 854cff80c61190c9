"""The operating-system account that runs the server, and what it can access.

PostgreSQL refuses to run as root. As root we use an unprivileged account that already exists; any
other user runs the server itself. Only mode bits are checked, so an access control list may make us
relocate the data needlessly; it never makes us widen a folder's permissions.
"""

from __future__ import annotations

import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path

from sentinel.store.embedded.failures import EmbeddedError

_CANDIDATES = ("nobody", "postgres", "daemon", "www-data", "bin")


@dataclass(frozen=True)
class Account:
    """The account that runs the server. `switch` is true when we are root and must become that account."""

    name: str
    uid: int
    gid: int
    switch: bool


def server_account(data_owner: int | None) -> Account:
    """The account for a data folder owned by user id `data_owner` (None: there is no data yet). Raises `EmbeddedError`."""
    uid = os.geteuid()
    if uid != 0:
        return _ourselves(uid, data_owner)
    if data_owner:
        return _existing(data_owner)
    for name in _CANDIDATES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return Account(name, entry.pw_uid, entry.pw_gid, switch=True)
    raise EmbeddedError("PostgreSQL cannot run as root and no unprivileged account exists: run as an ordinary user")


def _ourselves(uid: int, data_owner: int | None) -> Account:
    if data_owner not in (None, uid):
        raise EmbeddedError(
            f"the data folder belongs to user {data_owner} and you are user {uid}: "
            "run as that user or as root, or give another folder with SENTINEL_DATA_DIR"
        )
    return Account("", uid, os.getegid(), switch=False)


def _existing(uid: int) -> Account:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return Account(str(uid), uid, uid, switch=True)
    return Account(entry.pw_name, uid, entry.pw_gid, switch=True)


def may_enter(path: Path, account: Account) -> bool:
    """True if the account may pass through `path` (a folder) and all its parents."""
    return not account.switch or all(_allowed(step, account, 1) for step in (path, *path.parents))


def may_read_folder(path: Path, account: Account) -> bool:
    """True if the account may reach the folder `path` and list it."""
    return may_enter(path, account) and (not account.switch or _allowed(path, account, 4))


def may_run(program: Path, account: Account) -> bool:
    """True if the account may reach the file `program` and execute it."""
    return may_enter(program.parent, account) and (not account.switch or _allowed(program, account, 5))


def _allowed(path: Path, account: Account, bits: int) -> bool:
    try:
        info = path.stat()
    except OSError:
        return False
    shift = 6 if info.st_uid == account.uid else 3 if info.st_gid == account.gid else 0
    return (stat.S_IMODE(info.st_mode) >> shift) & bits == bits


def chown_to_account(path: Path, account: Account) -> None:
    """Hand a folder that we made to the account."""
    if account.switch:
        os.chown(path, account.uid, account.gid)
