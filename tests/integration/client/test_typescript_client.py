"""The TypeScript client under Node: its effect is called only with a started permit, once, whatever fails.

The package is the one that npm packs. Skipped where there is neither Node nor a registry that serves it.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import requests

from sentinel.cli.scratch import listening
from tests.support.adapter_environments import INSTALL_SECONDS
from tests.support.fake_authority import FakeAuthority, Operation
from tests.support.fake_exchange import Exchange
from tests.support.fake_faults import FAULTS
from tests.support.fixtures import Fixtures
from tests.support.harness import decide
from tests.support.node_agent import mutant_of, ran, started, trying
from tests.support.scripted_server import SLACK, Asked, ScriptedServer

# One process for all: the first one may have to install Node and what compiles the client.
pytestmark = [pytest.mark.timeout(INSTALL_SECONDS + 180), pytest.mark.xdist_group("typescript")]

EFFECTS = """
const asking = client();
await tried("allowed", asking, gift("10.00", "small"), (answer) => `${answer.status} ${answer.operationId.length}`);
said["repeated was a"] = (await tried("repeated", asking, gift("10.00", "small"))).outcome;
await tried("another", asking, gift("11.00", "small"));
const denied = await tried("denied", asking, gift("1000.00", "huge"));
said.reason = denied.reasonCode;
const thrown = await tried("throws", asking, gift("10.00", "throws"), () => { throw new RangeError("secret") });
said.thrown = thrown.message;
await tried("throws again", asking, gift("10.00", "throws"));
await tried("not a number", asking, gift(NaN, "nan"));
await tried("a big integer", asking, gift(10n, "big"));
said["asked as its number"] = (await asking.guard({ action: "gift_card.issue", ...gift("10", "big") }).then((one) => one.status, (error) => error.name));
class Secretive { #amount = 1; get amount() { return this.#amount } }
for (const [what, value] of Object.entries({ secretive: new Secretive(), getter: Object.create({ get amount() { return 1 } }), huge: 2n ** 60n, map: new Map([[1, 2]]), set: new Set([1]), code: () => 1, tag: Symbol("x"), date: new Date(NaN), nobody: { toJSON() {} } })) {
  const odd = await tried(`a ${what}`, asking, { ...gift("10.00", what), params: { ...gift("10.00").params, [what]: value } });
  said[`a ${what}`] += odd.message.startsWith(`${what} `) ? ", named" : `: ${odd.message}`;
}
for (const [what, effect] of Object.entries({ stream: async function* () { called.ran = 1 }, generator: function* () { called.ran = 1 } })) {
  const question = (key) => gift("10.00", key);
  said[what] = await guarded(asking, "gift_card.issue", question(what), effect).catch((error) => error.name);
  await tried(`returned ${what}`, asking, question(`returned-${what}`), effect);
}
for (const [what, value] of Object.entries({ hole: [1, , 2], nothing: [undefined] })) {
  said[what] = (await tried(what, asking, { ...gift("10.00", what), params: { ...gift("10.00").params, [what]: value } })).name;
}
const plain = { made: Object.assign(Object.create(null), { a: [null, {}] }), absent: undefined };
await tried("plain", asking, { ...gift("10.00", "plain"), params: { ...gift("10.00").params, ...plain } });
said.check = (await asking.check({ action: "gift_card.issue", params: gift("10.00").params })).decision;
said.heartbeat = await asking.heartbeat();
"""


def test_an_effect_is_called_once_and_only_when_allowed_and_its_outcome_is_reported(
    package: Path, fixtures: Fixtures
) -> None:
    with listening(fixtures.app) as url:
        found = ran(package, EFFECTS, url, fixtures.key)
    assert found["said"] == {
        "allowed": "allowed 36", "repeated": "AlreadyStarted", "repeated was a": "success", "another": "KeyConflict", "denied": "ActionDenied",
        "reason": "over_limit", "throws": "RangeError", "thrown": "secret", "throws again": "AlreadyStarted",
        "not a number": "TypeError", "a big integer": "done", "asked as its number": "completed",
        **{f"a {what}": "TypeError, named" for what in ("secretive", "getter", "huge", "map", "set", "code", "tag", "date", "nobody")}, "check": "ALLOW", "heartbeat": "OK",
        **dict.fromkeys(("stream", "generator", "returned stream", "returned generator", "hole", "nothing"), "TypeError"), "plain": "done",
    }  # fmt: skip
    assert found["called"] == {
        "allowed": 1, "throws": 1, "a big integer": 1, "returned stream": 1, "returned generator": 1, "plain": 1,
    }, "and the body of no generator ran"  # fmt: skip
    rows = fixtures.admin.execute(
        "select o.idempotency_key, s.status, s.outcome from sentinel.operations o"
        " join sentinel.operation_states s using (operation_id, tenant_id)"
    ).fetchall()
    assert {key: (status, outcome) for key, status, outcome in rows} == {
        "small": ("completed", "success"), "huge": ("denied", None), "throws": ("in_doubt", "error"), "big": ("completed", "success"), "plain": ("completed", "success"),
        "returned-stream": ("in_doubt", "error"), "returned-generator": ("in_doubt", "error"),
    }  # fmt: skip


WAITING = """
const asking = client();
const question = gift("100.00", "large");
const pending = await tried("first", asking, question);
console.log(pending.approvalId);
await tried("waited", asking, { ...question, waitSeconds: 60 }, (answer) => answer.status);
"""


@pytest.mark.parametrize(("verdict", "came"), [("approve", "approved"), ("reject", "ActionDenied")])
def test_an_effect_waits_for_a_person_and_asks_the_authority_again(
    package: Path, fixtures: Fixtures, verdict: str, came: str
) -> None:
    with listening(fixtures.app) as url, started(package, trying(WAITING), url, fixtures.key) as process:
        assert process.stdout is not None
        decide(fixtures, process.stdout.readline().strip(), verdict)
        found = json.loads(process.stdout.read().splitlines()[-1])
    assert found["said"] == {"first": "ApprovalPending", "waited": came}
    assert found["called"] == ({"waited": 1} if verdict == "approve" else {})


def test_a_call_whose_connection_is_cut_is_repeated_under_its_key_and_nothing_happens_twice(
    package: Path, fixtures: Fixtures
) -> None:
    server, cut = ScriptedServer(), []

    def forward(asked: Asked) -> None:
        """To the authority, whose first answer on each path is lost."""
        headers = {name: asked.headers[name] for name in ("x-api-key", "content-type")}
        answer = requests.post(url + asked.path, data=asked.body, headers=headers, timeout=120)
        if asked.path in cut:
            asked.answer(answer.status_code, answer.content, answer.headers["Content-Type"])
        else:
            cut.append(asked.path)
            asked.reset()

    server.script = forward
    with listening(fixtures.app) as url, server.running():
        found = ran(package, 'await tried("cut", client(), gift("10.00", "cut"));', server.url, fixtures.key)
    assert found == {"said": {"cut": "done"}, "called": {"cut": 1}}
    assert [path.rpartition("/")[2] for path in cut] == ["guard", "start", "report"]
    bodies = [asked.json for asked in server.asked]
    assert len(bodies) == 6 and bodies[0] == bodies[1] and bodies[2] == bodies[3] and bodies[4] == bodies[5]
    assert fixtures.one("select count(*) from sentinel.operations") == 1
    assert fixtures.one("select status from sentinel.operation_states") == "completed"


FAULTY = """
const [failing, ...names] = rest;
const asking = client({ timeoutSeconds: 60 });
const hasty = client({ timeoutSeconds: 0.4, retries: 1 });
asking[failing] = (...given) => hasty[failing](...given);
const began = performance.now();
const unreported = [];
const onUnreported = (error) => unreported.push(error.name);
await Promise.all(names.map((name) => tried(name, asking, refund(name, { resource: "refund/rf_1", onUnreported }))));
console.log(JSON.stringify({ seconds: (performance.now() - began) / 1000, unreported }));
"""
NAMES = {f"fault-{number}": name for number, name in enumerate(FAULTS)}
"""Every fault, by the key of the operation that meets it."""


def with_every_fault(package: Path, authority: FakeAuthority, call: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(what the effects came to, the time and what was not reported) with each operation's fault on this call, which alone is in a hurry."""

