"""Who vouches for a fact: what an agent says of its own case may tighten and may never alone let go."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from sentinel.core.decision import Verdict
from sentinel.platform.resources import policies_dir
from sentinel.policy.compile import CompiledPolicy, try_compile
from sentinel.policy.document import policy_from_document
from sentinel.policy.evaluate import evaluate
from sentinel.policy.facts import Requester
from sentinel.policy.library import NOT_POLICIES, PolicyLibrary
from sentinel.policy.model import Voucher
from tests.unit.policy.policy_samples import (
    NOW,
    POLICY,
    compile_text,
    refund_request,
    sample_request,
    small_refund,
    with_rules,
)

AN_AGENT, WORKER_REQUESTER = Requester("agent"), Requester("worker", is_worker=True)
SAID = ", vouched_by: worker"
HEARS_THE_AGENT = POLICY.replace(SAID, "").replace("params.account_ref", f"params.account_ref{SAID}")
"""Its limit counts by the account, for which somebody else has to vouch."""
NO_LIMITS = POLICY[: POLICY.index("limits:")] + POLICY[POLICY.index("approval:") :]
ALLOWING = {
    "by its value": "amount_minor <= 1000 && !risk.known",
    "by being there": "amount_minor <= 1000 && present.account",
    "by being absent": "amount_minor <= 1000 && !present.risk.count",
    "in one branch only": "amount_minor <= 10 || (amount_minor <= 1000 && risk.count < 1)",
    "hidden in a choice": "risk.known ? amount_minor <= 10 : amount_minor <= 1000",
    "within a list": "account in ['acct_1'] && amount_minor <= 1000",
}


def problems(folder: Path, text: str) -> list[str]:
    (folder / "sample.yaml").write_text(text)
    return [str(error) for error in try_compile(folder / "sample.yaml", name="sample.yaml")[1]]


@pytest.mark.parametrize("when", ALLOWING.values(), ids=ALLOWING.keys())
def test_an_allow_that_rests_on_the_agents_word_is_named_with_file_line_rule_and_fact(
    tmp_path: Path, when: str
) -> None:
    text = NO_LIMITS.replace(SAID, "").replace("when: amount_minor <= numbers.allow_up_to", f'when: "{when}"')
    (told,) = problems(tmp_path, text)
    assert re.match(
        r'sample\.yaml:27:\d+: rule "small": an ALLOW may not rest on "(account|risk\.known|risk\.count)"', told
    ), told
    assert "the agent vouches for it itself" in told


@pytest.mark.parametrize("when", ALLOWING.values(), ids=ALLOWING.keys())
def test_the_same_allow_on_the_workers_word_is_good(tmp_path: Path, when: str) -> None:
    assert problems(tmp_path, POLICY.replace("when: amount_minor <= numbers.allow_up_to", f'when: "{when}"')) == []


def test_a_limit_does_not_go_away_on_the_agents_word(tmp_path: Path) -> None:
    text = HEARS_THE_AGENT.replace("    window:", "    when: risk.count > 0\n    window:")
    (told,) = problems(tmp_path, text)
    assert 'limit "account_day": whether a limit applies may not rest on "risk.count"' in told


def test_rules_that_tighten_may_rest_on_the_agents_word(tmp_path: Path) -> None:
    assert problems(tmp_path, HEARS_THE_AGENT) == []


@pytest.mark.parametrize("beside", ["", "tenant, ", "agent, ", "key, ", "risk.channel, "])
def test_no_limit_counts_by_a_name_that_the_agent_may_make_up(tmp_path: Path, beside: str) -> None:
    """The finding: such a limit was taken without a word, and each account that the agent named had a cap of its own."""
    channel = "  risk.channel: {type: string, from: params.channel, vouched_by: worker}\n"
    text = POLICY.replace("facts:\n", f"facts:\n{channel}").replace("per: [account", f"per: [{beside}account")
    assert problems(tmp_path, text) == []
    (told,) = problems(tmp_path, text.replace("params.account_ref" + SAID, "params.account_ref, vouched_by: agent"))
    assert re.match(r'sample\.yaml:32:\d+: limit "account_day": a limit\'s per may not rest on "account"', told), told
    assert "or count per agent, key or tenant" in told


def test_a_limit_may_count_by_who_asks_and_by_what_is_asked(tmp_path: Path) -> None:
    facts = "  action: {type: string, from: action}\n  agent: {type: string, from: agent_id}\n"
    text = POLICY.replace("facts:\n", f"facts:\n{facts}").replace("per: [account", "per: [action, agent, key, tenant")
    assert problems(tmp_path, text) == []


def test_what_is_asked_itself_is_no_claim(tmp_path: Path) -> None:
    text = POLICY.replace(
        "facts:\n", "facts:\n  action: {type: string, from: action}\n  agent: {type: string, from: agent_id}\n"
    )
    text = text.replace("when: amount_minor", "when: action == 'sample.pay' && agent != 'x' && amount_minor")
    assert problems(tmp_path, text) == []


def test_another_sum_is_never_taken_for_the_operations_amount(tmp_path: Path) -> None:
    """The finding: with no limit, `amount` from another path was allowed by as what is asked, while only the agent vouched for it."""
    assert problems(tmp_path, NO_LIMITS) == []
    for path in (
        "params.total",
        "[params.amount, params.total]",
        "[params.total, params.amount]",
        "params.amount.value",
    ):
        for vouched in ("", SAID):
            (told,) = problems(tmp_path, NO_LIMITS.replace("from: params.amount", f"from: {path}{vouched}"))
            assert told.startswith("sample.yaml:6:1: ") and "it must come from params.amount" in told
    total = NO_LIMITS.replace("facts:\n", "facts:\n  total: {type: money, from: params.total, vouched_by: agent}\n")
    (told,) = problems(tmp_path, total.replace("when: amount_minor", "when: total_minor"))
    assert 'an ALLOW may not rest on "total": the agent vouches for it itself' in told


def test_a_number_named_like_the_minor_units_of_a_fact_that_is_no_money_is_heard_beside_it(tmp_path: Path) -> None:
    facts = f"  paid: {{type: bool, from: params.paid{SAID}}}\n  paid_minor: {{type: int, from: params.paid_minor}}\n"
    text = NO_LIMITS.replace(SAID, "").replace("facts:\n", f"facts:\n{facts}")
    policy = compile_text(tmp_path, text.replace("when: risk.count >= 3", "when: paid_minor > 5"))
    found = [
        evaluate(policy, sample_request(paid=True, paid_minor=minor), NOW, requester=AN_AGENT).reason_code
        for minor in (1, 6)
    ]
    assert found == ["small_amount", "too_often"], "what an agent may not say takes away no other fact"


NO_MONEY = """\
policy: sample
label: Sample
version: v1
actions: [sample.pay]
facts:
  amount: {type: KIND, from: params.small, vouched_by: VOUCHER}
