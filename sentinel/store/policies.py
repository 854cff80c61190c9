"""Every policy that ever decided, by digest, so that a proof pack's `policy_digest` can be opened later; and which decide now.

With several authorities on one database the one that loaded last says what is in force.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sentinel.store.database import Pool
from sentinel.store.failures import in_one_call

REMEMBER_POLICY = """
insert into sentinel.policies (policy_digest, policy_id, policy_version, canonical)
values (%s, %s, %s, %s) on conflict (policy_digest) do nothing
"""
PUT_IN_FORCE = """
insert into sentinel.policies_in_force as p (policy_id, policy_digest) select * from unnest(%(ids)s::text[], %(digests)s::text[])
on conflict (policy_id) do update set policy_digest = excluded.policy_digest, since = clock_timestamp()
where p.policy_digest <> excluded.policy_digest
"""
TAKE_OUT_OF_FORCE = "delete from sentinel.policies_in_force where policy_id <> all (%(ids)s::text[])"


def remember_policies(pool: Pool, policies: Iterable[tuple[str, str, str, str]]) -> None:
    """Keep (digest, id, version, canonical text) of each policy, and that these decide now. Raises `EngineUnavailable`."""
    known = sorted(policies, key=lambda policy: policy[1])
    in_force = {"ids": [policy[1] for policy in known], "digests": [policy[0] for policy in known]}

    def call(connection: Any) -> None:
        for policy in known:
            connection.execute(REMEMBER_POLICY, policy)
        connection.execute(PUT_IN_FORCE, in_force)
        connection.execute(TAKE_OUT_OF_FORCE, in_force)

    in_one_call(pool, call)
