"""A policy read back from its normalised document is the policy: the digest agrees, and so do the words."""

from __future__ import annotations

import orjson
import pytest

from sentinel.core.canonical import canonical_json
from sentinel.platform.resources import policies_dir
from sentinel.policy.compile import CompiledPolicy
from sentinel.policy.describe import describe, describe_policy
from sentinel.policy.document import covered_currencies, policy_from_document
from sentinel.policy.library import PolicyLibrary

SHIPPED = PolicyLibrary.load(policies_dir()).policies


@pytest.mark.parametrize("compiled", SHIPPED, ids=lambda one: one.policy.policy_id)
def test_what_is_kept_of_a_policy_tells_it_whole(compiled: CompiledPolicy) -> None:
    read = policy_from_document(orjson.loads(canonical_json(compiled.policy.document())))
    assert read.digest() == compiled.digest
    assert (read.rules, read.limits, read.approval) == (
        compiled.policy.rules, compiled.policy.limits, compiled.policy.approval,
    )  # fmt: skip
    told, wanted = describe_policy(read, digest=compiled.digest, covered=covered_currencies(read)), describe(compiled)
    for part in ("rules", "currencies", "once_per", "numbers"):
        assert told[part] == wanted[part], part
    # Amounts of several currencies come in another order: their sentences are the same but for that.
    for one, other in zip((*told["limits"], told["approval"]), (*wanted["limits"], wanted["approval"]), strict=True):
        assert {**one, "words": sorted(one["words"])} == {**other, "words": sorted(other["words"])}


def test_a_document_that_none_of_ours_wrote_is_refused() -> None:
    with pytest.raises(KeyError):
        policy_from_document({"policy": "x"})