rules:
  - {id: small, says: It is small., when: WHEN, then: ALLOW, reason: small}
approval: {expires: 30m, role: approver, people: 1}
"""


@pytest.mark.parametrize(
    ("kind", "when", "said"),
    [("bool", "amount", True), ("int", "amount < 5", 1), ("string", "amount == 'low'", "low")],
)
def test_a_fact_named_amount_that_is_no_money_is_a_claim_like_any(
    tmp_path: Path, kind: str, when: str, said: object
) -> None:
    text = NO_MONEY.replace("KIND", kind).replace("WHEN", when)
    (told,) = problems(tmp_path, text.replace("VOUCHER", "agent"))
    assert 'an ALLOW may not rest on "amount": the agent vouches for it itself' in told
    policy = compile_text(tmp_path, text.replace("VOUCHER", "worker"))
    request = {"agent_id": "a", "action": "sample.pay", "params": {"small": said}}
    assert evaluate(policy, request, NOW, requester=WORKER_REQUESTER).verdict is Verdict.ALLOW
    claimed = evaluate(policy, request, NOW, requester=AN_AGENT)
    assert (claimed.verdict, claimed.reasons) == (Verdict.APPROVAL_REQUIRED, ("fact_not_vouched",))


@pytest.mark.parametrize("path", ["params.account_ref", "resource", "evidence_context.x"])
def test_the_authority_vouches_only_for_what_it_knows(tmp_path: Path, path: str) -> None:
    text = POLICY.replace("from: params.account_ref, vouched_by: worker", f"from: {path}, vouched_by: authority")
    assert any("the authority can vouch for action and agent_id only" in told for told in problems(tmp_path, text))


def test_every_fact_of_the_shipped_policies_says_who_vouches_and_is_read_back(tmp_path: Path) -> None:
    for path in policies_dir().glob("*.yaml"):
        if path.name in NOT_POLICIES:
            continue
        text = path.read_text()
        assert text.count("vouched_by: ") >= text.count("{type: "), f"{path.name}: a fact that does not say who vouches"
    for compiled in PolicyLibrary.load(policies_dir()).policies:
        assert policy_from_document(compiled.policy.document()) == compiled.policy


def _without_what_agents_say(policy: CompiledPolicy) -> CompiledPolicy:
    said = {fact.name for fact in policy.policy.facts if fact.vouched_by is Voucher.AGENT and not fact.is_asked}
    rules = tuple(rule for rule in policy.rules if not any(name in rule.rule.when for name in said))
    return with_rules(policy, rules)


def test_what_is_allowed_is_allowed_without_every_rule_that_hears_the_agent(tmp_path: Path) -> None:
    policy = compile_text(tmp_path, HEARS_THE_AGENT)
    bare, tried, allowed = _without_what_agents_say(policy), 0, 0
    for known, count, minor in itertools.product([True, False, None, "no"], [0, 3, -1, None], [1, 1000, 1001]):
        request = sample_request(
            amount={"amount_minor": minor, "currency": "USD"}, risk={"known": known, "count": count}
        )
        if evaluate(policy, request, NOW).verdict is Verdict.ALLOW:
            assert evaluate(bare, request, NOW).verdict is Verdict.ALLOW
            allowed += 1
        tried += 1
    print(f"N={tried}, {allowed} allowed")
    assert len(bare.rules) < len(policy.rules) and 0 < allowed < tried


def test_from_an_agents_key_the_workers_facts_only_tighten() -> None:
    """Whatever it says, an agent gets nothing that the worker would not get, and no ALLOW that hangs on it."""
    library, tried = PolicyLibrary.load(policies_dir()), 0
    flags = ("duplicate_refund", "stale_window", "suspicious_reason")
    for values in itertools.product([True, False], repeat=3):
        for make, attempts in itertools.product((refund_request, small_refund), (0, 1, 3, 6)):
            request = make(attempts=attempts, **dict(zip(flags, values, strict=True)))
            policy = library.find(request["action"])
            assert policy is not None
            agents, workers = (
                evaluate(policy, request, NOW, requester=requester) for requester in (AN_AGENT, WORKER_REQUESTER)
            )
            assert agents.verdict.rank >= workers.verdict.rank
            assert agents.verdict is not Verdict.ALLOW
            tried += 1
    print(f"N={tried}")


def test_an_account_that_is_only_claimed_shares_the_budget_of_the_unnamed() -> None:
    policy = PolicyLibrary.load(policies_dir()).find("refund.create")
    assert policy is not None
    asked = {ask.limit_key: ask.subject for ask in evaluate(policy, refund_request(), NOW, requester=AN_AGENT).limits}
    assert asked["retail-refund/account_day|~unknown|USD"] == "~unknown|USD"
    assert asked["retail-refund/agent_day|retail-refund-agent|USD"] == "retail-refund-agent|USD"


@pytest.mark.parametrize(
    ("when", "counts"),
    [
        ("present.risk.count && risk.count >= 1", {None: False, 0: False, 2: True}),
        ("risk.count >= 1", {None: True, 0: True, 2: True}),
        ("!present.risk.count", {None: True, 0: True, 2: True}),
    ],
)
def test_a_limit_goes_away_only_where_it_does_so_with_and_without_what_is_only_claimed(
    when: str, counts: dict[int | None, bool], tmp_path: Path
) -> None:
    """The finding: an agent that said what the limit counts was allowed beyond it, because nobody vouched for that."""
    rules = POLICY[: POLICY.index("  - id: known_fraud")] + POLICY[POLICY.index("  - id: small") :]
    text = rules.replace("    window:", f'    when: "{when}"\n    window:').replace("[account,", "[key,")
    policy = compile_text(tmp_path, text)
    for count, is_counted in counts.items():
        request = sample_request(risk={} if count is None else {"count": count})
        decision = evaluate(policy, request, NOW, requester=AN_AGENT)
        assert (decision.verdict, bool(decision.limits)) == (Verdict.ALLOW, is_counted), count
