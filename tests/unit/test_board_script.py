"""The script of the public board (ops_console/static/board.js), under Node with what it needs of a page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.adapter_environments import INSTALL_SECONDS, REPO, NotInstalled
from tests.support.node import run_node

pytestmark = pytest.mark.timeout(INSTALL_SECONDS + 60)

# A second of the page is a millisecond here, also for the time limits of what it asks for.
PAGE = """
const quickly = (timer) => (act, wait) => timer(act, wait / 1000);
[globalThis.setTimeout, globalThis.setInterval] = [quickly(setTimeout), quickly(setInterval)];
const limit = AbortSignal.timeout.bind(AbortSignal);
AbortSignal.timeout = (wait) => limit(Math.ceil(wait / 1000));
globalThis.addEventListener = () => {};
globalThis.location = { href: "/live" };
globalThis.EventSource = class { addEventListener() {} close() {} };
const list = { dataset: { most: "50", digits: "{}", position: "0", tenant: "demo", stream: "/stream" }, rows: [] };
const state = { dataset: {}, textContent: "" };
const figures = { dataset: { from: "/live/figures" }, querySelector: () => null };
globalThis.document = {
  hidden: false, getElementById: (name) => ({ events: list, state, figures, words: { content: { querySelectorAll: () => [] } } })[name] ?? null,
};
const asked = [];
globalThis.fetch = (address, { signal } = {}) =>
  new Promise((_, fail) => {
    asked.push(address);
    signal?.addEventListener("abort", () => fail(signal.reason));
    if (asked.length === 3) { console.log(JSON.stringify(asked)); process.exit(0); }
  });
const fs = require("node:fs");
(0, eval)(process.argv.slice(2, 4).map((name) => fs.readFileSync(name, "utf8").replace('"use strict";', "")).join("\\n"));
setTimeout(() => { console.log(JSON.stringify(asked)); process.exit(0); }, 5000000);
"""


def test_an_answer_that_never_comes_does_not_stop_the_figures(tmp_path: Path) -> None:
    """The finding: one silent answer stopped them until somebody reloaded the page, which went on saying Live."""
    (tmp_path / "page.cjs").write_text(PAGE)
    scripts = [str(REPO / "ops_console" / "static" / name) for name in ("ask.js", "board.js")]
    try:
        done = run_node("node", "page.cjs", *scripts, folder=tmp_path)
    except NotInstalled as error:
        pytest.skip(f"no Node: {error}")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["/live/figures"] * 3