    def misbehave(exchange: Exchange) -> bool:
        if exchange.path.removeprefix("/api/sentinel/action/") != call:
            return False
        FAULTS[NAMES[(exchange.body or {})["idempotency_key"]]](exchange)
        return True

    authority.misbehave = misbehave
    with started(package, trying(FAULTY), authority.url, "key", call.rpartition("/")[2], *NAMES) as process:
        printed, _ = process.communicate(timeout=120)
    measured, found = map(json.loads, printed.splitlines())
    return found, measured


@pytest.mark.parametrize("call", ["guard", "guard/start"])
def test_with_no_usable_answer_no_effect_is_called_and_no_call_outlasts_its_time(
    package: Path, authority: FakeAuthority, call: str
) -> None:
    found, measured = with_every_fault(package, authority, call)
    assert found == {"said": dict.fromkeys(NAMES, "Unreachable"), "called": {}}
    assert measured["seconds"] < 2 * SLACK, "a server that drips would take a minute"
    print(f"N={len(NAMES)}")


def test_an_effect_that_is_over_is_not_called_again_because_its_report_was_lost(
    package: Path, authority: FakeAuthority
) -> None:
    found, measured = with_every_fault(package, authority, "guard/report")
    assert found == {"said": dict.fromkeys(NAMES, "done"), "called": dict.fromkeys(NAMES, 1)}
    assert measured["unreported"] == ["Unreachable"] * len(NAMES)


ABORTED = """
const stop = new AbortController();
const reason = new Error("stopped by its user");
const gone = AbortSignal.abort(reason);
const asking = client({ timeoutSeconds: 20 });
const same = (error) => error === reason;
said.before = same(await tried("-", asking, refund("before", { signal: gone })));
const waiting = asking.waitForApproval(rest[0], { timeoutSeconds: 60, signal: stop.signal }).catch(same);
const silent = tried("-", asking, refund("silent", { signal: stop.signal })).then(same);
const onUnreported = (error) => (said.unreported = same(error));
const inside = tried("-", asking, refund("inside", { signal: stop.signal, onUnreported }), (answer) => new Promise((_, reject) => {
  stop.signal.addEventListener("abort", () => reject(stop.signal.reason));
  setTimeout(() => stop.abort(reason), 100);
})).then(same);
[said.waiting, said.silent, said.inside] = await Promise.all([waiting, silent, inside]);
const late = new AbortController();
await tried("late", client(), refund("late", { signal: late.signal }), () => (late.abort(reason), "done"));
"""


def test_an_aborted_call_ends_with_its_users_reason_and_an_aborted_effect_is_not_reported_as_over(
    package: Path, authority: FakeAuthority
) -> None:
    pending = authority.operations["p"] = Operation({"action": "refund.create"}, "APPROVAL_REQUIRED", "pending", "x")

