"""The pages of policies and switches: what is in force is told, limits without accounts, and a flip takes what it should."""

from __future__ import annotations

import dataclasses
import html
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from sentinel.authority.actor import local_administrator
from sentinel.authority.gate_reports import record_gate_report
from sentinel.authority.policies import declare_policies
from sentinel.authority.switches import turn_switch_on
from sentinel.platform.resources import policies_dir
from sentinel.policy.library import ReloadablePolicies
from tests.integration.console.conftest import PASSWORD
from tests.support.switch_fixtures import BOOK, FEE, passing_report

SWITCH = f"/ops/policies/switches/{FEE}"
EVIL = '<img src=x onerror=alert(1)> "quoted"'


def words(answer: Any) -> str:
    """What a person reads on the page."""
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", answer.get_data(as_text=True))))


def stamp(answer: Any) -> str:
    (found,) = re.findall(r'name="stamp" value="([^"]*)"', answer.get_data(as_text=True))
    return html.unescape(found)


def record(fixtures: Any) -> None:
    digest = fixtures.sql("select policy_digest from sentinel.policies_in_force where policy_id = 'small-refund'")[0][0]
    record_gate_report(fixtures.pool, local_administrator(fixtures.tenant_id), BOOK, passing_report(digest))


def test_what_is_in_force_is_told_in_words_and_how_full_its_limits_are_without_any_account(fixtures: Any) -> None:
    vic = fixtures.browser("vic", "viewer")
    assert "No authority has declared a policy yet" in words(vic.get("/ops/policies"))
    declare_policies(fixtures.authority)
    fixtures.guard("120.00", account_ref="acct_very_private")
    listed = vic.get("/ops/policies")
    assert "Retail Refund Policy v1" in words(listed) and "40 % of account_day, 300.00 USD" in words(listed)
    page = vic.get("/ops/policies/retail-refund")
    assert page.status_code == 200 and "acct_very_private" not in page.get_data(as_text=True)
    told = words(page)
    for wanted in (
        "This refund was already made or is under way.", "amount_minor <= numbers.allow_up_to",
        "at most 300.00 EUR, 300.00 GBP, 300.00 USD for each account and currency per calendar day in UTC",
        "one person with role approver", "40 % today", "120.00 USD", "retail_refund.yaml: the text that is in force",
        "risk.customer_attempts_24h int, at least 0 params.risk.customer_attempts_24h worker", "string, one of ",
    ):  # fmt: skip
        assert wanted in told, wanted
    assert vic.get("/ops/policies/nothing").status_code == 404


def test_limits_are_measured_by_the_caps_of_the_policy_in_force_also_where_reservations_were_made_under_others(
    fixtures: Any, tmp_path: Path
) -> None:
    vic, folder = fixtures.browser("vic", "viewer"), Path(shutil.copytree(policies_dir(), tmp_path / "policies"))
    file = folder / "retail_refund.yaml"
    text = file.read_text()

    def declare_cap(cap: str) -> None:
        """Put the retail policy in force with this cap in USD of an account's day."""
        file.write_text(text.replace('cap: {USD: "300.00",', f'cap: {{USD: "{cap}",', 1))
        fixtures.authority = dataclasses.replace(fixtures.authority, policies=ReloadablePolicies(folder))
        declare_policies(fixtures.authority)

    def day_of_an_account() -> str:
        """What the policy's page says of that limit."""
        return words(vic.get("/ops/policies/retail-refund")).split(" account_day ")[1].split(" account_24h ")[0]

    declare_policies(fixtures.authority)
    fixtures.guard("130.00", account_ref="acct_fuller")
    fixtures.guard("120.00", account_ref="acct_fuller")
    declare_cap("100.00")
    assert "250 % of account_day, 100.00 USD" in words(vic.get("/ops/policies"))
    assert "250 % today 0.00 USD 250.00 USD 100.00 USD" in day_of_an_account()
    declare_cap("1000.00")
    assert "25 % today 0.00 USD 250.00 USD 1,000.00 USD" in day_of_an_account()
    declare_cap("300.00")
    assert re.search(r"\b\d+ other versions\b", words(vic.get("/ops/policies"))), "after a return to an older one too"


ODD_RULES = """rules:
  - {id: hostile, says: "It says <script>alert(2)</script>.", when: 'account == "<script>alert(1)</script>"', then: DENY, reason: hostile}
  - {id: odd, says: The amount ends in seven., when: "amount_minor % 2 == 7", then: DENY, reason: odd}
  - {id: long, says: It names a long account., when: 'account=="LONG"||amount_minor<0||amount_minor<0||amount_minor<0', then: DENY, reason: long}
""".replace("LONG", "x" * 1935)  # 1,994 characters, and over 2,000 with a space around each sign
ODD_LIMITS = {
    "account_day": "account != '<img src=x onerror=alert(1)>'",
    "account_24h": "amount_minor % 2 < 9",
}
SOURCE = re.compile(r'<br>\s*<code class="when source">([^<]+)</code>')
BARE = re.compile(r'<code class="when">([^<]+)</code>')


