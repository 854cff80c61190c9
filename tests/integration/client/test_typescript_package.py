"""The package of the TypeScript client: it prints no secret, needs nothing, and its types and documented programs are right."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from sentinel import __version__
from sentinel.cli.scratch import listening
from tests.support.adapter_environments import INSTALL_SECONDS, REPO
from tests.support.fake_authority import FakeAuthority
from tests.support.fixtures import Fixtures
from tests.support.harness import decide
from tests.support.node import client_modules, run_node
from tests.support.node_agent import mutant_of, started, trying
from tests.support.typescript_types import TYPES, render

# One process for all: the first one may have to install Node and what compiles the client.
pytestmark = [pytest.mark.timeout(INSTALL_SECONDS + 180), pytest.mark.xdist_group("typescript")]

PRINTED = """
import { inspect } from "node:util";
const asking = client();
const answer = await asking.guard({ ...refund("k"), action: "refund.create" });
const whole = { showHidden: true, getters: true, depth: null, customInspect: true };
console.log("answer", answer, [answer], `${answer}`, { ...answer }, JSON.stringify(answer), inspect(answer, whole), structuredClone({ ...answer }));
console.log("client", asking, JSON.stringify(asking), inspect(asking, whole));
const errors = await Promise.allSettled([
  asking.start(Object.create(answer), crypto.randomUUID()),
  asking.guard({ ...refund("k"), action: "refund.other" }),
  new Client("http://127.0.0.1:1", key, { agentId: "agent", retries: 0 }).heartbeat(),
  (async () => new Client(url, `${key}\\n`))(),
]);
for (const { reason } of errors) console.log("error", reason, inspect(reason, whole));
said.token = answer.permitToken();
"""


def printed_with_its_token(agent: Path, authority: FakeAuthority) -> tuple[str, str]:
    """What is printed of an answer, a client and their errors in every way, and the permit's token."""
    with started(agent, trying(PRINTED), authority.url, "the-agents-key") as process:
        printed, _ = process.communicate(timeout=60)
    whole, _, last = printed.rstrip().rpartition("\n")
    return whole, json.loads(last)["said"]["token"]


def test_nothing_that_is_printed_has_the_permit_or_the_key(package: Path, authority: FakeAuthority) -> None:
    printed, token = printed_with_its_token(package, authority)
    assert token == authority.operations["k"].permit and "within_policy_limit" in printed
    assert len(re.findall("^error ", printed, re.MULTILINE)) == 4 and "KeyConflict" in printed
    assert token not in printed and "the-agents-key" not in printed


def test_mutant_that_keeps_the_permit_where_it_is_printed_is_caught(
    package: Path, authority: FakeAuthority, tmp_path: Path
) -> None:
    printed, token = printed_with_its_token(
        mutant_of(package, tmp_path, "answers.js", ("#permitToken", "permit_token")), authority
    )
    assert token in printed


def test_the_package_needs_nothing_and_has_the_version_of_the_authority(package: Path) -> None:
    folder = package / "node_modules" / "sentinel-client"
    told = json.loads((folder / "package.json").read_text())
    assert told["version"] == __version__ and "dependencies" not in told and "peerDependencies" not in told
    imported = {
        name for file in folder.rglob("*.js") for name in re.findall(r'(?:from|import\() ?"([^"]+)"', file.read_text())
    }
    assert imported and all(name.startswith("./") for name in imported), imported
    assert {path.name for path in folder.iterdir()} == {"dist", "README.md", "package.json"}
    assert (folder / "dist" / "index.d.ts").exists()


def test_the_checked_in_types_are_those_that_the_document_makes_today(package: Path) -> None:
    assert TYPES.read_text() == render(), "run `make docs`"


USE = """
import { Client, GuardAnswer, guarded, type components } from "sentinel-client";
const client = new Client("http://127.0.0.1:7860", "key");
const params = { amount: { value: "1.00", currency: "USD" } };
const sum: Promise<number> = guarded(client, "a.b", { params, idempotencyKey: "k" }, (answer: GuardAnswer) => answer.reason.length);
const decision: components["schemas"]["GuardAnswer"]["decision"] = (await client.check({ action: "a.b", params })).decision;
// @ts-expect-error there is no question without a key
await guarded(client, "a.b", { params }, () => 1);
// @ts-expect-error an outcome is one of two
await client.report({ action: "a.b", idempotencyKey: "k", outcome: "fine" });
// @ts-expect-error nobody makes an answer of his own
await client.start({ mayStart: true }, "id");
type Camel<Name extends string> = Name extends `${infer Head}_${infer Rest}` ? `${Head}${Capitalize<Camel<Rest>>}` : Name;
type Unread = Exclude<Camel<keyof components["schemas"]["GuardAnswer"]>, keyof GuardAnswer>;
const everyMemberIsRead: [Unread] extends [never] ? true : Unread = true;
export { decision, everyMemberIsRead, sum };
"""


def test_its_types_say_what_may_be_asked_and_the_documented_program_is_well_typed(package: Path) -> None:
    (package / "use.ts").write_text(USE)
    (package / "documented.ts").write_text(documented_program())
    (package / "node_modules" / "@types").mkdir(exist_ok=True)
    types = package / "node_modules" / "@types" / "node"
    if not types.exists():
        types.symlink_to(client_modules() / "@types" / "node")
    compiler = str(client_modules() / "typescript" / "bin" / "tsc")
    options = "--noEmit --strict --target es2022 --module nodenext --noUncheckedIndexedAccess --skipLibCheck".split()
    done = run_node("node", compiler, *options, "--types", "node", "use.ts", "documented.ts", folder=package)
    assert done.returncode == 0, done.stdout


def documented_program() -> str:
    """The program of docs/agents.md."""
    (program,) = re.findall(r"```ts\n(.*?)```", (REPO / "docs" / "agents.md").read_text(), re.DOTALL)
    return str(program)


def test_the_documented_program_runs_as_it_stands(package: Path, fixtures: Fixtures) -> None:
    with listening(fixtures.app) as url:
        program = documented_program().replace("http://127.0.0.1:7860", url)
        with started(package, program, fixtures.key) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline().strip()]
            decide(fixtures, lines[0].rpartition(" ")[2])
            lines += process.stdout.read().splitlines()
    assert lines[0].startswith("waiting for ") and lines[1:] == ["issued"]


@pytest.mark.parametrize("page", ["deploy/sentinel-client-ts/README.md"])
def test_the_packages_own_snippet_runs(package: Path, fixtures: Fixtures, page: str) -> None:
    (program,) = re.findall(r"```ts\n(.*?)```", (REPO / page).read_text(), re.DOTALL)
    with listening(fixtures.app) as url:
        own = program.replace("http://127.0.0.1:7860", url).replace('"…"', f'"{fixtures.key}"')
        with started(package, own) as process:
            printed, _ = process.communicate(timeout=60)
    assert (process.returncode, printed) == (0, "")
    assert fixtures.one("select outcome from sentinel.operation_states where status = 'completed'") == "success"


def test_the_readme_and_guarded_itself_name_every_error_that_is_thrown_before_the_effect() -> None:
    folder = REPO / "deploy" / "sentinel-client-ts"
    (exported,) = re.findall(r"export {([^}]*)} from \"./errors.js\"", (folder / "src" / "index.ts").read_text())
    errors = set(re.findall(r"\w+", exported)) - {"ClientError"}
    for file in ("README.md", "src/guarded.ts"):
        (said,) = re.findall(r"[Tt]hrows (`[^;.]*?)\s(?:\* )?before the effect", (folder / file).read_text())
        assert set(re.findall(r"`(\w+)`", said)) == errors, file
