"""Real processes to test from outside: an authority on a database of its own, a console, commands. `demos.py` has the demo."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import urllib3

from sentinel.store.database import AUTHORITY
from tests.support.busy import is_over, long_enough, overload
from tests.support.logins import program_url
from tests.support.ports import free_port
from tests.support.warm_process import WarmProcess, run_warm

REPO = Path(__file__).resolve().parents[2]
SCALE = float(os.environ.get("SENTINEL_TEST_SCALE", "1"))
SECRET = "only-for-acceptance-0123456789abcdef"
BOTH_PREFIXES = ("/api/sentinel", "/api/haltstate/sentinel")


def clean_env(**over: str) -> dict[str, str]:
    """This process's environment without any setting of ours, and with `over`."""
    ours = ("SENTINEL_", "WORKER_", "ORDERS_", "HALTSTATE_", "PROMETHEUS_")
    base = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {**base, "PYTHONPATH": str(REPO), **over}


def module(name: str, *arguments: str) -> list[str]:
    """The command line of one of our modules in this interpreter."""
    return [sys.executable, "-m", name, *arguments]


def run(
    *arguments: str, stdin: str = "", timeout: float = 150, program: str = "sentinel.cli.main", **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        module(program, *arguments),
        env=clean_env(**env),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def run_warm_command(
    *arguments: str, stdin: str = "", timeout: float = 150, program: str = "sentinel.cli.main", **env: str
) -> subprocess.CompletedProcess[str]:
    """As `run`, begun with everything imported: where the start itself is not what is tried."""
    return run_warm(program, *arguments, env=clean_env(**env), stdin=stdin, timeout=timeout)


def processes_naming(needle: str) -> list[int]:
    """Processes whose command line, folder or environment names something that only this test has."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        if int(folder.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            said = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
            if needle.encode() in said and (folder / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found.append(int(folder.name))
    return found


def eventually(condition: Any, *, within: float, every: float = 0.05) -> Any:
    """The first true value of `condition()`; else its last value, after `within` seconds, more on a busy machine."""
    began = time.monotonic()
    while True:
        value = condition()
        if value or is_over(began, within):
            return value
        time.sleep(every)


def never(condition: Any, *, within: float, every: float = 0.05) -> bool:
    """Whether `condition()` stays untrue for so many seconds."""
    deadline = time.monotonic() + within * overload()
    while not condition():
        if time.monotonic() > deadline:
            return True
        time.sleep(every)
    return False


@dataclass
class Reply:
    """An HTTP answer as it came over the socket."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def type(self) -> str:
        return str(self.json["type"]).removeprefix("urn:sentinel:problem:")


_http = urllib3.PoolManager(maxsize=64, retries=False, timeout=urllib3.Timeout(60))


def request(method: str, url: str, *, body: Any = None, headers: dict[str, str] | None = None) -> Reply:
    """One request with a foreign client; a body that is not bytes is sent as JSON."""
    headers = dict(headers or {})
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
    if body is not None:
        headers.setdefault("Content-Type", "application/json")
    answer = _http.request(method, url, body=body, headers=headers, redirect=False, retries=False)
    return Reply(answer.status, {name.lower(): value for name, value in answer.headers.items()}, answer.data)


def raw(port: int, data: bytes, *, timeout: float = 60) -> Reply | None:
    """Bytes as they are; the first answer, or None when the connection ends without one."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(data)
        got = b""
        with contextlib.suppress(OSError):
            while b"\r\n\r\n" not in got and (chunk := connection.recv(65536)):
                got += chunk
            head, _, body = got.partition(b"\r\n\r\n")
            headers = {
                k.strip().lower(): v.strip()
                for k, _, v in (line.partition(":") for line in head.decode("latin-1").split("\r\n")[1:])
            }
            while len(body) < int(headers.get("content-length", "0")) and (chunk := connection.recv(65536)):
                body += chunk
        if not got:
            return None
        return Reply(int(got.split(b" ", 2)[1]), headers, body)


@dataclass
class Served:
    """A running `sentinel serve` on a database, and one tenant's key."""

    database_url: str
    port: int
    process: subprocess.Popen[str]
    log: Path
    tenant_id: str
    key: str
    env: dict[str, str] = field(repr=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def health_url(self) -> str:
        """The address for supervisors, with its metrics."""
        return f"http://127.0.0.1:{self.env['SENTINEL_HEALTH_PORT']}"

    def headers(self, key: str | None = None) -> dict[str, str]:
        return {"X-API-Key": key or self.key}

    def post(
        self, path: str, body: Any, *, key: str | None = None, prefix: str = BOTH_PREFIXES[0], **headers: str
    ) -> Reply:
        """POST under a prefix as the tenant's agent."""
        extra = {name.replace("_", "-"): value for name, value in headers.items()}
        return request("POST", f"{self.url}{prefix}/{path}", body=body, headers={**self.headers(key), **extra})

    def get(self, path: str, *, key: str | None = None, prefix: str = BOTH_PREFIXES[0]) -> Reply:
        return request("GET", f"{self.url}{prefix}/{path}", headers=self.headers(key))

    def guard(self, body: dict[str, Any]) -> dict[str, Any]:
        """A guard's answer; fails the test unless it is 200."""
        reply = self.post("action/guard", body)
        assert reply.status == 200, reply.body
        return dict(reply.json)

    def cli(self, *arguments: str, **rest: Any) -> subprocess.CompletedProcess[str]:
        """A `sentinel` command on this database."""
        return run_warm_command(*arguments, SENTINEL_DATABASE_URL=self.database_url, **rest)

    def cli_json(self, *arguments: str) -> Any:
        """A `sentinel … --json` command that must succeed, its answer."""
        done = self.cli(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


def start_serve(
    database_url: str, folder: Path, *, from_nothing: bool = True, **env: str
) -> tuple[subprocess.Popen[str], int, Path, dict[str, str]]:
    """`sentinel serve` of two processes that is ready, on SENTINEL_PORT where that is given; one that does not become ready is ended.

    One that does not begin `from_nothing` begins with everything imported; its processes do not share their counters.
    """
    port, log = int(env.get("SENTINEL_PORT") or free_port()), folder / f"serve-{uuid.uuid4().hex[:6]}.log"
    settings = clean_env(
        **{
            **(
                {}
                if "SENTINEL_DATABASE_URL" in env
                else {"SENTINEL_DATABASE_URL": program_url(database_url, AUTHORITY)}
            ),
            "SENTINEL_SECRET_KEYS": SECRET,
            "SENTINEL_PORT": str(port),
            "SENTINEL_HEALTH_PORT": str(free_port()),
            "SENTINEL_THREADS": "12",
            "SENTINEL_PROCESSES": "2",
            **env,
        }
    )
    start: type[subprocess.Popen[str]] = subprocess.Popen if from_nothing else WarmProcess
    with log.open("wb") as output:
        process = start(
            module("sentinel.cli.main", "serve", "--graceful-seconds", "2"),
            env=settings,
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            text=True,
        )

    def ready() -> bool:
        if process.poll() is not None:
            raise AssertionError(f"serve ended: {log.read_text()[-2000:]}")
        with contextlib.suppress(urllib3.exceptions.HTTPError, OSError):
            return request("GET", f"http://127.0.0.1:{port}/readyz").status == 200
        return False

    try:
        assert eventually(ready, within=30), log.read_text()[-2000:]
    except BaseException:
        process.terminate()
        process.wait(60)
        raise
    return process, port, log, settings


def end(process: subprocess.Popen[Any], *, within: float = 10) -> int:
    """SIGTERM and wait, longer on a busy machine; insists afterwards. Its exit status."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(long_enough(within))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError("did not end on SIGTERM") from None
    return process.returncode


@contextlib.contextmanager
def served_on(
    database_url: str, folder: Path, *, tenant_id: str, key: str, from_nothing: bool = True, **env: str
) -> Iterator[Served]:
    """An authority on a database whose tenant exists; `from_nothing` as for `start_serve`."""
    process, port, log, settings = start_serve(database_url, folder, from_nothing=from_nothing, **env)
    try:
        yield Served(database_url, port, process, log, tenant_id, key, settings)
    finally:
        end(process)
