"""The folder of policies: which one covers an action, clashes, and reload that keeps the last good set."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from policy_samples import NOW, POLICY, money, sample_request

from sentinel.cli.policy import check, show
from sentinel.core.canonical import canonical_json
from sentinel.core.decision import Verdict
from sentinel.core.errors import NotFound
from sentinel.platform.resources import policies_dir, roles_sql
from sentinel.policy import compile as compiling
from sentinel.policy.describe import describe, lint_policy
from sentinel.policy.errors import PolicyError
from sentinel.policy.evaluate import evaluate
from sentinel.policy.explain import compile_stored_policy
from sentinel.policy.library import NOT_POLICIES, PolicyLibrary, ReloadablePolicies
from sentinel.policy.source import MAX_BYTES, read_source


def _write(folder: Path, name: str, actions: str) -> None:
    text = POLICY.replace("policy: sample", f"policy: {name}").replace("[sample.pay]", actions)
    (folder / f"{name}.yaml").write_text(text)


def _found(library: PolicyLibrary, action: str) -> str | None:
    compiled = library.find(action)
    return compiled.policy.policy_id if compiled else None


def test_an_exact_action_wins_then_the_longest_pattern(tmp_path: Path) -> None:
    _write(tmp_path, "wide", "[mail.*]")
    _write(tmp_path, "narrow", "[mail.out.*]")
    _write(tmp_path, "exact", "[mail.out.send]")
    library = PolicyLibrary.load(tmp_path)
    found = {action: _found(library, action) for action in ("mail.read", "mail.out.draft", "mail.out.send", "mail.out")}
    assert found == {"mail.read": "wide", "mail.out.draft": "narrow", "mail.out.send": "exact", "mail.out": "wide"}
    assert _found(library, "mail.out.send.now") == "narrow"
    assert {_found(library, action) for action in ("mail", "mails.read", "Mail.read", "", ".", "*")} == {None}
    assert _found(library, "mail.out.*") == "narrow"


@pytest.mark.parametrize("actions", ["[a.b, c.d]", "[c.d]"])
def test_two_policies_cannot_claim_one_action(actions: str, tmp_path: Path) -> None:
    _write(tmp_path, "first", "[c.d, c.*]")
    _write(tmp_path, "second", actions)
    with pytest.raises(PolicyError, match=r'action "c\.d" is already claimed by .*first\.yaml'):
        PolicyLibrary.load(tmp_path)


def test_files_with_loaders_of_their_own_are_no_policies_and_make_no_folder_of_policies(tmp_path: Path) -> None:
    for name in NOT_POLICIES:
        (tmp_path / name).write_text("switches: {}")
    with pytest.raises(PolicyError, match="contains no policy"):
        PolicyLibrary.load(tmp_path)
    (tmp_path / "sample.yaml").write_text(POLICY)
    assert PolicyLibrary.try_load(tmp_path)[1] == []
    assert [compiled.policy.policy_id for compiled in PolicyLibrary.load(tmp_path).policies] == ["sample"]


def test_two_policies_cannot_have_one_id(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(POLICY)
    (tmp_path / "b.yaml").write_text(POLICY.replace("[sample.pay]", "[sample.other]"))
    with pytest.raises(PolicyError, match='policy "sample" is already claimed'):
        PolicyLibrary.load(tmp_path)


def test_a_name_that_another_policy_has_is_told_with_its_place(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text(POLICY.replace("[sample.pay]", f"[sample.{name}, sample.pay]"))
    policy, action = PolicyLibrary.try_load(tmp_path)[1]
    assert (policy.line, policy.column, policy.source_line) == (1, 9, "policy: sample")
    assert (action.line, action.column, action.source_line) == (4, 21, "actions: [sample.b, sample.pay]")
    assert Path(action.file).name == "b.yaml" and action.message.startswith('action "sample.pay" is already claimed by')


def test_a_folder_that_would_silently_cover_less_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="contains no policy"):
        PolicyLibrary.load(tmp_path)
    with pytest.raises(PolicyError, match="cannot be read"):
        PolicyLibrary.load(tmp_path / "nowhere")
    (tmp_path / "a.yaml").write_text(POLICY)
    for name in ("b.yml", "B.YAML", "b.Yaml"):
        (tmp_path / name).write_text(POLICY)
        with pytest.raises(PolicyError, match=r"rename it to \.yaml"):
            PolicyLibrary.load(tmp_path)
        (tmp_path / name).unlink()


@pytest.mark.timeout(120)
def test_a_pipe_or_device_in_the_folder_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    """The finding: `policy check` and a reload waited for ever for somebody to write into the pipe."""
    (tmp_path / "a.yaml").write_text(POLICY)
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "void.yaml").symlink_to("/dev/null")
    library, errors = PolicyLibrary.try_load(tmp_path)
    assert library is None
    assert [(one.file, one.message) for one in errors] == [
        (str(tmp_path / name), "is a pipe or device, not a file") for name in ("pipe.yaml", "void.yaml")
    ]


@pytest.mark.timeout(120)
def test_no_more_of_a_file_is_read_than_it_may_have(tmp_path: Path) -> None:
    """The finding: the whole file was read before its size was looked at."""
    pipe = tmp_path / "tools.yaml"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as thread:
        read = thread.submit(read_source, pipe)
        with pipe.open("wb") as writer:
            writer.write(b" " * (MAX_BYTES + 1))
            writer.flush()
            with pytest.raises(PolicyError, match=f"is larger than {MAX_BYTES} bytes"):
                read.result(timeout=60)


def test_a_bad_file_at_reload_keeps_the_last_good_set(tmp_path: Path) -> None:
    path = tmp_path / "sample.yaml"
    path.write_text(POLICY)
    holder = ReloadablePolicies(tmp_path)
    first = holder.library
    path.write_text(POLICY.replace("then: ALLOW", "then: MAYBE"))
    with pytest.raises(PolicyError, match="MAYBE"):
        holder.reload()
    assert holder.library is first
    path.unlink()
    with pytest.raises(PolicyError):
        holder.reload()
    assert holder.library is first
    path.write_text(POLICY.replace('USD: "10.00"', 'USD: "11.00"'))
    assert holder.reload() is holder.library
    assert holder.library.policies[0].digest != first.policies[0].digest


_LAST = POLICY[POLICY.index("limits:") : POLICY.index("approval:")]
UNDER_NOTHING = {
    "empty": "    when: |\n",
    "empty at the very end": "    when: |",
    "folded": "    when: >\n",
    "blank lines": "    when: |+\n\n\n",
    "spaces": "    when: |\n      \n",
}


@pytest.mark.parametrize("last", UNDER_NOTHING.values(), ids=UNDER_NOTHING.keys())
def test_a_file_that_ends_with_an_empty_condition_is_told_with_its_place_and_keeps_the_last_good_set(
    last: str, tmp_path: Path
) -> None:
    """The finding: the place was looked for on a line after the file's last, and the authority's processes ended on SIGHUP."""
    path = tmp_path / "sample.yaml"
    path.write_text(POLICY)
    holder = ReloadablePolicies(tmp_path)
    first = holder.library
    path.write_text(POLICY.replace(_LAST, "") + _LAST + last)
    with pytest.raises(PolicyError) as caught:
        holder.reload()
    assert holder.library is first
    assert (caught.value.file, caught.value.line, caught.value.column) == (str(path), 39, 11)
    assert (caught.value.part, caught.value.rule) == ("limit", "account_day")
    told = CliRunner().invoke(check, [str(tmp_path)])
    assert told.exit_code == 1
    assert f'{path}:39:11: error: limit "account_day": when' in told.stderr


@pytest.mark.parametrize("verdict", ["ALLOW", "DENY"])
def test_a_condition_is_as_long_as_it_is_written(verdict: str, tmp_path: Path) -> None:
    """The finding: a list of 145 accounts was 1,900 characters for one check and 2,040 for the next, and ended the authority."""
    accounts = ",".join(f'"acct_{number:05}"' for number in range(145))
    rule = (
        f"  - {{id: listed, says: It is listed., when: 'account in [{accounts}]', then: {verdict}, reason: listed}}\n"
    )
    (tmp_path / "sample.yaml").write_text(POLICY.replace("rules:\n", "rules:\n" + rule))
    [policy] = PolicyLibrary.load(tmp_path).policies
    assert len(policy.policy.rules[0].when) > 2000
    found = evaluate(policy, sample_request(account_ref="acct_00144"), NOW)
    assert (found.verdict, found.findings[0].rule_id) == (Verdict(verdict), "listed")
    kept = compile_stored_policy(canonical_json(policy.policy.document()), policy.digest)
    assert kept is not None and kept.digest == policy.digest


def test_a_fault_that_no_check_foresaw_is_one_of_its_file_and_keeps_the_last_good_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, good = tmp_path / "sample.yaml", tmp_path / "other.yaml"
    path.write_text(POLICY)
    good.write_text(POLICY.replace("policy: sample", "policy: other").replace("sample.pay", "other.pay"))
    holder = ReloadablePolicies(tmp_path)
    first, honest = holder.library, compiling.check_vouching

    def fails(*given: Any) -> None:
        if given[1].policy.policy_id == "sample":
            raise LookupError("nobody\nthought of it")
        honest(*given)

    monkeypatch.setattr(compiling, "check_vouching", fails)
    path.write_text(f"{POLICY}\n# Another text than what was compiled before.\n")
    with pytest.raises(PolicyError) as caught:
        holder.reload()
    assert holder.library is first
    assert caught.value.file == str(path)
    assert caught.value.message == "cannot be compiled: LookupError: nobody thought of it"
    assert isinstance(caught.value.__cause__, LookupError)
    told = CliRunner().invoke(check, [str(tmp_path)])
    assert (told.exit_code, f"{path}: error: cannot be compiled" in told.stderr) == (1, True)
    with pytest.raises(PolicyError):
        ReloadablePolicies(tmp_path)


def test_a_set_that_its_last_check_refuses_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "sample.yaml"
    path.write_text(POLICY)
    holder = ReloadablePolicies(tmp_path)
    first, seen = holder.library, []

    def refuse(library: PolicyLibrary) -> None:
        assert holder.library is first, "before it is in force"
        seen.append(library)
        raise PolicyError("not here", file=str(tmp_path))

    path.write_text(POLICY.replace('USD: "10.00"', 'USD: "11.00"'))
    with pytest.raises(PolicyError, match="not here"):
        holder.reload(refuse)
    assert holder.library is first
    assert holder.reload(seen.append) is seen[1] is holder.library


def test_a_reload_keeps_one_compiled_policy_for_each_text(tmp_path: Path) -> None:
    """The finding: every reload kept another copy of every policy for as long as anything was cached for it."""
    _write(tmp_path, "same", "[a.do]")
    _write(tmp_path, "other", "[b.do]")
    holder = ReloadablePolicies(tmp_path)
    before = {one.policy.policy_id: one for one in holder.library.policies}
    same, other = tmp_path / "same.yaml", tmp_path / "other.yaml"
    same.write_text(f"# a comment\n{same.read_text()}")
    other.write_text(other.read_text().replace("label: ", "label: Another "))
    after = {one.policy.policy_id: one for one in holder.reload().policies}
    assert after["same"] is before["same"] is holder.library.find("a.do")
    assert after["other"].policy.label == f"Another {before['other'].policy.label}"
    assert holder.library.find("b.do") is after["other"]


def test_of_two_reloads_at_once_the_newer_policies_are_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "sample.yaml"
    path.write_text(POLICY)
    holder = ReloadablePolicies(tmp_path)
    honest, is_read, is_over = PolicyLibrary.load, threading.Event(), threading.Event()

    def slow(folder: Path) -> PolicyLibrary:
        library = honest(folder)
        if not is_read.is_set():
            is_read.set()
            is_over.wait(1)  # compiling takes longer than that of who began later
        return library

    monkeypatch.setattr(PolicyLibrary, "load", slow)
    older = threading.Thread(target=holder.reload)
    older.start()
    assert is_read.wait(30)
    path.write_text(POLICY.replace('USD: "10.00"', 'USD: "11.00"'))
    holder.reload()
    is_over.set()
    older.join()
    assert holder.library.policies[0].digest == honest(tmp_path).policies[0].digest


def test_the_first_load_needs_a_good_set(tmp_path: Path) -> None:
    (tmp_path / "sample.yaml").write_text("policy: sample")
    with pytest.raises(PolicyError):
        ReloadablePolicies(tmp_path)


def test_the_shipped_policies_are_good_and_leave_unknown_actions_uncovered() -> None:
    library, wrong = PolicyLibrary.try_load(policies_dir())
    assert library is not None and wrong == []
    assert _found(library, "refund.create") == "retail-refund"
    assert {_found(library, action) for action in ("unknown.action", "refund.cancel", "order.create", "refund")} == {
        None
    }
    assert [compiled.policy.policy_id for compiled in library.policies if lint_policy(compiled)] == []


def test_every_number_of_a_shipped_policy_has_a_comment() -> None:
    """A number is explained on its line or on the line above."""
    looked_at = 0
    for path in sorted(path for path in policies_dir().glob("*.yaml") if path.name not in NOT_POLICIES):
        lines = path.read_text().splitlines()
        body = lines[lines.index("rules:") :] + lines[lines.index("numbers:") : lines.index("rules:")]
        for above, line in zip(["", *body], body, strict=False):
            written = line.split("#")[0]
            if any(
                key in written for key in ("cap:", "people:", "two_people_from:", "expires:", ">= ", "> 5", "_up_to:")
            ):
                looked_at += 1
                assert "#" in line or above.strip().startswith("#") or "numbers." in line, (path.name, line)
    assert looked_at > 20


def test_remarks_name_what_is_unlikely_to_be_meant(tmp_path: Path) -> None:
    text = POLICY.replace("when: risk.known", "when: '!present.ordered_at'").replace("then: DENY", "then: ALLOW", 1)
    (tmp_path / "sample.yaml").write_text(text.replace("numbers.allow_up_to", "1000"))
    [compiled] = PolicyLibrary.load(tmp_path).policies
    found = "\n".join(lint_policy(compiled))
    assert "risk.known" in found
    assert "numbers.allow_up_to" in found
    assert '"known_fraud" allows because a fact is absent' in found


def _remarks_on_absence(folder: Path, when: str) -> list[str]:
    text = POLICY.replace("when: amount_minor <= numbers.allow_up_to", f"when: |\n      {when}")
    (folder / "sample.yaml").write_text(text)
    [compiled] = PolicyLibrary.load(folder).policies
    return [remark for remark in lint_policy(compiled) if "because a fact is absent" in remark]


@pytest.mark.parametrize(
    "when",
    [
        "!present.account",
        "!(present.account)",
        "present.account == false",
        "false == present.account",
        "present.account != true",
        "!(present.account == true)",
        "!(present.account != false)",
        "amount_minor < 5 && !(present.account && account == 'a')",
        "present.account ? account == 'a' : true",
        "present.account ? false : risk.known",
        "present.account ? account == 'a' : !risk.known",
        "present.account == present.risk.known",
        "present.account != risk.known",
        "account.matches('a') || !present.account",
        "[present.account].exists(x, !x)",
        "!(risk.known || present.account) && now.getHours('UTC') < 9",
    ],
)
def test_an_allow_that_an_absent_fact_may_bring_about_is_remarked_on(when: str, tmp_path: Path) -> None:
    assert _remarks_on_absence(tmp_path, when) == [
        'rule "small" allows because a fact is absent: a request that leaves it out is allowed'
    ]


@pytest.mark.parametrize(
    "when",
    [
        "present.account && account == 'a'",
        "present.account == true && !risk.known",
        "present.account != false",
        "!!present.account",
        "!(present.account == false)",
        "!(!present.account || risk.known)",
        "present.account ? account == 'a' : false",
        "present.account ? true : risk.known",
        "account == '! present.account'",
        "present.account && account.matches('a')",
    ],
)
def test_an_allow_that_only_what_is_there_may_bring_about_is_not(when: str, tmp_path: Path) -> None:
    assert _remarks_on_absence(tmp_path, when) == []


def test_a_policy_can_be_told_in_words() -> None:
    compiled = PolicyLibrary.load(policies_dir()).find("refund.create")
    assert compiled is not None
    told = describe(compiled)
    assert told["rules"][0]["words"] == "DENY (duplicate_refund) when risk.duplicate_refund"
    assert told["limits"][0]["words"].startswith(
        "at most 300.00 USD, 300.00 EUR, 300.00 GBP for each account and currency"
    )
    assert told["approval"]["words"].startswith(
        "one person with role approver, within 30 minutes; two people from 500.00"
    )
    assert told["currencies"] == ["EUR", "GBP", "USD"]


@pytest.mark.parametrize("people", [1, 2])
def test_the_words_for_an_approval_say_when_a_second_person_is_needed(people: int, tmp_path: Path) -> None:
    (tmp_path / "sample.yaml").write_text(POLICY.replace("people: 1", f"people: {people}"))
    [compiled] = PolicyLibrary.load(tmp_path).policies
    words = {
        1: "one person with role approver, within 30 minutes; two people from 9.00 USD, and where the amount is in another currency or"
        " there is none",
        2: "2 people with role approver, within 30 minutes",
    }
    assert describe(compiled)["approval"]["words"] == words[people]
    asked = [
        evaluate(compiled, sample_request(amount=amount), NOW).approval
        for amount in (money(899), money(900), money(1, "JPY"))
    ]
    assert [one and one.people for one in asked] == [people, 2, 2]


def test_the_currencies_of_a_policy_are_also_those_of_its_breakers_alone(tmp_path: Path) -> None:
    text = POLICY[: POLICY.index("numbers:")] + (
        "rules: [{id: all, says: Everything., when: 'amount_minor > 0', then: ALLOW, reason: within_policy_limit}]\n"
        'breakers: [{id: fast, per: agent, window: 5m, amount: {USD: "9.00"}, then: halt}]\n'
        "approval: {expires: 30m, role: approver, people: 1}\n"
    )
    (tmp_path / "sample.yaml").write_text(text)
    (compiled,) = PolicyLibrary.load(tmp_path).policies
    assert describe(compiled)["currencies"] == ["USD"]


def test_the_files_that_travel_along_are_found_in_a_checkout() -> None:
    assert (policies_dir() / "retail_refund.yaml").is_file()
    assert roles_sql().name == "roles.sql"


def test_a_currency_that_one_place_lacks_is_remarked_on_with_what_follows(tmp_path: Path) -> None:
    breaker = 'breakers: [{id: fast, per: agent, window: 5m, amount: {USD: "9.00"}, then: halt}]\n'
    number, cap = 'allow_up_to: {USD: "10.00", JPY: "1000"}', 'cap: {USD: "20.00", JPY: "2000"}'
    text = POLICY.replace(number, 'allow_up_to: {USD: "10.00", SEK: "9.00"}').replace(cap, 'cap: {USD: "20.00"}')
    (tmp_path / "sample.yaml").write_text(text + breaker)
    [compiled] = PolicyLibrary.load(tmp_path).policies
    assert lint_policy(compiled)[-3:] == [
        'the cap of "account_day" has no SEK, which other amounts have: an operation in it is denied',
        'the amount of "fast" has no SEK, which other amounts have: an operation in it is denied',
        "two_people_from has no SEK, which other amounts have: two people approve, whatever the amount",
    ]


def test_a_second_person_that_is_asked_for_in_any_case_is_remarked_on(tmp_path: Path) -> None:
    (tmp_path / "sample.yaml").write_text(POLICY.replace("people: 1", "people: 3"))
    [compiled] = PolicyLibrary.load(tmp_path).policies
    assert "two_people_from changes nothing: 3 people approve in any case" in lint_policy(compiled)


def test_a_shown_policy_has_every_number_condition_and_fact_unbroken(tmp_path: Path) -> None:
    (tmp_path / "sample.yaml").write_text(
        POLICY.replace("    window: calendar_day\n", "    window: calendar_day\n    when: risk.count > 1\n")
    )
    shown = CliRunner().invoke(show, ["sample", str(tmp_path)]).stdout
    for whole in (
        "sample.pay", "allow_up_to: 10.00 USD, 1000 JPY", "risk.known: bool from params.risk.known; vouched by worker",
        "risk.count: int from params.risk.count, at least 0; vouched by worker",
        "ALLOW (small_amount) when amount_minor <= numbers.allow_up_to", "when risk.count > 1; over it APPROVAL_REQUIRED (limit_exceeded)",
        "two people from 9.00 USD",
    ):  # fmt: skip
        assert whole in shown


def test_a_folder_in_place_of_a_policys_id_is_told_where_it_belongs(tmp_path: Path) -> None:
    (tmp_path / "sample.yaml").write_text(POLICY)
    with pytest.raises(NotFound, match="there are: sample; a folder is named after the policy's id"):
        CliRunner().invoke(show, [str(tmp_path), str(tmp_path)], catch_exceptions=False)
    with pytest.raises(NotFound, match="there are: sample$"):
        CliRunner().invoke(show, ["smaple", str(tmp_path)], catch_exceptions=False)
