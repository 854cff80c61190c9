"""Every policy that ever decided, by digest, so that a proof pack's `policy_digest` can be opened later."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sentinel.store.database import Pool
from sentinel.store.failures import in_one_call

REMEMBER_POLICY = """
insert into sentinel.policies (policy_digest, policy_id, policy_version, canonical)
values (%s, %s, %s, %s) on conflict (policy_digest) do nothing
"""


def remember_policies(pool: Pool, policies: Iterable[tuple[str, str, str, str]]) -> None:
    """Keep (digest, id, version, canonical text) of each policy in force. Raises `EngineUnavailable`."""

    def call(connection: Any) -> None:
        for policy in policies:
            connection.execute(REMEMBER_POLICY, policy)

    in_one_call(pool, call)