    def silent(exchange: Exchange) -> bool:
        if (exchange.body or {}).get("idempotency_key") != "silent":
            return False
        FAULTS["hangs"](exchange)
        return True

    authority.misbehave = silent
    began = time.monotonic()
    found = ran(package, ABORTED, authority.url, "key", pending.approval_id)
    aborted = ("before", "waiting", "silent", "inside", "unreported")
    assert {name: found["said"][name] for name in aborted} == dict.fromkeys(aborted, True)
    assert time.monotonic() - began < 2 * SLACK, "nobody waited for an answer that is not wanted any more"
    assert found["called"] == {"-": 1, "late": 1} and authority.operations["inside"].outcome is None
    assert authority.operations["inside"].start_id and authority.operations["late"].outcome == "success"
    assert "before" not in authority.operations


ODD = """
class Numbered extends Error { name = 404 }
class Guarding extends Error { get name() { throw new Error("its name") } }
const revoked = Proxy.revocable({}, {});
revoked.revoke();
const thrown = { numbered: new Numbered("secret"), guarding: new Guarding("secret"), revoked: revoked.proxy, nothing: undefined };
for (const [what, error] of Object.entries(thrown)) {
  said[what] = await guarded(client(), "gift_card.issue", refund(what), () => { throw error }).then(() => "done", (one) => one === error);
}
const stop = new AbortController();
const onUnreported = () => { throw new Error("the log is full") };
const aborted = () => { stop.abort(); throw thrown.numbered };
said.aborted = (await guarded(client(), "gift_card.issue", refund("aborted", { signal: stop.signal, onUnreported }), aborted).catch((one) => one)) === thrown.numbered;
await tried("unreported", client({ retries: 0 }), refund("unreported", { onUnreported }));
"""


def test_an_effects_own_result_or_error_is_what_its_caller_gets_however_odd_it_is(
    package: Path, authority: FakeAuthority
) -> None:
    """The finding: an error whose `name` is no text was hidden by a TypeError, and its outcome was not reported."""

