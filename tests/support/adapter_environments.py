"""An environment for each agent framework, made once from its pinned file in tests/adapters and kept in .venv-adapters.

`python -m tests.support.adapter_environments` makes all of them (`make adapters`).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
REQUIREMENTS = REPO / "tests" / "adapters"
ENVIRONMENTS = REPO / ".venv-adapters"
INSTALL_SECONDS = 900


class NotInstalled(Exception):
    """The registry did not serve what the file wants; the reason in one line."""


def frameworks() -> list[str]:
    """The frameworks that have a pinned file."""
    return sorted(path.stem for path in REQUIREMENTS.glob("*.txt"))


def interpreter_of(framework: str, requirements: Path | None = None) -> Path:
    """The interpreter of the framework's environment; made first where it is not there or its file changed. Raises `NotInstalled`.

    `requirements` is its pinned file where that is not one of tests/adapters.
    """
    requirements = requirements or REQUIREMENTS / f"{framework}.txt"
    wanted = requirements.read_bytes()
    folder = ENVIRONMENTS / framework
    stamp, failed = folder / "made", ENVIRONMENTS / f"{framework}.failed"
    digest = hashlib.sha256(wanted + sys.version.encode()).hexdigest()
    ENVIRONMENTS.mkdir(exist_ok=True)
    with (ENVIRONMENTS / f"{framework}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test processes start at once
        if not (stamp.exists() and stamp.read_text() == digest):
            if failed.exists() and _is_recent(failed) and failed.read_text().startswith(digest):
                raise NotInstalled(failed.read_text().partition("\n")[2])
            _make(folder, requirements, failed, digest)
            stamp.write_text(digest)
    return folder / "bin" / "python"


def _is_recent(failed: Path) -> bool:
    """Within the hour: not tried again for every test, but for the next run of them."""
    return time.time() - failed.stat().st_mtime < 3600


def _make(folder: Path, requirements: Path, failed: Path, digest: str) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)], check=True, timeout=120)
    python, wanted = str(folder / "bin" / "python"), str(requirements)
    # uv takes a tenth of the time; pip knows registries that only its own configuration names.
    for command in (
        ("uv", "pip", "install", "--quiet", "--python", python),
        ("pip", "--python", python, "--quiet", "--disable-pip-version-check", "install"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", *command, "--no-deps", "--requirement", wanted],
            capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False,
        )  # fmt: skip
        if not done.returncode:
            failed.unlink(missing_ok=True)
            return
    failed.write_text(f"{digest}\n{folder.name} cannot be installed: {first_error(done.stderr)}")
    raise NotInstalled(failed.read_text().partition("\n")[2])


def first_error(stderr: str) -> str:
    """The line in which pip, npm or Node says what went wrong: what comes after it are its consequences."""
    told = (line.strip() for line in stderr.splitlines() if "error" in line.lower())
    return next(told, "no reason given")


def environment_variables() -> dict[str, str]:
    """For a process in such an environment: this checkout's modules, and no setting of ours or of a model service.

    Nor any authority's certificate, as all is asked on loopback without TLS: to read the machine's takes a client longer than a call.
    """
    ours = ("SENTINEL_", "OPENAI_", "ANTHROPIC_", "LANGCHAIN_", "LANGSMITH_", "SSL_CERT_")
    base = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {
        **base, "PYTHONPATH": str(REPO), "OPENAI_AGENTS_DISABLE_TRACING": "1", "LANGSMITH_TRACING": "false",
        "SSL_CERT_DIR": str(Path(__file__).parent),
    }  # fmt: skip


if __name__ == "__main__":
    for one in frameworks():
        try:
            print(interpreter_of(one))
        except NotInstalled as error:
            print(error)
