"""A recorded decision explained: decided again from what is kept of it, and held against what was recorded and committed to."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sentinel.authority.operations import Decided, find_decided
from sentinel.authority.policy_inspector import PolicyBook, facts_of
from sentinel.core.decision import NO_POLICY_DIGEST
from sentinel.core.errors import NotFound
from sentinel.core.proof import opens, opens_facts
from sentinel.policy.again import DecidedAgain, decide_again
from sentinel.policy.explain import RuleSaid, explain
from sentinel.policy.model import EVIDENCE
from sentinel.store.database import Pool


@dataclass(frozen=True, slots=True)
class Explained:
    """`again` and `rules` are None where they cannot be told: `hindrance` then says why.

    `committed` is whether what is kept is what the decision's event commits to. Where it is not, somebody changed it, and
    nothing here explains what was decided.
    """

    verdict: str
    reason_code: str
    policy_digest: str
    evidence: Mapping[str, Any] | None
    tightened: Sequence[str]
    committed: bool
    again: DecidedAgain | None
    rules: Sequence[RuleSaid] | None
    hindrance: str

    @property
    def agrees(self) -> bool:
        """Whether deciding again gave what was recorded, on what the event commits to."""
        told = self.again
        return (
            self.committed and told is not None and (told.verdict, told.reason_code) == (self.verdict, self.reason_code)
        )


def explain_decision(pool: Pool, book: PolicyBook, tenant_id: uuid.UUID, operation_id: uuid.UUID) -> Explained:
    """The first decision on an operation. Raises `NotFound`."""
    found = find_decided(pool, tenant_id, operation_id)
    if found is None:
        raise NotFound("there is no operation of that id")
    return explained(pool, book, found)


def explained(pool: Pool, book: PolicyBook, decided: Decided) -> Explained:
    """The same for one that was read already."""
    pack = json.loads(decided.pack)
    facts, moment, asker = facts_of(decided)
    evidence = facts.get(EVIDENCE)
    policy = None if pack["policy_digest"] == NO_POLICY_DIGEST else book.policy_of(pool, pack["policy_digest"])
    again, rules, hindrance = None, None, ""
    if policy is None:
        hindrance = (
            "no policy covered the action"
            if pack["policy_digest"] == NO_POLICY_DIGEST
            else "the policy's text is not kept"
        )
    else:
        rules = explain(policy, facts, moment)
        if evidence is None:
            hindrance = "decided before evidence was kept"
        else:
            again = decide_again(policy, facts, evidence, decided.tightened, moment, asker)
    return Explained(
        pack["decision"], pack["reason_code"], pack["policy_digest"], evidence, decided.tightened,
        _committed(decided, pack), again, rules, hindrance,
    )  # fmt: skip


def _committed(decided: Decided, pack: Mapping[str, Any]) -> bool:
    kept = opens_facts(
        pack, salt=decided.salt, operation_canonical=decided.request, basis=decided.basis, tightened=decided.tightened
    )
    return kept and opens(pack, salt=decided.salt, operation_canonical=decided.request)
