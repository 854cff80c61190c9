"""Settings shared by every program: fields with their variable and help, and one error that names every fault.

Each program has one frozen dataclass of its own, read from the environment once; `docs/settings.md` is made from them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from environs import Env, EnvValidationError
from marshmallow.validate import OneOf, Range, Validator

from sentinel.core.errors import SentinelError
from sentinel.platform.private_files import replace_private

WEAK_SECRETS = {"secret", "changeme", "change-me", "password", "sentinel", "development", "test"}


class UnsafeConfiguration(SentinelError):
    """A setting is missing, malformed or would run unsafely; `detail` names every fault."""

    code = "unsafe-configuration"


def _is_weak(secret: str) -> bool:
    """Whether a signing secret is too short or well known."""
    return len(secret) < 32 or secret.lower() in WEAK_SECRETS or len(set(secret)) < 8


def weak_secret_faults(variable: str, given: Iterable[str]) -> list[str]:
    """The fault of a variable that has a weak secret among others; empty if it has none."""
    if any(_is_weak(secret) for secret in given):
        return [f"{variable}: every secret needs at least 32 characters that nobody can guess"]
    return []


class _Environment(Env):
    """The environment's variables. Reading does not raise: what is wrong is found when it is sealed.

    Blanks around a value are left out, and an empty variable counts as not set, as compose files and shells express it.
    """

    def __init__(self) -> None:
        super().__init__(eager=False)

    def _get_value(self, env_key: str, default: Any) -> Any:
        value = super()._get_value(env_key, default)
        return (value.strip() if isinstance(value, str) else value) or default

    def malformed(self) -> dict[str, str]:
        """Variable → what is wrong with its text, for every malformed variable that was read."""
        try:
            self.seal()
        except EnvValidationError as error:
            messages = dict(error.error_messages)  # type: ignore[arg-type]
            return {name: "; ".join(str(one).rstrip(".") for one in said) for name, said in sorted(messages.items())}
        return {}


_READERS: Mapping[str, Callable[..., Any]] = {
    **dict.fromkeys(("str", "str | None"), _Environment.str),
    "int": _Environment.int,
    "float": _Environment.float,
    "bool": _Environment.bool,
    "Path": _Environment.path,
    "uuid.UUID | None": _Environment.uuid,
    "tuple[str, ...]": _Environment.list,
}
"""How a variable is read, by its field's type annotation as text."""


def read_fields(kind: type[Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Every field of a settings class by name, from its variable or else its default; and variable → what is wrong with its text.

    A field whose variable is malformed has its default, so that the rest can be checked.
    """
    env, values, fields = _Environment(), {}, dataclasses.fields(kind)
    for field in fields:
        how = {"validate": field.metadata["valid"]} if field.metadata["valid"] else {}
        values[field.name] = _READERS[str(field.type)](env, field.metadata["env"], field.default, **how)
    bad = env.malformed()
    for field in fields:
        if field.metadata["env"] in bad:
            values[field.name] = field.default
        elif isinstance(values[field.name], list):
            values[field.name] = tuple(part.strip() for part in values[field.name] if part.strip())
    return values, bad


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """A command's options that were given; None is one that was not."""
    return {name: value for name, value in options.items() if value is not None}


def without_faults_about(bad: Iterable[str], faults: Iterable[str]) -> list[str]:
    """The faults that name no `bad` variable, so that a malformed one is reported once."""
    known = set(bad)
    return [fault for fault in faults if not known & set(re.findall(r"\w+", fault))]


def refuse_unsafe(bad: Mapping[str, str], faults: Iterable[str]) -> None:
    """Raise `UnsafeConfiguration` with all that is malformed (`bad`, from `read_fields`) or unsafe (`faults`, a line each) at once."""
    messages = [f"{name}: {text}" for name, text in bad.items()] + without_faults_about(bad, faults)
    if messages:
        raise UnsafeConfiguration("\n".join(messages))


def data_dir_secret(data_dir: Path, name: str = "secret_key") -> str:
    """The secret that is kept beside an embedded database: made once, readable by its owner only.

    When several programs ask at once, one of them makes it. An empty file, as a power cut may leave, counts as missing.
    """
    path = data_dir / name
    if found := _written(path):
        return found
    data_dir.mkdir(parents=True, exist_ok=True)
    # A file and not the folder itself: NFS locks only what is open for writing.
    with _held(data_dir / f".{name}.lock"):
        if found := _written(path):
            return found
        replace_private(path, secrets.token_hex(32).encode())
        return _written(path)


def _written(path: Path) -> str:
    """The secret in a file, "" when there is no file."""
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""


@contextlib.contextmanager
def _held(lock: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file, against other processes and threads; the file is made if missing, and stays."""
    held = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def kept_secret(name: str, *database_variables: str) -> str:
    """The secret of that name beside the embedded database; "" if there is none, or if one of the variables names another database."""
    if any(os.environ.get(variable) for variable in database_variables):
        return ""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return (Path(os.environ.get("SENTINEL_DATA_DIR") or "var") / name).read_text().strip()
    return ""


CONFIRM_SECRET_FILE = "confirm_secret"
"""The file of the demo's own secret for confirm links, in its data folder: the demo's worker does not get the authority's secret."""


def confirm_secrets() -> tuple[str, ...]:
    """The secrets that sign confirm links, newest first: CONFIRM_SECRETS, else the authority's, else the embedded ones.

    An embedded database has the demo's secret, if the demo ran there, and the authority's. Worker and public board read
    the same ones, so that the page accepts the links that the worker sends. Empty means that there are no links.
    """
    given = os.environ.get("CONFIRM_SECRETS") or os.environ.get("SENTINEL_SECRET_KEYS")
    if given:
        return _listed(given)
    kept = (kept_secret(name, "SENTINEL_DATABASE_URL") for name in (CONFIRM_SECRET_FILE, "secret_key"))
    return tuple(secret for secret in kept if secret)


def public_id_secrets() -> tuple[str, ...]:
    """The secrets that generate public ids, newest first, from the environment; empty means the one that the database keeps."""
    return _listed(os.environ.get("SENTINEL_PUBLIC_ID_SECRETS", ""))


def _listed(given: str) -> tuple[str, ...]:
    return tuple(secret.strip() for secret in given.split(",") if secret.strip())


def setting(env: str, help: str, default: Any = None, valid: Validator | None = None) -> Any:
    """A dataclass field that remembers its variable, what it is for and which values it takes."""
    return dataclasses.field(default=default, metadata={"env": env, "help": help, "valid": valid})


COUNT = Range(min=1, max=1_000_000)
PORT = Range(min=1, max=65535)
PORT_OR_NONE = Range(min=0, max=65535)
SMTP_SECURITY = OneOf(("starttls", "tls", "none"))
TRUSTED_PROXIES = Range(min=0, max=5)
LOG_LEVEL = OneOf(("debug", "info", "warning", "error"))
LOG_LEVEL_HELP = "Least severe lines that are logged."
HEALTH_HELP = (
    "Separate port for /healthz, /readyz and /metrics, which the public must not reach; with 0 there is no /metrics."
)
CONNECTIONS_HELP = "Connections per process; at the limit, a waiting connection is closed for a new one. Each connection takes an open file; the limit of open files is raised at start."
ADDRESS_CONNECTIONS_HELP = "Connections per process from one address (IPv6: from one /64 network); not applied behind trusted proxies, whose clients share one address."
BEHIND_TLS = (
    "1: every request reaches this program over TLS, so every answer carries Strict-Transport-Security (one year)."
)
