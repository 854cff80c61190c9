"""The folders of an embedded server, and how they are created.

    <base>/postgres/            ours: locks and server.log
    <base>/postgres/passwords/  a secret for each login, mode 0600
    <base>/postgres/<major>/    the data, owned by the server's account
    <base>/postgres/relocated   as root, when that account cannot come here: a link to a folder in
                                /var/lib/sentinel-embedded that holds <major>/ (and programs) instead
    /tmp/snt-<hash of base>/    the socket, in a short path of mode 0700

The mode of a folder that we did not make is never changed: that would open somebody's home.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sentinel.store.embedded.account import Account, chown_to_account, may_enter
from sentinel.store.embedded.failures import EmbeddedError, postgres_errors_in_one_line

RELOCATION_PARENTS = (Path("/var/lib/sentinel-embedded"), Path("/var/tmp/sentinel-embedded"))
# sun_path holds 107 bytes and a NUL; PostgreSQL appends this name and, briefly, ".lock".
_LONGEST_SOCKET_PATH = 107 - len("/.s.PGSQL.5432.lock")


@dataclass(frozen=True)
class Layout:
    """The folders of one base folder; `base` is absolute with links resolved."""

    base: Path

    @classmethod
    def of(cls, base_dir: Path) -> Layout:
        """The layout for a base folder, which need not exist."""
        return cls(base_dir.expanduser().resolve())

    @property
    def run_dir(self) -> Path:
        """Locks and log, and the data unless relocated."""
        return self.base / "postgres"

    @property
    def log(self) -> Path:
        """The server's log file."""
        return self.run_dir / "server.log"

    @property
    def passwords(self) -> Path:
        """The secrets of the database's logins."""
        return self.run_dir / "passwords"

    @property
    def link(self) -> Path:
        """The pointer to the relocated data."""
        return self.run_dir / "relocated"

    @property
    def tag(self) -> str:
        """Twelve hex digits that stand for the base folder in shared places."""
        return hashlib.sha256(os.fsencode(self.base)).hexdigest()[:12]

    def home(self) -> Path:
        """The folder that holds `<major>/` now: the run folder, or what the link points to."""
        if not self.link.is_symlink():
            return self.run_dir
        target = Path(os.readlink(self.link))
        if target.parent not in RELOCATION_PARENTS or not target.name.startswith(self.tag):
            raise EmbeddedError(f"{self.link} does not point to a folder of ours: delete that link to start empty")
        if not target.is_dir():
            raise EmbeddedError(
                f"the data of {self.base} was in {target}, which is gone: "
                f"restore it, or delete {self.link} to start empty"
            )
        return target

    def socket_dirs(self) -> list[Path]:
        """Where the socket folder may be, in order of preference: those a client can reach."""
        parents = dict.fromkeys((os.environ.get("TMPDIR") or "/tmp", "/tmp"))
        paths = [Path(os.path.abspath(parent)) / f"snt-{self.tag}" for parent in parents]
        # A client takes a comma in the host as the start of another host.
        return [path for path in paths if len(os.fsencode(path)) <= _LONGEST_SOCKET_PATH and "," not in str(path)]

    def relocated(self) -> Iterator[Path]:
        """Every relocated folder of this base, also one whose link was lost."""
        for parent in RELOCATION_PARENTS:
            if _is_ours_alone(parent):
                yield from parent.glob(f"{self.tag}-*")


def make_base(layout: Layout) -> None:
    """Create the base and run folders if missing.

    Mode 0700; as root 0711, so that the server's account may pass through to its data (not list).
    """
    mode = 0o711 if os.geteuid() == 0 else 0o700
    for folder in (layout.base, layout.run_dir):
        if not folder.is_dir():
            # Another command that starts now may make it first.
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(mode)


def data_folders(home: Path) -> dict[int, Path]:
    """The initialised data folders in `home` by major version."""
    if not home.is_dir():
        return {}
    named = (path for path in home.iterdir() if path.name.isdigit())
    return {int(path.name): path for path in named if os.path.lexists(path / "PG_VERSION")}


