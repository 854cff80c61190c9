"""Evidence that no rule can read is a failed finding of its own request, and refuses nothing else."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from sentinel.authority.explain import explain_decision
from sentinel.authority.policy_inspector import PolicyInspector
from sentinel.platform.resources import policies_dir
from tests.support.fixtures import Fixtures, guard_body, make_fixtures

FACT = "facts:\n  note: {type: string, from: evidence_context.note}\n"
RULE = """\
rules:
  - id: evil
    says: The note says that it is evil.
    when: present.note && note.matches("evil")
    then: DENY
    reason: evil_note
"""
UNREADABLE = ("evil\0x", "x\0evil", "\0", "good\0")


@pytest.fixture
def noted(database_url: str, tmp_path: Path) -> Iterator[Fixtures]:
    """The retail policy with a rule that the engine answers, on a text from the evidence."""
    folder = tmp_path / "policies"
    shutil.copytree(policies_dir(), folder, ignore=shutil.ignore_patterns("cases", "*.py", "*.md"))
    file = folder / "retail_refund.yaml"
    file.write_text(file.read_text().replace("facts:\n", FACT, 1).replace("rules:\n", RULE, 1))
    with closing(make_fixtures(database_url, policies=folder)) as fixtures:
        yield fixtures


@pytest.mark.parametrize("note", UNREADABLE)
def test_a_text_with_a_zero_character_is_a_failed_finding_and_comes_out_again(noted: Fixtures, note: str) -> None:
    answer = noted.guard(guard_body(evidence_context={"note": note}))
    assert (answer["decision"], answer["reason_code"]) == ("DENY", "fact_missing")
    policies = PolicyInspector(noted.authority.policies.directory)
    told = explain_decision(noted.console_pool, policies, noted.tenant_id, uuid.UUID(answer["operation_id"]))
    assert told.agrees and told.evidence == {"note": {}}
    assert noted.broken_invariants() == []


def test_the_others_of_its_batch_are_decided_as_alone(noted: Fixtures) -> None:
    notes = ["good", "evil\0x", "evil", "good"]
    bodies = [guard_body(evidence_context={"note": note}) for note in notes]
    answer = noted.post("action/guard/batch", {"requests": bodies})
    assert answer.status_code == 200, answer.text
    said = [
        (one["status"], one["body"]["decision"], one["body"].get("reason_code")) for one in answer.get_json()["answers"]
    ]
    allowed = noted.guard(guard_body(evidence_context={"note": "good"}))
    good = (200, "ALLOW", allowed["reason_code"])
    assert said == [good, (200, "DENY", "fact_missing"), (200, "DENY", "evil_note"), good]
