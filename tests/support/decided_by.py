"""An operation that another policy text decided than the one that did."""

from __future__ import annotations

import uuid
from typing import Any

_TERMS = """
with put as (
  insert into sentinel.decision_terms (hash, policy_id, policy_version, policy_label, policy_digest)
  select sha256(convert_to(%s::text || s.operation_id, 'UTF8')), t.policy_id, t.policy_version, t.policy_label, %s
  from sentinel.operation_states s join sentinel.decision_terms t using (terms_id) where s.operation_id = %s returning terms_id)
update sentinel.operation_states s set terms_id = put.terms_id from put where s.operation_id = %s
"""


def decided_by(fixtures: Any, policy_digest: str, operation_id: uuid.UUID) -> None:
    """Let the operation's state name this text as the one that decided."""
    fixtures.sql(_TERMS, policy_digest, policy_digest, operation_id, operation_id)
