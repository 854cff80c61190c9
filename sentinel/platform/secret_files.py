"""Secrets from files: instead of a secret's variable NAME, NAME_FILE may name a file that Docker or Kubernetes mounts.

The file is read once, as the program starts, and its text becomes the value of NAME for the program and its child
processes.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from sentinel.core.errors import SentinelError
from sentinel.platform.outside_systems import OUTSIDE_SYSTEMS

SECRETS = (
    "SENTINEL_DATABASE_URL", "SENTINEL_BOARD_DATABASE_URL", "SENTINEL_EXPORT_DATABASE_URL", "WORKER_DATABASE_URL",
    "ORDERS_DATABASE_URL", "SENTINEL_PUBLIC_DATABASE_URL", "SENTINEL_SCRATCH_DATABASE_URL", "SENTINEL_SECRET_KEYS", "SENTINEL_SECOND_FACTOR_SECRETS", "SENTINEL_PUBLIC_ID_SECRETS",
    "SENTINEL_EXPORT_SECRETS", "SENTINEL_EXPORT_SLACK_WEBHOOK_URL", "SENTINEL_EXPORT_DECISION_LOG_TOKEN",
    "SENTINEL_REFUND_AGENT_API_KEY", "HALTSTATE_REFUND_AGENT_API_KEY", "SENTINEL_ORDERS_API_KEY",
    "SENTINEL_STRIPE_WEBHOOK_SECRETS", "SENTINEL_SHOP_KEY", "SENTINEL_ORDERS_MODEL_API_KEY", "SENTINEL_CRITIC_API_KEY",
    "CONFIRM_SECRETS", "SLACK_WEBHOOK_URL", "SMTP_PASSWORD", "WORKER_RECOGNISER_API_KEY",
    "WORKER_STRIPE_KEY", *(system.key_variable for system in OUTSIDE_SYSTEMS),
)  # fmt: skip
"""Every variable with a secret in it, except those of order sources: their own file names them, and they may be in files too."""

SUFFIX = "_FILE"
"""What follows a variable's name in that of its file."""


def read_secret_files(environ: MutableMapping[str, str] = os.environ) -> None:
    """Set each NAME to the text of its NAME_FILE. Raises `UnsafeConfiguration` naming every fault, and then changes nothing."""
    found, faults = {}, []
    for name in SECRETS:
        try:
            text = secret_from_file(name, environ)
        except SentinelError as error:
            faults.append(error.detail)
        else:
            if text is not None:
                found[name] = text
    if faults:
        raise _refusal("\n".join(faults))
    for name, text in found.items():
        environ[name] = text
        del environ[name + SUFFIX]  # child processes inherit NAME, and both at once would be refused


def secret_from_file(name: str, environ: Mapping[str, str]) -> str | None:
    """The text of the file that NAME_FILE names, without the space around it; None when NAME_FILE is not set.

    Raises `UnsafeConfiguration` when NAME is set too, and when the file cannot be read or is not one line of text.
    """
    path = environ.get(name + SUFFIX)
    if not path:
        return None
    if environ.get(name):
        raise _refusal(f"{name} and {name}{SUFFIX} are both given; keep one")
    try:
        text = read_secret(Path(path))
    except OSError as error:
        raise _refusal(f"{name}{SUFFIX}: {path} cannot be read ({error.strerror})") from None
    if not text.isprintable() or not text:
        raise _refusal(f"{name}{SUFFIX}: {path} must hold one line of text, the secret")
    return text


def read_secret(path: Path) -> str:
    """The text of a file without the space around it. Raises `OSError`, whose `strerror` says why it cannot be read."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        raise OSError(errno.EILSEQ, "not text", str(path)) from None


def _refusal(text: str) -> SentinelError:
    # Imported only on failure: settings load in a tenth of a second, which an agent's hook would pay at every call.
    from sentinel.platform.settings import UnsafeConfiguration

    return UnsafeConfiguration(text)
