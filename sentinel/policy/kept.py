"""A policy's kept text, the canonical document that its digest stands for, as something that can be asked again.

For showing what the rules of a policy said whose file was changed or is gone. Nothing decides with it.
"""

from __future__ import annotations

import orjson

from sentinel.policy.compile import CompiledPolicy, assemble, variables
from sentinel.policy.conditions import ConditionError, Conditions
from sentinel.policy.document import policy_of


def compile_kept(canonical: str, policy_digest: str) -> CompiledPolicy | None:
    """The policy of that text; None where it is not the text of that digest, or this version cannot ask it any more."""
    try:
        policy = policy_of(orjson.loads(canonical))
        conditions = Conditions(variables(policy))
        texts = {rule.rule_id: rule.when for rule in policy.rules}
        texts |= {limit.limit_id: limit.when for limit in policy.limits if limit.when is not None}
        compiled = {name: conditions.compile(text) for name, text in texts.items()}
    except (KeyError, ValueError, TypeError, AttributeError, ConditionError):
        return None
    return assemble(policy, conditions, compiled) if policy.digest() == policy_digest else None
