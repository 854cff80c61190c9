"""Inspects policies for operators: limit usage for an operation, and each rule's answer. Never decides.

Limits are those of the policies in force, rules those of the policy that decided, both by the texts that the database keeps. The files
on disk are asked only before an authority declared any policy. This informs and decides nothing. The decision's transaction asks again.
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
"""By a number's name: its amount in major units by currency."""
NO_MATCHING_POLICY = "no_matching_policy"
MOST_KEPT = 32
"""How many policies that decided stay compiled."""


@dataclass(frozen=True, slots=True)
class ApplicableLimit:
    """A limit as it holds for an operation, in minor units of its currency; `window_seconds` is 0 for a calendar window.

    `description` is `describe`'s of it: for each what it is, and `when` it counts (CEL; None for always).
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
    """The answer of every rule of the policy that decided, in its order; `rules` is None where its text cannot be asked here.

    `numbers` are the policy's, that its conditions name.
    """

    policy_digest: str
    policy_label: str
    rules: Sequence[RuleExplanation] | None
    numbers: Amounts = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PoliciesInForce:
    """The policies that decide now, as one request sees them; `library` is None where they cannot be told."""

    library: PolicyLibrary | None

    def refusal(self, action: str, params: Mapping[str, Any]) -> str | None:
        """The reason code with which this is denied, whatever else is known of it and whoever asks (`certain_denial`); None where
        that depends, or cannot be told. `params` are those that are known."""
        if self.library is None:
            return None
        policy = self.library.find(action)
        if policy is None:
            return NO_MATCHING_POLICY
        return certain_denial(policy, {"action": action, "params": params}, datetime.now(UTC))


class PolicyInspector:
    """The policies in force, earlier ones by digest, and those of a folder, reloaded when a file changes. Thread-safe."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._kept: OrderedDict[str, CompiledPolicy | None] = OrderedDict()
        self._lock = threading.Lock()
        self._read: tuple[object, PolicyLibrary | None] = (None, None)
        self._in_force: tuple[tuple[str, ...], PoliciesInForce] | None = None

    def in_force(self, pool: Pool) -> PoliciesInForce:
        """The policies that decide now, as an authority declared them; those of the folder before one did.

        They cannot be told where this version cannot compile one of the texts, or nothing is declared and the folder has a fault.
        Take them once per request. Raises `EngineUnavailable`.
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
        """The limits in which an operation is counted that this principal asks for, at a moment of the database's clock.

        Empty before a decision, and where no policy in force covers it; None where it cannot be told which policies are (`in_force`).
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
        facts, _, _ = facts_of(decided)  # who asked first may have been another
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
        """`rules_of` an operation by its id; None before a decision, and where no policy covered the action."""
        found = find_decided(pool, tenant_id, operation_id) if operation_id is not None else None
        if found is None or found.policy_digest == NO_POLICY_DIGEST:
            return None
        return self.rules_of(pool, found)

    def rules_of(self, pool: Pool, decided: DecidedOperation) -> PolicyExplanation:
        """Each rule's answer under the policy that decided, on the stored operation, whatever the files say now."""
        policy = self.policy_of(pool, decided.policy_digest)
        if policy is None:
            return PolicyExplanation(decided.policy_digest, "", None)
        facts, moment, requester = facts_of(decided)
        label = f"{policy.policy.label}, {policy.policy.version}"
        return PolicyExplanation(
            decided.policy_digest, label, explain(policy, facts, moment, requester), describe(policy)["numbers"]
        )

    def read(self, pool: Pool) -> None:
        """Compile the policies in force now, so that no request waits for it; without a database the first that asks waits."""
        with contextlib.suppress(EngineUnavailable):
            self.in_force(pool)

    def policy_of(self, pool: Pool, policy_digest: str) -> CompiledPolicy | None:
        """The policy of that digest. A digest never stands for another text: what is compiled once holds."""
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
        """The actions that the policy of that digest names, as it names them; none where there is no such policy."""
        policy = None if policy_digest == NO_POLICY_DIGEST else self.policy_of(pool, policy_digest)
        return frozenset(policy.policy.actions) if policy is not None else frozenset()

    def _on_disk(self, policy_digest: str) -> CompiledPolicy | None:
        """The policy among the files: before an authority declared its texts, nothing else has it."""
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
    """The operation whose canonical form is stored; its digest and key are not part of that and stay empty."""
    found = json.loads(canonical)
    return Operation(
        "", found["agent_id"], found["action"], found["params"], found["resource"], found["risk_class"], canonical, ""
    )


SOME_KEY = "key"
"""In place of the key that asked: it owns a budget, whose is all the same here."""


def facts_of(decided: DecidedOperation) -> tuple[dict[str, Any], datetime, Requester]:
    """The facts, the time and the requester of a decision; the evidence only where it was stored."""
    basis = json.loads(decided.basis) if decided.basis is not None else {}
    kept = {EVIDENCE: basis["evidence"]} if "evidence" in basis else {}
    moment = datetime.fromisoformat(basis["now"]) if "now" in basis else decided.decided_at
    requester = Requester(SOME_KEY, is_worker=basis.get("asked_by") == "worker")
    return {**operation_of(decided.request).facts(), **kept}, moment, requester


def _view(ask: ReservationRequest, fill: LimitUsage, policy: Mapping[str, Any]) -> ApplicableLimit:
    """`policy` is `describe`'s output for the limit's policy."""
    name = ask.limit_id
    (description,) = [one for one in policy["limits"] if one["id"] == name]
    return ApplicableLimit(
        name, str(ask.window), ask.window_seconds, ask.subject, fill.cap_minor, fill.used_minor, fill.fits, description, policy["numbers"],
    )  # fmt: skip
