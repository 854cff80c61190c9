"""Inspects policies for operators: limit usage for an operation, and each rule's answer. Never decides.

Limits are those of the policies in force, rules those of the policy that decided; both are read from the texts in the
database. The files on disk are used only until an authority has declared policies. The decision's own transaction
evaluates everything again.
"""

from __future__ import annotations

import contextlib
import json
import threading
import uuid
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from sentinel.authority.approval_details import LimitUsage, limit_usage
from sentinel.authority.keys import is_workers
from sentinel.authority.operations import DecidedOperation, find_decided
from sentinel.authority.policies import digests_in_force, policy_text
from sentinel.core.canonical import sha256_hex
from sentinel.core.decision import NO_POLICY_DIGEST, ReservationRequest
from sentinel.core.errors import EngineUnavailable
from sentinel.core.operation import Operation
from sentinel.policy.compile import CompiledPolicy
from sentinel.policy.describe import describe
from sentinel.policy.errors import PolicyError
from sentinel.policy.evaluate import certain_denial, evaluate
from sentinel.policy.explain import RuleExplanation, compile_stored_policy, explain
from sentinel.policy.facts import Requester
from sentinel.policy.library import PolicyLibrary
from sentinel.policy.model import EVIDENCE
from sentinel.store.database import Pool

Amounts = Mapping[str, Mapping[str, str]]
"""Amounts in major units by currency, by the name of the policy's number."""
NO_MATCHING_POLICY = "no_matching_policy"
MOST_KEPT = 32
"""How many compiled policies are cached."""


@dataclass(frozen=True, slots=True)
class ApplicableLimit:
    """A limit that applies to an operation, in minor units of its currency; `window_seconds` is 0 for calendar windows.

    `description` is the limit in the output of `describe`, with `when` it counts (CEL; None for always). `numbers` are
    the policy's named numbers.
    """

    limit_id: str
    window: str
    window_seconds: int
    subject: str
    cap_minor: int
    used_minor: int
    fits: bool
    description: Mapping[str, Any]
    numbers: Amounts


@dataclass(frozen=True, slots=True)
class PolicyExplanation:
    """The answer of every rule of the policy that decided, in its order.

    `rules` is None if the policy's text is not available, or this version cannot compile it. `numbers` are the policy's
    named numbers, which its conditions use.
    """

    policy_digest: str
    policy_label: str
    rules: Sequence[RuleExplanation] | None
    numbers: Amounts = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PoliciesInForce:
    """The policies in force, as one request sees them; `library` is None if they cannot be determined."""

    library: PolicyLibrary | None

    def refusal(self, action: str, params: Mapping[str, Any]) -> str | None:
        """Return the reason code with which an action is certainly denied (`certain_denial`), given the known params.

        Returns None if the decision depends on other params or on the requester, or the policies cannot be determined.
        """
        if self.library is None:
            return None
        policy = self.library.find(action)
        if policy is None:
            return NO_MATCHING_POLICY
        return certain_denial(policy, {"action": action, "params": params}, datetime.now(UTC))