    def not_reported(exchange: Exchange) -> bool:
        if exchange.path.endswith("/report") and (exchange.body or {}).get("idempotency_key") == "unreported":
            exchange.answer(503, {})
            return True
        return False

    authority.misbehave = not_reported
    found = ran(package, ODD, authority.url, "key")
    odd = ("numbered", "guarding", "revoked", "nothing")
    assert found["said"] == {**dict.fromkeys((*odd, "aborted"), True), "unreported": "done"}
    assert [authority.operations[what].outcome for what in odd] == ["error"] * len(odd)


PATIENT = """
const asking = client({ timeoutSeconds: Infinity });
await tried("patient", asking, refund("k", { waitSeconds: Infinity }));
await tried("for a month", client({ timeoutSeconds: 30 * 86400 }), refund("month"));
"""


def test_a_client_that_waits_as_long_as_it_takes_does_not_give_up_at_once(
    package: Path, authority: FakeAuthority
) -> None:
    """The finding: a timer of more than 24 days fires at once, so that every call ended as `timeout` within a millisecond."""
    assert ran(package, PATIENT, authority.url, "key")["said"] == {"patient": "done", "for a month": "done"}


FINAL = 'said["is final"] = (await tried("refused", client(), refund("k"))).isFinal;'


@pytest.mark.parametrize(
    ("code", "status", "error", "is_final"),
    [
        ("already-started", 409, "AlreadyStarted", True), ("permit-expired", 410, "ActionExpired", False),
        ("permit-refused", 403, "ActionDenied", False), ("resolved-not-executed", 409, "ActionDenied", True), ("no", 400, "Rejected", True),
        ("unauthenticated", 401, "Rejected", False),
    ],
)  # fmt: skip
def test_a_refused_start_says_why_and_the_effect_is_not_called(
    package: Path, authority: FakeAuthority, code: str, status: int, error: str, is_final: bool
) -> None:
    def refuse(exchange: Exchange) -> bool:
        if exchange.path.endswith("/start"):
            exchange.answer(status, {"type": f"urn:sentinel:problem:{code}"}, content_type="application/problem+json")
        return exchange.path.endswith("/start")

    authority.misbehave = refuse
    found = ran(package, FINAL, authority.url, "key")
    assert found == {"said": {"refused": error, "is final": is_final}, "called": {}}


BUSY = 'said.code = (await tried("busy", client({ retries: 0 }), refund("k"))).code ?? "none";'


@pytest.mark.parametrize(("status", "code"), [(429, "too-many-open-questions"), (409, "still-deciding"), (429, None)])
def test_a_busy_answer_says_why(package: Path, authority: FakeAuthority, status: int, code: str | None) -> None:
    def refuse(exchange: Exchange) -> bool:
        if code is None:
            exchange.answer(status, {})
        else:
            exchange.problem(status, code)
        return True

    authority.misbehave = refuse
    found = ran(package, BUSY, authority.url, "key")
    assert found == {"said": {"busy": "Unreachable", "code": code or "none"}, "called": {}}


CONFLICT = """
const asking = client();
await asking.guard({ action: "gift_card.issue", ...refund("k") });
const of = (value) => ({ idempotencyKey: "k", params: { ...refund("k").params, amount: { value, currency: "USD" } } });
const known = (error) => [error.recordedParams?.amount.value ?? "none", error.tightened ?? "none"];
said["knows of other"] = known(await tried("other", asking, of(2)));
said["knows of worse"] = known(await tried("worse", asking, of(2000)));
"""


def test_a_conflict_says_what_the_key_was_first_used_with(package: Path, authority: FakeAuthority) -> None:
    found = ran(package, CONFLICT, authority.url, "key")
    worse = {"decision": "DENY", "reasonCode": "over_limit", "reason": "over_limit!"}
    assert found["said"] == {
        "other": "KeyConflict", "knows of other": [1, "none"], "worse": "KeyConflict", "knows of worse": [1, worse],
    }  # fmt: skip


@pytest.mark.parametrize("worse", ["x", ["x"], 1])
def test_a_malformed_conflict_says_nothing_of_the_first_use(
    package: Path, authority: FakeAuthority, worse: object
) -> None:
    def refuse(exchange: Exchange) -> bool:
        first = {"amount": {"value": 1, "currency": "USD"}}
        exchange.problem(422, "idempotency-key-reused", recorded_params=first, tightened=worse)
        return True

