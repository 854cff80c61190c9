"""The demo as a process to test from outside: started, signed in to, stopped without anything left."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sentinel.platform.serving.process_group import die_with_parent
from tests.support.busy import long_enough
from tests.support.ports import free_port, listens
from tests.support.served_programs import clean_env, eventually, module, processes_naming, request, run

KEYS = {
    "authority_url", "console_url", "orders_url", "tenant_id", "agent_api_key", "operators", "order_source", "database_url",
    "board_url", "database_urls",
}  # fmt: skip


@dataclass
class Demo:
    """A running `sentinel demo`."""

    process: subprocess.Popen[str]
    data_dir: Path
    ports: tuple[int, int, int, int]
    ready_seconds: float
    told: dict[str, Any]
    line: str

    @property
    def authority(self) -> str:
        return str(self.told["authority_url"])

    @property
    def console(self) -> str:
        return str(self.told["console_url"])

    @property
    def board(self) -> str:
        return str(self.told["board_url"])

    @property
    def orders(self) -> str:
        return str(self.told["orders_url"])

    @property
    def key(self) -> str:
        return str(self.told["agent_api_key"])

    @property
    def database_url(self) -> str:
        return str(self.told["database_url"])

    def operator(self, role: str) -> dict[str, str]:
        return next(one for one in self.told["operators"] if one["role"] == role)

    def sign_in(self, role: str) -> dict[str, str]:
        """Headers of a signed-in operator."""
        person = self.operator(role)
        reply = request(
            "POST", f"{self.console}/ops/api/session", body={"email": person["email"], "password": person["password"]}
        )
        assert reply.status == 200, reply.body
        return {"Cookie": reply.headers["set-cookie"].split(";")[0], "X-CSRF-Token": reply.json["csrf_token"]}

    def stop(self, number: int = signal.SIGTERM, *, within: float = 3.0) -> float:
        """Send the signal; the seconds until it ended. Fails when it takes longer or leaves anything."""
        within = long_enough(within)
        began = time.monotonic()
        self.process.send_signal(number)
        try:
            self.process.wait(within)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the demo did not end within {within} s") from None
        took = time.monotonic() - began
        # What was killed with its group may take a moment to be gone; the promise is for everything together.
        self.require_nothing_left(within=max(within - took, 0.2))
        return took

    def require_nothing_left(self, *, within: float) -> None:
        """No process names the data folder any more and no port is listened on."""
        left = eventually(lambda: not processes_naming(str(self.data_dir)) or None, within=within)
        assert left, [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in processes_naming(str(self.data_dir))]
        assert not any(map(listens, self.ports))

    def kill(self) -> None:
        """End it without a chance to clean up."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout and self.process.stdout.close()


def port_options(
    authority: int | None = None, console: int | None = None, orders: int | None = None, board: int | None = None
) -> list[str]:
    """The options of `sentinel demo` for its ports; free ones where none is given."""
    given = {"--port": authority, "--console-port": console, "--orders-port": orders, "--board-port": board}
    return [part for option, port in given.items() for part in (option, str(port or free_port()))]


def start_demo(
    data_dir: Path, *, ports: tuple[int, int, int, int] | None = None, within: float = 40, **env: str
) -> Demo:
    """`sentinel demo --json`, ready."""
    ports = ports or (free_port(), free_port(), free_port(), free_port())
    command = module("sentinel.cli.main", "demo", "--json", "--data-dir", str(data_dir), *port_options(*ports))
    errors = tempfile.TemporaryFile("w+")
    began = time.monotonic()
    process = subprocess.Popen(
        command, env=clean_env(**env), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True,
        # A suite that is interrupted leaves no demo behind.
        preexec_fn=partial(die_with_parent, os.getpid()),
    )  # fmt: skip
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], long_enough(within))
    line = process.stdout.readline() if readable else ""
    took = time.monotonic() - began
    if not line:
        process.kill()
        process.wait()
        process.stdout.close()
        errors.seek(0)
        with errors:
            raise AssertionError(f"the demo did not become ready: {errors.read()[-2000:]}")
    errors.close()
    return Demo(process, data_dir, ports, took, json.loads(line), line)


@contextlib.contextmanager
def demo_folder(name: str = "demo") -> Iterator[Path]:
    """A folder that another account can enter: under the system's own, not under pytest's."""
    base = Path(tempfile.gettempdir()) / f"sentinel-acceptance-{os.getpid()}-{uuid.uuid4().hex[:6]}"
    base.mkdir(mode=0o755)
    try:
        yield base / name
    finally:
        shutil.rmtree(base, ignore_errors=True)


@dataclass
class OnceRun:
    """What a `sentinel demo --once --json` in a new folder did, and the folder as it left it: not for use, but to be copied."""

    data_dir: Path
    ports: tuple[int, int, int, int]
    done: subprocess.CompletedProcess[str]
    seconds: float
    allowed_seconds: float
    left: list[int]

    def copy_to(self, data_dir: Path) -> None:
        """Copy the folder, each file with its owner, to one that is not there yet."""
        assert self.done.returncode == 0, self.done.stderr
        subprocess.run(["cp", "-a", str(self.data_dir), str(data_dir)], check=True)


def run_demo_once(data_dir: Path) -> OnceRun:
    """Run `sentinel demo --once --json` on free ports."""
    ports = (free_port(), free_port(), free_port(), free_port())
    began = time.monotonic()
    done = run(
        "demo", "--once", "--json", "--data-dir", str(data_dir), *port_options(*ports), timeout=long_enough(60)
    )  # fmt: skip
    seconds = time.monotonic() - began
    return OnceRun(data_dir, ports, done, seconds, long_enough(40), processes_naming(str(data_dir)))


@contextlib.contextmanager
def running_demo(data_dir: Path, **rest: Any) -> Iterator[Demo]:
    """A demo for a block; ended afterwards however the block ends."""
    demo = start_demo(data_dir, **rest)
    try:
        yield demo
    finally:
        if demo.process.poll() is None:
            demo.process.terminate()
            try:
                demo.process.wait(60)
            except subprocess.TimeoutExpired:
                demo.process.kill()
        demo.kill()
