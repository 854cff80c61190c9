"""An authority's policies in the database: declared after each load, and checked periodically while it serves."""

from __future__ import annotations

import contextlib
import mmap
import time
from hashlib import sha256

import structlog

from sentinel.authority.engine import Authority
from sentinel.authority.policies import are_policies_declared, declare_policies, policies_not_in_force
from sentinel.core.errors import SentinelError
from sentinel.policy.errors import PolicyError
from sentinel.policy.library import PolicyLibrary

log = structlog.get_logger("sentinel")

DECLARED_SECONDS = 5.0
"""How often to check whether the database still has the policies and has them in force."""


class LastDeclared:
    """The policies that any process of this authority declared last, in shared memory. Make it before forking."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, sha256().digest_size)

    def set(self, library: PolicyLibrary) -> None:
        """Record that these policies were declared."""
        self._map[:] = self._mark(library)

    def forget(self) -> None:
        """Record that the master has read policies that no process has declared yet."""
        self._map[:] = bytes(len(self._map))

    def is_none(self) -> bool:
        """Return whether nothing was declared since the master read its policies.

        While another process is still declaring them the answer is yes, and they are declared twice, which is harmless.
        """
        return not any(self._map[:])

    def is_of(self, library: PolicyLibrary) -> bool:
        """Return whether these policies were declared last."""
        return self._map[:] == self._mark(library)

    @staticmethod
    def _mark(library: PolicyLibrary) -> bytes:
        return sha256("\n".join(sorted(one.digest for one in library.policies)).encode()).digest()


class PolicyDeclarations:
    """Declares the loaded policies in the database: after each load, and again if the database no longer has them.

    For example, a replica lacks them if it took over before it had received them. A process that replaces another one
    after the fork does not declare: it would put its texts in force over those that another authority has declared
    since.
    """

    def __init__(self, authority: Authority, last_declared: LastDeclared) -> None:
        self._authority, self._last_declared = authority, last_declared
        self._is_wanted = last_declared.is_none()
        self._look_at = 0.0
        self._behind_since: float | None = None
        self._catch_up_after = 0.0
        self._not_in_force: tuple[str, ...] = ()

    def is_behind(self) -> bool:
        """Return whether another process has declared other policies than are loaded here.

        A process that is started later has the master's policies, and at a reload the master may read the folder before
        a file of it is written, and the others after.
        """
        return not self._last_declared.is_none() and not self._last_declared.is_of(self._authority.policies.library)

    def want(self) -> None:
        """Declare the loaded policies in the next round."""
        self._is_wanted = True

    def round(self) -> None:
        """Declare the policies if that is wanted, or if the database no longer has them. Raises `EngineUnavailable`."""
        if not self._is_wanted and not self._are_lost():
            return
        self._is_wanted = False
        try:
            self._last_declared.set(declare_policies(self._authority))
        except SentinelError:
            self._is_wanted = True
            raise

    def catch_up(self) -> None:
        """Load the policies that another process declared, if this one has been behind for `DECLARED_SECONDS`.

        A process that reads the folder while a file of it is written keeps the last good policies at a reload, and the
        others load the new ones. Only a folder that holds what was declared is taken: nobody asked for anything newer.
        Each further try comes after twice the time, because reading the folder delays the other steps of housekeeping.
        """
        now = time.monotonic()
        if not self.is_behind():
            self._behind_since = None
            return
        if self._behind_since is None:
            self._behind_since, self._catch_up_after = now, DECLARED_SECONDS
        if now - self._behind_since < self._catch_up_after:
            return
        self._catch_up_after *= 2
        with contextlib.suppress(PolicyError):
            library = self._authority.policies.reload(self._refuse_undeclared)
            log.info("policies_loaded", versions=[one.policy.version for one in library.policies])

    def _refuse_undeclared(self, library: PolicyLibrary) -> None:
        if not self._last_declared.is_of(library):
            raise PolicyError("is not what was declared", file=str(self._authority.policies.directory))

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
        """Set the gauge, and log a warning if the ids have changed.

        The authority stays in service, because only a person can know which of the texts is the intended one.
        """
        # Imported only here: `metrics` must not be imported before its multiprocess folder exists.
        from sentinel.authority import metrics

        metrics.POLICIES_NOT_IN_FORCE.set(len(policy_ids))
        if policy_ids and policy_ids != self._not_in_force:
            log.warning("policies_not_in_force", policies=list(policy_ids))
        self._not_in_force = policy_ids