    authority.misbehave = refuse
    program = 'said.known = (await tried("asked", client(), refund("k"))).recordedParams ?? "none";'
    assert ran(package, program, authority.url, "key")["said"] == {"asked": "KeyConflict", "known": "none"}


@pytest.mark.parametrize("when", ["permitted before", "asked under it"])
def test_a_halt_over_what_was_permitted_is_no_refusal_for_good(
    package: Path, authority: FakeAuthority, when: str
) -> None:
    if when == "permitted before":
        before = 'await client().guard({ action: "gift_card.issue", ...refund("k") });'
        assert ran(package, before, authority.url, "key")["called"] == {}
    authority.halted = True
    found = ran(package, FINAL, authority.url, "key")
    assert found == {"said": {"refused": "ActionDenied", "is final": when != "permitted before"}, "called": {}}


STOOD_STILL = """
const [seconds, clock, send] = [Number(rest[0]), rest[1] === "wall" ? Date : performance, fetch];
const now = clock.now.bind(clock);
let behind = 0;
clock.now = () => now() + behind;
globalThis.fetch = async (url, ...more) => {
  const answer = await send(url, ...more);
  if (String(url).endsWith("/start")) behind += 1000 * seconds;
  return answer;
};
await tried("late", client(), refund("declared", { actWithinSeconds: 45 }));
await tried("not declared", client(), refund("undeclared"));
"""


@pytest.mark.parametrize("clock", ["monotonic", "wall"])  # the second alone goes on while a machine is suspended
def test_an_effect_is_not_called_on_a_start_that_was_answered_after_its_time(
    package: Path, authority: FakeAuthority, clock: str
) -> None:
    assert ran(package, STOOD_STILL, authority.url, "key", "1", clock)["called"] == {"late": 1, "not declared": 1}
    authority.operations.clear()
    found = ran(package, STOOD_STILL, authority.url, "key", "61", clock)
    assert found == {"said": dict.fromkeys(("late", "not declared"), "StartedTooLate"), "called": {}}
    assert [one.outcome for one in authority.operations.values()] == ["error", "error"]


REPORTS = """
const asking = client();
const results = { big: 2n ** 70n, huge: 2 ** 60, lost: [NaN, -Infinity], map: new Map([[1, 2]]), half: "\\ud800", code: { run: () => 1 }, hole: [1, , 2],
  long: "x".repeat(40_000), deep: Array(13).fill(0).reduce((one) => [one], "["), brackets: ["[".repeat(99)], ring: {} };
results.ring.itself = results.ring;
for (const [what, result] of Object.entries(results)) {
  const answer = await asking.guard({ action: "gift_card.issue", ...gift("1.00", what) });
  await asking.start(answer, crypto.randomUUID());
  const outcome = { idempotencyKey: what, action: answer.action, outcome: "success", permitToken: answer.permitToken(), resource: answer.resource, riskClass: answer.riskClass };
  said[what] = await asking.report({ ...outcome, result }).then((one) => one.duplicate, (error) => error.message);
}
"""


def test_a_result_is_reported_whatever_it_holds(package: Path, fixtures: Fixtures) -> None:
    """The finding: after the effect `report` threw, for numbers that the contract takes in a report."""
    with listening(fixtures.app) as url:
        found = ran(package, REPORTS, url, fixtures.key)
    assert found["said"] == dict.fromkeys(
        ("big", "huge", "lost", "map", "half", "code", "hole", "long", "deep", "brackets", "ring"), False
    )


GOES_ON = ("throw error instanceof Rejected ? refusedStart(answer, error) : error;", "")


def test_mutant_that_calls_its_effect_without_a_start_is_caught(
    package: Path, authority: FakeAuthority, tmp_path: Path
) -> None:
    found, _ = with_every_fault(mutant_of(package, tmp_path, "guarded.js", GOES_ON), authority, "guard/start")
    assert found["called"] == dict.fromkeys(NAMES, 1)


def test_mutant_that_does_not_look_at_the_answer_is_caught(
    package: Path, authority: FakeAuthority, tmp_path: Path
) -> None:
    authority.halted = True
    agent = mutant_of(package, tmp_path, "guarded.js", GOES_ON, ("    throwUnlessPermitted(answer);\n", ""))
    found = ran(agent, 'await tried("denied", client(), refund("k"));', authority.url, "key")
    assert found["called"] == {"denied": 1}
