"""The scripts of the operators' pages (ops_console/static/console.js and live.js), under Node with what they need of a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.adapter_environments import INSTALL_SECONDS, REPO, NotInstalled
from tests.support.node import run_node

pytestmark = pytest.mark.timeout(INSTALL_SECONDS + 60)

PAGE = """
const heard = {};
const [bar, lost, offline, main] = [{ hidden: true }, { hidden: true }, { hidden: true }, { dataset: { operator: "ann" } }];
const field = { tagName: "INPUT", value: "", defaultValue: "" };
let reloads = 0;
globalThis.location = { reload: () => (reloads += 1) };
globalThis.setInterval = () => {};
globalThis.getSelection = () => null;
globalThis.addEventListener = (name, act) => (heard[name] ??= []).push(act);
globalThis.document = {
  hidden: false, addEventListener: (name, act) => (heard[name] ??= []).push(act),
  getElementById: (name) => ({ "signed-out": bar, "not-done": lost, offline, main })[name] ?? null,
  querySelectorAll: (places) => (places.includes("input") ? [field] : []),
};
const fs = require("node:fs");
(0, eval)(process.argv.slice(2, 4).map((name) => fs.readFileSync(name, "utf8").replace('"use strict";', "")).join("\\n"));
const tell = (name, ctx) => {
  let isTaken = true;
  for (const act of heard[name] ?? []) act({ detail: { ctx }, preventDefault: () => (isTaken = false) });
  return isTaken;
};
const polled = (raw) => tell("htmx:before:response", { sourceElement: { hasAttribute: () => true }, response: { status: 200, raw } });
const acted = (raw) => tell("htmx:before:response", { sourceElement: null, response: { status: 200, raw } });
const fresh = (whose) => ({ redirected: false, headers: new Headers(whose ? { "X-Operator-Id": whose } : {}) });
const over = (more = "") => ({ redirected: true, url: `https://here/ops/sign-in?next=%2Fops${more}`, headers: new Headers() });
const sent = (form) => {
  let isSent = true;
  for (const act of heard.submit ?? []) act({ target: form, defaultPrevented: false, preventDefault: () => (isSent = false) });
  return isSent;
};
const form = (method, ...attributes) => ({ method, hasAttribute: (name) => attributes.includes(name) });
const said = () => (bar.hidden ? "nothing" : lost.hidden ? "signed out" : "signed out and not carried out");
"""


def page_answers(tmp_path: Path, program: str) -> Any:
    """What the program returns, after the scripts were loaded in a page of the operator `ann`."""
    (tmp_path / "page.cjs").write_text(f"{PAGE}console.log(JSON.stringify((() => {{ {program} }})()));")
    scripts = [str(REPO / "ops_console" / "static" / name) for name in ("console.js", "live.js")]
    try:
        done = run_node("node", "page.cjs", *scripts, folder=tmp_path)
    except NotInstalled as error:
        pytest.skip(f"no Node: {error}")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_part_that_refreshes_itself_takes_nothing_of_another_person(tmp_path: Path) -> None:
    """The finding: after signing in to another tenant in another tab, the open lists showed that tenant's rows under the
    first one's name.
    """
    program = """
    const taken = [polled(fresh("ann")), polled(fresh("")), polled(fresh("bea"))];
    field.value = "half a reason";
    return [...taken, reloads, polled(fresh("bea")), reloads, said()];
    """
    assert page_answers(tmp_path, program) == [True, True, False, 1, False, 1, "signed out"]


def test_only_an_act_that_met_the_end_of_the_session_is_said_to_be_not_carried_out(tmp_path: Path) -> None:
    """The finding: an act whose answer was lost may have been carried out, and the next refresh said that it was not."""
    program = """
    field.value = "half a reason";
    tell("htmx:error", { sourceElement: null });
    const lostAnswer = [offline.hidden, polled(over()), said()];
    const act = [acted(over("&undone=yes")), said(), polled(over()), said()];
    return [...lostAnswer, ...act, polled(fresh("ann")), said(), polled(over()), said()];
    """
    after_the_loss, after_the_act = [False, False, "signed out"], [False, "signed out and not carried out"] * 2
    assert page_answers(tmp_path, program) == [*after_the_loss, *after_the_act, True, "nothing", False, "signed out"]


def test_a_proxys_error_page_takes_nothing_that_was_written_away(tmp_path: Path) -> None:
    """The finding: while the console restarted, the proxy's "502 Bad Gateway" took the card's place, with a reason that
    somebody had written.
    """
    program = """
    const answered = (status, text, isLive = false) => {
      offline.hidden = true;
      const sourceElement = isLive ? { hasAttribute: () => true } : null;
      return [tell("htmx:after:request", { sourceElement, text, response: { status } }), !offline.hidden];
    };
    const ours = '<body><main id="main" tabindex="-1">';
    return [answered(200, ours), answered(503, ours), answered(502, "<h1>Bad Gateway</h1>"), answered(503, ""), answered(502, "", true)];
    """
    swapped, kept = [True, False], [False, True]
    assert page_answers(tmp_path, program) == [swapped, swapped, kept, kept, swapped]


def test_a_form_that_loads_the_whole_page_is_not_sent_twice_by_an_impatient_finger(tmp_path: Path) -> None:
    """The finding: a double click on Sign in used up a password that works once and took away the answer that had the
    session, so that its owner was locked out.
    """
    program = """
    const [signIn, filter, boosted] = [form("post"), form("get"), form("post", "hx-boost")];
    const twice = [signIn, filter, boosted].map((one) => [sent(one), sent(one)]);
    for (const act of heard.pageshow) act({});
    return [...twice, sent(signIn)];
    """
    assert page_answers(tmp_path, program) == [[True, False], [True, True], [True, True], True]
