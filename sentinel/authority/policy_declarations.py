"""An authority's policies in the database: declared as they are loaded, and looked after while it serves."""

from __future__ import annotations

import mmap
import time
from hashlib import sha256

import structlog

from sentinel.authority.engine import Authority
from sentinel.authority.policies import are_policies_declared, declare_policies, policies_not_in_force
from sentinel.core.errors import SentinelError
from sentinel.policy.library import PolicyLibrary

log = structlog.get_logger("sentinel")

DECLARED_SECONDS = 5.0
"""How often it is looked whether the database has the policies still, and whether it says that they are in force."""


class LastDeclared:
    """Which policies a process of this authority declared last. Make it before forking."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, sha256().digest_size)

    def set(self, library: PolicyLibrary) -> None:
        """These were declared."""
        self._map[:] = self._mark(library)

    def is_of(self, library: PolicyLibrary) -> bool:
        """Whether it was these. No while another process is about to say so: then they are declared once more."""
        return self._map[:] == self._mark(library)

    @staticmethod
    def _mark(library: PolicyLibrary) -> bytes:
        return sha256("\n".join(sorted(one.digest for one in library.policies)).encode()).digest()


class PolicyDeclarations:
    """Declares the policies in force in the database: after each load, and again until it is there.

    So it is with a replica that took over from a primary before it had got them. A process that only takes the place of another one
    loads nothing: by declaring again it would put its text in force over one that another authority has declared since.
    """

    def __init__(self, authority: Authority, last_declared: LastDeclared) -> None:
        self._authority, self._last_declared = authority, last_declared
        self._is_wanted = not last_declared.is_of(authority.policies.library)
        self._look_at = 0.0
        self._not_in_force: tuple[str, ...] = ()

    def want(self) -> None:
        """Have the policies that were loaded declared in the next round."""
        self._is_wanted = True

    def round(self) -> None:
        """Declare them where that is wanted, or they are not there any more. Raises `EngineUnavailable` without a database."""
        if not self._is_wanted and not self._are_lost():
            return
        self._is_wanted = False
        try:
            self._last_declared.set(declare_policies(self._authority))
        except SentinelError:
            self._is_wanted = True
            raise

    def _are_lost(self) -> bool:
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + DECLARED_SECONDS
        if not are_policies_declared(self._authority):
            return True
        self._tell_not_in_force(policies_not_in_force(self._authority))
        return False

    def _tell_not_in_force(self, policy_ids: tuple[str, ...]) -> None:
        """In a gauge, and in the log where it has changed. It stays in service: which of the texts is meant a person knows."""
        # What counts is imported only once the folder of the shared counters is there.
        from sentinel.authority import metrics

        metrics.POLICIES_NOT_IN_FORCE.set(len(policy_ids))
        if policy_ids and policy_ids != self._not_in_force:
            log.warning("policies_not_in_force", policies=list(policy_ids))
        self._not_in_force = policy_ids
