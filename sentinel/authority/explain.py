"""Explains a recorded decision: re-evaluates it from its stored facts, and compares the result with record and commitment."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sentinel.authority.operations import DecidedOperation, find_decided
from sentinel.authority.policy_inspector import PolicyInspector, facts_of
from sentinel.core.decision import NO_POLICY_DIGEST
from sentinel.core.errors import NotFound
from sentinel.core.proof import opens, opens_facts
from sentinel.policy.explain import ReevaluatedDecision, RuleExplanation, explain, reevaluate
from sentinel.policy.model import EVIDENCE
from sentinel.store.database import Pool


@dataclass(frozen=True, slots=True)
class DecisionExplanation:
    """A recorded decision with its re-evaluation.

    `again` and `rules` are None if they are not available; `hindrance` then says why. `committed` says whether the
    stored facts are those that the decision's event commits to; if not, somebody changed them, and the explanation is
    worthless.
    """

    verdict: str
    reason_code: str
    policy_digest: str
    evidence: Mapping[str, Any] | None
    tightened: Sequence[str]
    committed: bool
    again: ReevaluatedDecision | None
    rules: Sequence[RuleExplanation] | None
    hindrance: str

    @property
    def agrees(self) -> bool:
        """Whether the re-evaluation gave the recorded decision, on the facts that the event commits to."""
        told = self.again
        return (
            self.committed and told is not None and (told.verdict, told.reason_code) == (self.verdict, self.reason_code)
        )


def explain_decision(
    pool: Pool, inspector: PolicyInspector, tenant_id: uuid.UUID, operation_id: uuid.UUID
) -> DecisionExplanation:
    """Explain the first decision on an operation. Raises `NotFound`."""
    found = find_decided(pool, tenant_id, operation_id)
    if found is None:
        raise NotFound("there is no operation with this id")
    return explain_operation(pool, inspector, found)


def explain_operation(pool: Pool, inspector: PolicyInspector, decided: DecidedOperation) -> DecisionExplanation:
    """Explain the first decision on an operation that was already read."""
    pack = json.loads(decided.pack)
    facts, moment, requester = facts_of(decided)
    evidence = facts.get(EVIDENCE)
    policy = None if pack["policy_digest"] == NO_POLICY_DIGEST else inspector.policy_of(pool, pack["policy_digest"])
    again, rules, hindrance = None, None, ""
    if policy is None:
        hindrance = (
            "no policy covered the action"
            if pack["policy_digest"] == NO_POLICY_DIGEST
            else "the policy's text is not kept, or this version cannot compile it"
        )
    else:
        rules = explain(policy, facts, moment, requester)
        if evidence is None:
            hindrance = "decided before evidence was kept"
        else:
            again = reevaluate(policy, facts, evidence, decided.tightened, moment, requester)
    return DecisionExplanation(
        pack["decision"], pack["reason_code"], pack["policy_digest"], evidence, decided.tightened,
        _committed(decided, pack), again, rules, hindrance,
    )  # fmt: skip


def _committed(decided: DecidedOperation, pack: Mapping[str, Any]) -> bool:
    kept = opens_facts(
        pack, salt=decided.salt, operation_canonical=decided.request, basis=decided.basis, tightened=decided.tightened
    )
    return kept and opens(pack, salt=decided.salt, operation_canonical=decided.request)
