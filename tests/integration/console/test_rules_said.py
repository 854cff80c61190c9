"""A row's card tells what each rule of the policy that decided said, whatever became of that policy's file since."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sentinel.authority import policy_inspector as policy_book
from sentinel.authority.keys import WORKER_SCOPE
from sentinel.authority.operations import find_decided
from sentinel.authority.policies import declare_policies
from sentinel.platform.resources import policies_dir
from tests.support.decided_by import decided_by

CARD = re.compile(r'<details class="findings">.*?</details>', re.DOTALL)
RULE = re.compile(
    r'data-label="Rule"><code>([^<]+)</code></td>\s*<td data-label="Result">([^<]+)</td>\s*<td data-label="Finding">(.*?)</td>',
    re.DOTALL,
)
NOT_KEPT = "asked of evidence that is not kept"


def put_row(fixtures: Any, recorded: Any) -> str:
    """The ledger row of a decision; its name."""
    ((key,),) = fixtures.sql(
        "select idempotency_key from sentinel.operations where operation_id = %s", recorded.operation_id
    )
    entry = str(key).removeprefix("refund:")
    fixtures.sql("set session_replication_role = replica; insert into refunds.ledger_entries"
              " (tenant_id, ledger_entry_id, refund_id, amount_minor, currency, status, operation_id)"
              f" values ('{fixtures.tenant_id}', '{entry}', 'rf', 20000, 'USD', 'DENIED', '{recorded.operation_id}')")  # fmt: skip
    return entry


def from_before_evidence_was_kept(fixtures: Any, recorded: Any) -> Any:
    """The decision as an older program left it."""
    fixtures.sql("set session_replication_role = replica; update sentinel.operation_rows set basis = null"
              f" where operation_id = '{recorded.operation_id}'")  # fmt: skip
    return recorded


def rules(page: Any) -> dict[str, tuple[str, str]]:
    """Rule → what it says and what it finds, of the page's card."""
    assert page.status_code == 200, page.text
    card = CARD.search(page.text)
    return {rule: (said, finds) for rule, said, finds in RULE.findall(card[0] if card else "")}


def test_the_card_tells_every_rule_of_the_policy_that_decided_also_when_its_file_was_changed_or_is_gone(
    fixtures: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_book, "MOST_KEPT", 1)
    declare_policies(fixtures.authority)
    recorded = fixtures.guard("200.00")
    own = fixtures.guard("201.00", escalation="blacklisted")
    entry, own_entry = put_row(fixtures, recorded), put_row(fixtures, own)
    older = put_row(fixtures, from_before_evidence_was_kept(fixtures, fixtures.guard("202.00")))
    uncovered = fixtures.guard("20.00")
    decided_by(fixtures, "sha256:" + "0" * 64, uncovered.operation_id)
    folder = tmp_path / "policies"
    shutil.copytree(policies_dir(), folder)
    app = fixtures.app(policies_dir=folder)
    ann = fixtures.browser("ann", "approver", app)
    before = rules(ann.get(f"/ops/ledger/{entry}"))
    assert before["duplicate"][0] == "does not hold"
    assert before["amount_needs_approval"][0] == "holds"
    assert "APPROVAL_REQUIRED" in before["amount_needs_approval"][1]
    assert before["escalated"][0] == before["system_not_ready"][0] == "does not hold", (
        "the evidence is kept and is silent"
    )
    unknown = rules(ann.get(f"/ops/ledger/{older}"))
    assert unknown["escalated"] == unknown["system_not_ready"] == (NOT_KEPT, "–")
    policy = folder / "retail_refund.yaml"
    policy.write_text(policy.read_text().replace("customer_attempts_24h >= 3", "customer_attempts_24h >= 4"))
    assert rules(ann.get(f"/ops/ledger/{entry}")) == before
    policy.unlink()
    fresh = fixtures.at_page(ann.email, fixtures.app(policies_dir=folder))
    assert rules(fresh.get(f"/ops/ledger/{entry}")) == before
    assert rules(fresh.get(f"/ops/approvals/{recorded.approval_id}")) == before
    told = rules(fresh.get(f"/ops/ledger/{own_entry}"))["escalated"]
    assert told[0] == "holds", "the operation itself says it"
    assert CARD.search(fresh.get(f"/ops/ledger/{put_row(fixtures, uncovered)}").text) is None
    fixtures.sql("set session_replication_role = replica; delete from sentinel.policies")
    gone = CARD.search(fixtures.at_page(ann.email, fixtures.app(policies_dir=folder)).get(f"/ops/ledger/{entry}").text)
    assert gone is not None
    assert "is not stored here" in gone[0]


def test_a_rule_that_rests_on_an_agents_word_is_no_rule_that_holds(fixtures: Any) -> None:
    declare_policies(fixtures.authority)
    worker = fixtures.caller()
    agent = msgspec.structs.replace(worker, scopes=worker.scopes - {WORKER_SCOPE})
    recorded = fixtures.guard("126.50", caller=agent)
    assert (recorded.decision, recorded.reason_code) == ("APPROVAL_REQUIRED", "fact_not_vouched")
    told = rules(fixtures.browser("ann", "approver").get(f"/ops/approvals/{recorded.approval_id}"))
    assert told["low_amount"][0] == "holds"
    unsure = {rule for rule, (said, _) in told.items() if said == "not vouched for"}
    assert {"duplicate", "stale_window"} <= unsure
    assert all("APPROVAL_REQUIRED" in told[rule][1] for rule in unsure)


def test_what_is_compiled_of_kept_texts_is_bounded(fixtures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_book, "MOST_KEPT", 2)
    declare_policies(fixtures.authority)
    inspector, decided = (
        policy_book.PolicyInspector(policies_dir()),
        find_decided(fixtures.pool, fixtures.tenant_id, fixtures.guard("20.00").operation_id),
    )
    assert decided is not None
    digests = [one.digest for one in fixtures.authority.policies.library.policies]
    assert len(digests) > 2
    for digest in (*digests, digests[0]):
        assert inspector.rules_of(fixtures.pool, replace(decided, policy_digest=digest)).rules
        assert len(inspector._kept) <= 2
    assert list(inspector._kept) == [digests[-1], digests[0]]