class PolicyInspector:
    """The policies in force, earlier ones by digest, and those of a folder, which is reloaded on changes. Thread-safe."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._kept: OrderedDict[str, CompiledPolicy | None] = OrderedDict()
        self._lock = threading.Lock()
        self._read: tuple[object, PolicyLibrary | None] = (None, None)
        self._in_force: tuple[tuple[str, ...], PoliciesInForce] | None = None

    def in_force(self, pool: Pool) -> PoliciesInForce:
        """Return the policies in force as declared in the database, or those of the folder while none are declared.

        They cannot be determined if this version cannot compile one of the texts, or if none are declared and the
        folder has a fault. Call this once per request. Raises `EngineUnavailable`.
        """
        digests = digests_in_force(pool)
        if not digests:
            return PoliciesInForce(self._library())
        kept = self._in_force
        if kept is not None and kept[0] == digests:
            return kept[1]
        policies = tuple(policy for policy in (self.policy_of(pool, one) for one in digests) if policy is not None)
        if len(policies) < len(digests):
            return PoliciesInForce(None)
        found = PoliciesInForce(PolicyLibrary(policies))
        self._in_force = (digests, found)
        return found

    def limits_of(
        self, pool: Pool, tenant_id: uuid.UUID, operation_id: uuid.UUID, principal_id: uuid.UUID, moment: datetime
    ) -> list[ApplicableLimit] | None:
        """Return the limits in which the operation counts if this principal requests it at `moment`.

        `moment` is the database's time. Empty before a decision, and if no policy in force covers the operation; None
        if the policies in force cannot be determined (`in_force`).
        """
        decided = find_decided(pool, tenant_id, operation_id)
        if decided is None:
            return []
        library, operation = self.in_force(pool).library, operation_of(decided.request)
        if library is None:
            return None
        policy = library.find(operation.action)
        if policy is None or operation.amount is None:
            return []
        facts, _, _ = facts_of(decided)  # not its requester: the operation may first have been requested by another
        requester = Requester(str(principal_id), is_worker=is_workers(pool, tenant_id, principal_id))
        asks = {ask.limit_key: ask for ask in evaluate(policy, facts, moment, requester=requester).limits}
        if not asks:
            return []
        sent = orjson.dumps([ask._asdict() for ask in asks.values()]).decode()
        fills = limit_usage(pool, tenant_id, sent, operation.amount.amount_minor)
        description = describe(policy)
        return [_view(asks[fill.limit_key], fill, description) for fill in fills]

    def rules_of_operation(
        self, pool: Pool, tenant_id: uuid.UUID, operation_id: uuid.UUID | None
    ) -> PolicyExplanation | None:
        """Return `rules_of` an operation by its id; None before a decision, and if no policy covered the action."""
        found = find_decided(pool, tenant_id, operation_id) if operation_id is not None else None
        if found is None or found.policy_digest == NO_POLICY_DIGEST:
            return None
        return self.rules_of(pool, found)

    def rules_of(self, pool: Pool, decided: DecidedOperation) -> PolicyExplanation:
        """Return each rule's answer to the stored operation under the policy that decided it, whatever the files say now."""
        policy = self.policy_of(pool, decided.policy_digest)
        if policy is None:
            return PolicyExplanation(decided.policy_digest, "", None)
        facts, moment, requester = facts_of(decided)
        label = f"{policy.policy.label}, {policy.policy.version}"
        return PolicyExplanation(
            decided.policy_digest, label, explain(policy, facts, moment, requester), describe(policy)["numbers"]
        )

    def read(self, pool: Pool) -> None:
        """Compile the policies in force, so that no request waits for it; without a database the first request does."""
        with contextlib.suppress(EngineUnavailable):
            self.in_force(pool)

    def policy_of(self, pool: Pool, policy_digest: str) -> CompiledPolicy | None:
        """Return the policy with that digest, or None if it is unknown or this version cannot compile it.

        The cache needs no invalidation, because a digest identifies one text for good. Raises `EngineUnavailable`.
        """
        with self._lock:
            if policy_digest in self._kept:
                self._kept.move_to_end(policy_digest)
                return self._kept[policy_digest]
        text = policy_text(pool, policy_digest)
        if text is None:
            return self._on_disk(policy_digest)
        policy = compile_stored_policy(text, policy_digest)
        with self._lock:
            self._kept[policy_digest] = policy
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return policy

    def actions_of(self, pool: Pool, policy_digest: str) -> frozenset[str]:
        """Return the actions (names or patterns) of the policy with that digest; empty if there is no such policy.

        Read from the stored text, also where this version cannot compile it: a proof is published under the same name
        of its action for good.
        """
        if policy_digest == NO_POLICY_DIGEST:
            return frozenset()
        text = policy_text(pool, policy_digest)
        if text is not None:
            return frozenset(json.loads(text)["actions"]) if sha256_hex(text) == policy_digest else frozenset()
        policy = self._on_disk(policy_digest)
        return frozenset(policy.policy.actions) if policy is not None else frozenset()

    def _on_disk(self, policy_digest: str) -> CompiledPolicy | None:
        """Return the folder's policy with that digest: until an authority declares the texts, only the files have it."""
        library = self._library()
        return next((one for one in library.policies if one.digest == policy_digest), None) if library else None

    def _library(self) -> PolicyLibrary | None:
        stamp = self._stamp()
        known, library = self._read
        if known != stamp:
            try:
                library = PolicyLibrary.load(self._directory)
            except PolicyError:
                library = None
            self._read = (stamp, library)
        return library

    def _stamp(self) -> object:
        try:
            return tuple(sorted((path.name, path.stat().st_mtime_ns) for path in self._directory.glob("*.yaml")))
        except OSError as error:
            return (error.errno,)


def operation_of(canonical: str) -> Operation:
    """Return the operation of a stored canonical form, without digest and idempotency key, which that does not contain."""
    found = json.loads(canonical)
    return Operation(
        "", found["agent_id"], found["action"], found["params"], found["resource"], found["risk_class"], canonical, ""
    )


SOME_KEY = "key"
"""A placeholder for the requesting principal, which only determines whose budget a limit counts; that is not used here."""


def facts_of(decided: DecidedOperation) -> tuple[dict[str, Any], datetime, Requester]:
    """Return the facts, the time and the requester of a decision; the facts include the evidence if it was stored."""
    basis = json.loads(decided.basis) if decided.basis is not None else {}
    kept = {EVIDENCE: basis["evidence"]} if "evidence" in basis else {}
    moment = datetime.fromisoformat(basis["now"]) if "now" in basis else decided.decided_at
    requester = Requester(SOME_KEY, is_worker=basis.get("asked_by") == "worker")
    return {**operation_of(decided.request).facts(), **kept}, moment, requester


def _view(ask: ReservationRequest, fill: LimitUsage, policy: Mapping[str, Any]) -> ApplicableLimit:
    """Return a limit with its usage; `policy` is the output of `describe` for the limit's policy."""
    name = ask.limit_id
    (description,) = [one for one in policy["limits"] if one["id"] == name]
    return ApplicableLimit(
        name, str(ask.window), ask.window_seconds, ask.subject, fill.cap_minor, fill.used_minor, fill.fits, description, policy["numbers"],
    )  # fmt: skip
