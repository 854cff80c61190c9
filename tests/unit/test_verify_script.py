"""The script that checks a pasted proof (ops_console/static/verify.js), under Node with what it needs of a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sentinel.core.proof import pack_hash
from tests.support.adapter_environments import INSTALL_SECONDS, REPO, NotInstalled
from tests.support.node import run_node

pytestmark = pytest.mark.timeout(INSTALL_SECONDS + 60)

PAGE = """
const made = () => ({
  textContent: "", append(...parts) { this.textContent += parts.map((one) => one.textContent).join(" "); }, setAttribute() {},
  replaceChildren(...parts) { this.textContent = ""; this.append(...parts); },
});
const [form, pasted, place] = [made(), made(), made()];
form.addEventListener = (_, act) => (form.submit = act);
globalThis.window = { isSecureContext: true, crypto };
globalThis.document = {
  getElementById: (name) => ({ paste: form, pasted, "paste-result": place })[name] ?? null, querySelectorAll: () => [], createElement: made,
};
const asked = new Map();
globalThis.fetch = (address) => new Promise((answer) => asked.set(address, answer));
const fs = require("node:fs");
(0, eval)(process.argv.slice(2, 4).map((name) => fs.readFileSync(name, "utf8").replace('"use strict";', "")).join("\\n"));
const packs = JSON.parse(process.argv[4]);
const soon = () => new Promise((done) => setTimeout(done, 50));
const paste = async (pack) => ((pasted.value = JSON.stringify(pack)), form.submit({ preventDefault() {} }), await soon());
const record = async (pack) => (asked.get(`/verify/${pack.proof_id}.json`)({ ok: true, status: 200, text: async () => JSON.stringify(pack) }), await soon());
"""


def pack(number: int, **more: Any) -> dict[str, Any]:
    """A proof pack with its own hash."""
    stated = {"proof_id": f"pf_{number:032x}", "agent_id": "shop", "decision": "ALLOW", **more}
    return {**stated, "hash": pack_hash(stated)}


def page_message(tmp_path: Path, program: str, **packs: dict[str, Any]) -> str:
    """What the page says in the end."""
    (tmp_path / "page.cjs").write_text(f"{PAGE}(async () => {{ {program} console.log(place.textContent); }})();")
    scripts = [str(REPO / "ops_console" / "static" / name) for name in ("ask.js", "verify.js")]
    try:
        done = run_node("node", "page.cjs", *scripts, json.dumps(packs), folder=tmp_path)
    except NotInstalled as error:
        pytest.skip(f"no Node: {error}")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_verdict_that_is_shown_is_of_the_proof_that_was_pasted_last(tmp_path: Path) -> None:
    """The finding: the slower answer about an earlier proof took the place of the verdict about the one in the field."""
    program = "await paste(packs.earlier); await paste(packs.forged); await record(packs.recorded); await record(packs.earlier);"
    forged = pack(2, decision="DENY")
    said = page_message(tmp_path, program, earlier=pack(1), forged=forged, recorded=pack(2))
    assert "this is not the proof with that id" in said and forged["hash"] in said
    assert "Match: this proof is intact." not in said


@pytest.mark.parametrize("name", ["constructor", "toString", "__proto__", "note"])
def test_a_pack_with_one_more_member_is_not_what_is_on_record_whatever_its_name(tmp_path: Path, name: str) -> None:
    """The finding: a name that every object inherits counted as a member of the record, beside public ids."""
    public = pack(1, agent_id="pag_" + "a" * 16)
    program = "await paste(packs.given); await record(packs.known);"
    assert "Everything else matches the record here." in page_message(tmp_path, program, given=pack(1), known=public)
    said = page_message(tmp_path, program, given=pack(1, **{name: {}}), known=public)
    assert f"It is not what is on record here: {name}" in said and "Match: this proof is intact." not in said