def with_odd_policy(fixtures: Any, folder: Path) -> Any:
    """The retail policy with sentences and conditions that have markup in them; a console that reads it."""
    shutil.copytree(policies_dir(), folder)
    file = folder / "retail_refund.yaml"
    text = file.read_text().replace("rules:\n", ODD_RULES)
    for limit, when in ODD_LIMITS.items():
        text = text.replace(f"- id: {limit}\n", f'- id: {limit}\n    when: "{when}"\n')
    file.write_text(text)
    fixtures.authority = dataclasses.replace(fixtures.authority, policies=ReloadablePolicies(folder))
    declare_policies(fixtures.authority)
    return fixtures.app(policies_dir=folder)


def test_every_condition_stands_below_its_sentence_and_markup_in_either_is_text(fixtures: Any, tmp_path: Path) -> None:
    vic = fixtures.browser("vic", "viewer", with_odd_policy(fixtures, tmp_path / "policies"))
    for policy in fixtures.authority.policies.library.policies:
        page = vic.get(f"/ops/policies/{policy.policy.policy_id}").get_data(as_text=True)
        wanted = [one.when for one in (*policy.policy.rules, *policy.policy.limits) if one.when]
        assert sorted(html.unescape(one) for one in SOURCE.findall(page)) == sorted(wanted)
        assert BARE.findall(page) == []
    page = vic.get("/ops/policies/retail-refund")
    told = words(page)
    for wanted in (
        'It says <script>alert(2)</script>. account == "<script>alert(1)</script>" ', "ends in seven. amount_minor % 2 == 7",
        "What one account gets back in a calendar day without a person. account != '<img src=x onerror=alert(1)>'",
        "per calendar day in UTC; over it APPROVAL_REQUIRED A spending limit would be exceeded.",
        "What one account gets back in any 24 hours without a person. amount_minor % 2 < 9",
        "Subjects are shown under pseudonyms", "What one agent pays back in any hour without a person, over all accounts. at most 10,000.00 EUR",
    ):  # fmt: skip
        assert wanted in told, wanted
    assert "<script>alert" not in page.get_data(as_text=True)
    assert "<img src=x" not in page.get_data(as_text=True)
    assert "Only once each refund, by params.refund_id , whatever the action, policy, key, agent or channel" in told


def test_the_cases_are_run_when_somebody_asks_and_a_file_that_differs_is_named(fixtures: Any, tmp_path: Path) -> None:
    declare_policies(fixtures.authority)
    folder = tmp_path / "policies"
    shutil.copytree(policies_dir(), folder)
    vic = fixtures.browser("vic", "viewer", fixtures.app(policies_dir=folder))
    good = words(vic.get("/ops/policies/retail-refund/cases"))
    assert re.search(r"(\d+) of \1 cases passed 0 failed (\d+) of \2 rules and limits reached", good), good[:400]
    assert "differs from the policy in force" not in good and str(folder) not in good
    file = folder / "retail_refund.yaml"
    file.write_text(file.read_text().replace('allow_up_to:   {USD: "150.00"', 'allow_up_to:   {USD: "999.00"'))
    bad = words(vic.get("/ops/policies/retail-refund/cases"))
    assert "differs from the policy in force" in bad and re.search(r"[1-9]\d* failed", bad) and "wanted" in bad
    assert "not what is in force" in words(vic.get("/ops/policies/retail-refund")).replace("  ", " ")
    assert "differs" in words(vic.get("/ops/policies"))
    file.write_text("policy: [")
    faults = vic.get("/ops/policies").get_data(as_text=True)
    assert "Faults in the policy files" in faults
    assert re.search(r"\n    2 \| \n      \| *\^", faults), "the line and the caret under it, each in a line of its own"
    assert "no usable file of this policy" in words(vic.get("/ops/policies/retail-refund"))
    unusable = words(vic.get("/ops/policies/retail-refund/cases"))
    assert "The cases cannot be run: retail_refund.yaml:2:" in unusable and str(folder) not in unusable


def test_whatever_an_authority_refuses_the_folder_for_is_named_as_a_fault_of_the_files(
    fixtures: Any, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(policies_dir(), tmp_path / "policies"))
    vic = fixtures.browser("vic", "viewer", fixtures.app(policies_dir=folder))
    assert "Faults in the policy files" not in words(vic.get("/ops/policies"))
    shutil.copy(folder / "retail_refund.yaml", folder / "second_refund.yaml")
    clash = words(vic.get("/ops/policies"))
    assert 'second_refund.yaml:7:9: error: policy "retail-refund" is already claimed by retail_refund.yaml' in clash
    assert 'second_refund.yaml:10:11: error: action "refund.create" is already claimed by retail_refund.yaml' in clash
    (folder / "second_refund.yaml").rename(folder / "second_refund.yml")
    overlooked = words(vic.get("/ops/policies"))
    assert "second_refund.yml: error: is not read under this name" in overlooked and "rename it to .yaml" in overlooked
    assert "already claimed" not in overlooked and str(folder) not in clash + overlooked
    (folder / "second_refund.yml").unlink()
    assert "Faults in the policy files" not in words(vic.get("/ops/policies"))


