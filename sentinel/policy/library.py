"""The policies of a folder: lookup by action, and a reload that keeps the last good set when it fails."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from sentinel.core.operation import name_in_policy
from sentinel.policy.compile import CompiledPolicy, try_compile
from sentinel.policy.errors import PolicyError
from sentinel.policy.source import Listing, Scalar, read_source

NOT_POLICIES = frozenset({
    "switches.yaml", "routes.yaml", "order_sources.yaml", "order_signals.yaml", "critic.yaml", "tools.yaml", "tool_cases.yaml",
})  # fmt: skip
"""Files in the policy folder that are no policies and have loaders of their own; the same people change them together."""
SUFFIXES = (".yaml", ".yml")
"""Endings, in upper or lower case, of files that are meant as policies. Any spelling other than ".yaml" is refused."""


class PolicyLibrary:
    """Compiled policies by action. Immutable; `policies` are in the order of their file names."""

    def __init__(self, policies: tuple[CompiledPolicy, ...]) -> None:
        self.policies = policies
        self._by_action = {action: compiled for compiled in policies for action in compiled.policy.actions}

    @classmethod
    def load(cls, directory: Path) -> PolicyLibrary:
        """Load every `*.yaml` directly in the folder except `NOT_POLICIES`. Raises the first `PolicyError` of any of
        them.

        Refused too: an empty folder, a `.yml` or `.YAML` file (it would be overlooked), two policies with one id or
        claiming one action.
        """
        library, errors = cls.try_load(directory)
        if library is None:
            raise errors[0]
        return library

    @classmethod
    def try_load(cls, directory: Path) -> tuple[PolicyLibrary | None, list[PolicyError]]:
        """Return the library and no errors, or None and every error, file by file."""
        policies, errors = read_policies(directory)
        return (None, errors) if errors else (cls(tuple(compiled for _, compiled in policies)), [])

    def without_totals(self) -> PolicyLibrary:
        """Return the same policies without total limits (per agent, key or tenant) and without breakers.

        For replays, in which one agent goes through months of many customers within seconds.
        """
        return PolicyLibrary(
            tuple(
                replace(one, limits=tuple(limit for limit in one.limits if not limit.is_total), breakers=())
                for one in self.policies
            )
        )

    def reusing(self, earlier: PolicyLibrary) -> PolicyLibrary:
        """Return the same policies, each whose text has not changed as the object that it is in `earlier`.

        What is cached for a policy then stays in use, and keeps no second copy of it.
        """
        known = {one.digest: one for one in earlier.policies}
        return PolicyLibrary(tuple(known.get(one.digest, one) for one in self.policies))

    def find(self, action: str) -> CompiledPolicy | None:
        """Return the policy that names the action, else the one with the longest matching `….*` pattern, else None."""
        name = self.name_of(action)
        return None if name is None else self._by_action[name]

    def name_of(self, action: str) -> str | None:
        """Return the action's name in the policy that covers it (its own, or the pattern); None where no policy does."""
        return name_in_policy(action, self._by_action)


class ReloadablePolicies:
    """The library in use. `reload` swaps it in one step, or keeps it and raises. Thread-safe: the one read last is in
    force.

    `library` is the last good one. Read it once per request, so that one request sees one set of policies.
    """

    def __init__(self, directory: Path, *, totals: bool = True) -> None:
        """Load for the first time; raises `PolicyError`, as there is no good set to fall back on.

        Without `totals` the policies are those of `PolicyLibrary.without_totals`.
        """
        self.directory, self._totals = directory, totals
        self._reloading = threading.Lock()
        self.library = self._load()

    def reload(self, check: Callable[[PolicyLibrary], None] = lambda _: None) -> PolicyLibrary:
        """Read the folder again. If that, or `check` of what was read, raises `PolicyError`, the last good library stays in use."""
        # The folder is read under the lock: otherwise a reload that began earlier could replace newer policies by older
        # ones.
        with self._reloading:
            library = self._load().reusing(self.library)
            check(library)
            self.library = library
            return library

    def _load(self) -> PolicyLibrary:
        library = PolicyLibrary.load(self.directory)
        return library if self._totals else library.without_totals()


def read_policies(
    directory: Path, *, name_of: Callable[[Path], str] = str
) -> tuple[list[tuple[Path, CompiledPolicy]], list[PolicyError]]:
    """Return every policy of the folder that compiles, with its file, and every error for which an authority refuses
    the folder.

    Errors call a file by `name_of(path)`, e.g. without the folder where readers should not see it.
    """
    errors: list[PolicyError] = []
    policies: list[tuple[Path, CompiledPolicy]] = []
    try:
        found = (path for path in directory.iterdir() if path.suffix.lower() in SUFFIXES)
        files = sorted(path for path in found if path.name not in NOT_POLICIES)
    except OSError as error:
        return [], [PolicyError(f"cannot be read: {error.strerror}", file=name_of(directory))]
    for path in files:
        if path.suffix != ".yaml":
            errors.append(PolicyError("is not read under this name", file=name_of(path), hint="rename it to .yaml"))
            continue
        compiled, wrong = try_compile(path, name=name_of(path))
        errors += wrong
        policies += [(path, compiled)] if compiled else []
    if not files:
        errors.append(PolicyError("contains no policy", file=name_of(directory)))
    errors += _clashes(policies, name_of)
    return policies, errors


def _clashes(policies: list[tuple[Path, CompiledPolicy]], name_of: Callable[[Path], str]) -> Iterator[PolicyError]:
    owners: dict[tuple[str, str], str] = {}
    for path, compiled in policies:
        for claim in (("policy", compiled.policy.policy_id), *(("actions", one) for one in compiled.policy.actions)):
            if claim in owners:
                yield _clash(path, name_of(path), *claim, owner=owners[claim])
            owners.setdefault(claim, name_of(path))


def _clash(path: Path, file: str, key: str, name: str, *, owner: str) -> PolicyError:
    """Return the error for a name that another policy has, at its place in the file; without one if the file has changed since."""
    message = f'{key.removesuffix("s")} "{name}" is already claimed by {owner}'
    with contextlib.suppress(PolicyError):
        source, root = read_source(path, name=file, regular=True)
        claimed = source.table(root, "a policy file").entries.get(key)
        for node in claimed.items if isinstance(claimed, Listing) else (claimed,):
            if isinstance(node, Scalar) and node.text == name:
                return source.error(node.place, message)
    return PolicyError(message, file=file)
