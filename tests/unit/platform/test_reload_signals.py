"""SIGHUP, and a server process that has just been started."""

from __future__ import annotations

import subprocess
import sys

from tests.support.ports import free_port

# A server that is told to stop by its only process: at SIGHUP, or after some seconds without one.
SERVER = """
import os, signal, sys
from sentinel.platform.serving.server import Listener, Server

def end(what):
    print(what, flush=True)
    os.kill(os.getppid(), signal.SIGTERM)

def make_app(worker):
    worker.loop.add_signal_handler(signal.SIGHUP, end, "reloads")
    worker.loop.call_later(60, end, "was told nothing")
    return lambda scope, receive, send: None

server = Server(make_app, Listener("127.0.0.1", int(sys.argv[1]), 10, 10, "", "", ""), processes=1, on_reload=lambda: None)
server.cfg.set("post_fork", lambda server, worker: os.kill(os.getpid(), signal.SIGHUP))
server.run()
"""


def test_a_process_that_is_told_to_reload_before_its_loop_runs_reloads_then() -> None:
    run = subprocess.run(
        [sys.executable, "-c", SERVER, str(free_port())], capture_output=True, text=True, timeout=120, check=False
    )
    assert (run.stdout.splitlines()[:1], run.returncode) == (["reloads"], 0), run.stderr