def test_turning_on_takes_an_administrator_a_gate_a_proof_and_a_fresh_page(fixtures: Any) -> None:
    declare_policies(fixtures.authority)
    app = fixtures.app()
    vic, ann, abe = (fixtures.browser(*who, app) for who in (("vic", "viewer"), ("ann", "approver"), ("abe", "admin")))
    assert '<form method="post" action="/ops/policies' not in vic.get(SWITCH).get_data(as_text=True)
    first = abe.get(SWITCH)
    form = {"stamp": stamp(first), "canary_percent": "5", "reason": EVIL}
    assert [who.submit(f"{SWITCH}/on", **form).status_code for who in (vic, ann)] == [403, 403]
    assert vic.submit(f"{SWITCH}/off", reason="x").status_code == 403
    unproved = abe.submit(f"{SWITCH}/on", **form)
    assert unproved.status_code == 400 and 'name="proof"' in unproved.get_data(as_text=True)
    assert html.escape(EVIL, quote=True).replace("&quot;", "&#34;") in unproved.get_data(as_text=True), (
        "typed words are kept"
    )
    closed = abe.submit(f"{SWITCH}/on", **form, proof=PASSWORD)
    assert closed.status_code == 409 and "there is no launch-gate report" in words(closed)
    # In the refusal and beside the form: a report that is not recorded opens nothing.
    assert words(closed).count("sentinel gates run fee --record --as EMAIL") == 2
    record(fixtures)
    for given in ({"canary_percent": "101"}, {"canary_percent": "5.5"}, {"canary_percent": ""}, {"reason": " "}):
        assert abe.submit(f"{SWITCH}/on", **{**form, **given}).status_code == 400, given
    assert fixtures.sql("select count(*) from sentinel.switches") == [(0,)]
    # Clicked twice: one flip, and both answers say that it is on.
    assert [abe.submit(f"{SWITCH}/on", **form).status_code for _ in range(2)] == [303, 303]
    shown = abe.get(SWITCH)
    assert f"{FEE} is on for 5 % of the accounts." in words(shown) and "198 of 200" in words(shown)
    assert "<img src=x" not in shown.get_data(as_text=True) and "&lt;img src=x" in shown.get_data(as_text=True)
    stale = abe.submit(f"{SWITCH}/on", **{**form, "canary_percent": "50"})
    assert stale.status_code == 409 and "has changed since this page was loaded" in words(stale)
    assert fixtures.sql("select canary_percent from sentinel.switches") == [(5,)]
    # Stopping is easy: no proof, an old page will do.
    assert ann.submit(f"{SWITCH}/off", reason="not sure").status_code == 303
    assert "is off for everybody" in words(ann.get(SWITCH))
    assert fixtures.sql("select count(*) from sentinel.events where kind = 'switch_on'") == [(1,)]


def test_a_refused_turning_off_leaves_the_percentage_in_the_other_form(fixtures: Any) -> None:
    """The finding: it was emptied, so that who then changed the canary had to know what it was."""
    declare_policies(fixtures.authority)
    record(fixtures)
    abe = fixtures.browser("abe", "admin", proved=True)
    form = {"stamp": stamp(abe.get(SWITCH)), "canary_percent": "5", "reason": "ready"}
    assert abe.submit(f"{SWITCH}/on", **form).status_code == 303
    refused = abe.submit(f"{SWITCH}/off", reason=" ")
    assert refused.status_code == 400
    assert 'name="canary_percent" type="number" value="5"' in refused.text


def test_what_is_turned_off_while_a_form_is_sent_stays_off(fixtures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The finding: the form was compared with the switch, and then turned on what another person had just turned off."""
    declare_policies(fixtures.authority)
    record(fixtures)
    abe = fixtures.browser("abe", "admin", proved=True)
    for percent in ("5", "50"):
        form = {"stamp": stamp(abe.get(SWITCH)), "canary_percent": percent, "reason": "ready"}
        assert abe.submit(f"{SWITCH}/on", **form).status_code == 303
    form = {"stamp": stamp(abe.get(SWITCH)), "canary_percent": "5", "reason": "fewer"}

    def meets_another(*given: Any, **named: Any) -> Any:
        off = "select sentinel.turn_switch_off(%s, %s, 'ann', 'it pays twice', gen_random_uuid())"
        fixtures.sql(off, fixtures.tenant_id, FEE)
        return turn_switch_on(*given, **named)

    with monkeypatch.context() as patched:
        patched.setattr("ops_console.pages.policies.turn_switch_on", meets_another)
        met = abe.submit(f"{SWITCH}/on", **form)
    assert met.status_code == 409 and "has been changed in the meantime" in words(met)
    assert fixtures.sql("select is_on, reason from sentinel.switches") == [(False, "it pays twice")]
