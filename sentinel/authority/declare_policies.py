"""Tell the database which policy texts decide from now on: proof packs are opened by it, launch gates compared with it."""

from __future__ import annotations

from sentinel.authority.engine import Authority
from sentinel.authority.policies import are_known, remember_policies
from sentinel.core.canonical import canonical_json


def declare_policies(authority: Authority) -> None:
    """Keep every loaded policy and put it in force. Raises `EngineUnavailable`."""
    remember_policies(authority.pool, [
        (one.digest, one.policy.policy_id, one.policy.version, canonical_json(one.policy.document()))
        for one in authority.policies.library.policies
    ])  # fmt: skip


def are_declared(authority: Authority) -> bool:
    """Whether the database knows every loaded policy: before that, launch gates and proof packs miss it. Raises `EngineUnavailable`."""
    return are_known(authority.pool, [one.digest for one in authority.policies.library.policies])