def has_database(base_dir: Path) -> bool:
    """Whether a base folder has a database already. Raises `EmbeddedError` where its folder cannot be looked into."""
    layout = Layout.of(base_dir)
    with postgres_errors_in_one_line(layout.run_dir):
        return bool(data_folders(layout.home()))


def choose_home(layout: Layout, account: Account) -> Path:
    """The folder that holds the data, or, before the first start, the one that will hold it. Raises `EmbeddedError`."""
    home = layout.home()
    if home != layout.run_dir or not account.switch:
        return home
    if data_folders(home):
        if not may_enter(home, account):
            raise EmbeddedError(
                f"the server's account {account.name} can no longer reach {home}: "
                "give the folders above it search permission again"
            )
        return home
    return home if _can_hold_data(home, account) else _relocate(layout, account)


def _can_hold_data(home: Path, account: Account) -> bool:
    if not may_enter(home, account):
        return False
    probe = Path(tempfile.mkdtemp(prefix="probe-", dir=home))
    try:
        chown_to_account(probe, account)
    except PermissionError:
        return False  # A mounted file system that does not support other owners.
    finally:
        probe.rmdir()
    return True


def _relocate(layout: Layout, account: Account) -> Path:
    for parent in (RELOCATION_PARENTS[0], *RELOCATION_PARENTS):
        if not _make_parent(parent) or not may_enter(parent, account):
            continue
        # A new name each time: when the base folder was deleted by hand, a new one starts empty.
        try:
            home = Path(tempfile.mkdtemp(prefix=f"{layout.tag}-", dir=parent))
        except FileNotFoundError:
            continue  # `remove` of another base deleted the empty parent just now: the first one is tried twice.
        home.chmod(0o711)
        layout.link.symlink_to(home)
        return home
    raise EmbeddedError(
        f"the server's account {account.name} cannot reach {layout.run_dir}, and neither of "
        f"{', '.join(map(str, RELOCATION_PARENTS))} can be used: give a folder it can reach with --data-dir"
    )


def _make_parent(parent: Path) -> bool:
    try:
        parent.mkdir(mode=0o711)
        parent.chmod(0o711)
    except FileExistsError:
        pass
    except OSError:
        return False
    return _is_ours_alone(parent)


def _is_ours_alone(parent: Path) -> bool:
    # In /var/tmp another user may have created that name first.
    try:
        info = parent.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid() == 0 and not info.st_mode & 0o022


def make_socket_dir(layout: Layout, account: Account, *, known: Path | None) -> Path:
    """Make the socket folder, mode 0700 and owned by the account; the one `known` to clients, if it is one of ours.

    Raises `EmbeddedError` for a folder that somebody else made, and when the account can reach none.
    """
    for path in sorted(layout.socket_dirs(), key=lambda path: path != known):
        if may_enter(path.parent, account):
            _claim(path, account)
            return path
    raise EmbeddedError(
        f"{account.name or 'this user'} cannot reach a folder for the socket: set TMPDIR to a short path"
    )


def _claim(path: Path, account: Account) -> None:
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    info = path.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid not in {os.geteuid(), account.uid}:
        raise EmbeddedError(f"{path} was made by somebody else: delete it, or set TMPDIR to a folder of your own")
    path.chmod(0o700)
    chown_to_account(path, account)


def open_ours(path: Path, flags: int) -> int:
    """Open a file of the run folder, made with mode 0600 if missing, and return its descriptor.

    A file that root makes in another user's folder is given to the folder's owner, who could not open it otherwise. An
    existing file keeps its owner: it may be a hard link to a file that is not ours to give away.
    """
    flags |= os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(path, flags | os.O_EXCL, 0o600)
    except FileExistsError:
        return os.open(path, flags, 0o600)
    folder = path.parent.stat()
    if os.geteuid() == 0 != folder.st_uid:
        os.fchown(fd, folder.st_uid, folder.st_gid)
    return fd


def delete_socket_dir(folder: Path) -> None:
    """Delete a socket folder with its sockets and their lock files; a folder that holds anything else stays."""
    with suppress(OSError):
        for leftover in folder.glob(".s.PGSQL.*"):
            leftover.unlink()
        folder.rmdir()
