"""Policies as operators see them: the text in force in words, the file, limit usage and case results.

Shown is the text in force: the one that an authority declared, stored in the database under its digest. The policy
files on this machine only add the source with its comments; a page says so if the file's digest is another one.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson

from sentinel.authority.policies import InForceRow, LimitUsageRow, LimitWindow, highest_limit_usage, policies_in_force
from sentinel.core.decision import WindowKind
from sentinel.core.errors import NotFound
from sentinel.policy.cases import CaseResult, run_cases
from sentinel.policy.describe import describe_policy
from sentinel.policy.document import covered_currencies, policy_from_document
from sentinel.policy.errors import PolicyError
from sentinel.policy.library import SUFFIXES, read_policies
from sentinel.policy.model import Limit, Policy
from sentinel.store.database import Pool

MOST_PER_LIMIT = 5
_ABOUT_LIMIT = {
    WindowKind.CALENDAR_DAY: "today", WindowKind.CALENDAR_MONTH: "this month", WindowKind.ROLLING: "in the rolling window",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LimitView:
    """A limit as `describe` renders it, with the window it counts in; `lately` names the current window, e.g. "today"."""

    limit_id: str
    description: Mapping[str, Any]
    lately: str
    window: LimitWindow


@dataclass(frozen=True, slots=True)
class PolicyView:
    """A policy in force; `earlier` counts its other stored texts.

    `description` is the output of `describe`: label, version, actions, facts, numbers, rules and approval terms in
    words.
    """

    policy_id: str
    digest: str
    since: datetime
    earlier: int
    canonical: str
    description: Mapping[str, Any]
    limits: tuple[LimitView, ...]


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """A policy's file on this machine: its name, text and digest."""

    name: str
    text: str
    digest: str


@dataclass(frozen=True, slots=True)
class PolicyFiles:
    """The folder's policy files by policy id, and the faults of the files that cannot be used, one text each."""

    files: Mapping[str, PolicyFile]
    faults: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CaseRun:
    """The results of all policy cases and their coverage, by policy id; a `fault` (one line) instead if files are unusable."""

    results: Mapping[str, Sequence[CaseResult]]
    coverage: Mapping[str, Mapping[str, int]]
    fault: str | None = None


class PolicyFolder:
    """The folder of policy files; it is read, and its cases are run, again only if a file changed. Thread-safe."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        # A separate lock, so that readers do not wait for a run.
        self._lock, self._running = threading.Lock(), threading.Lock()
        self._files: tuple[object, PolicyFiles] | None = None
        self._run: tuple[object, CaseRun] | None = None

    def policy_files(self) -> PolicyFiles:
        """Return the folder's current policy files."""
        with self._lock:
            stamp = self._stamp()
            if self._files is None or self._files[0] != stamp:
                self._files = (stamp, _read_policy_files(self._directory))
            return self._files[1]

    def run(self) -> CaseRun:
        """Run every case against the files, which takes about a second, or return the last run if nothing changed since."""
        with self._running:
            stamp = self._stamp()
            if self._run is None or self._run[0] != stamp:
                self._run = (stamp, _run_cases(self._directory))
            return self._run[1]

    def last_run(self) -> CaseRun | None:
        """Return the last run if the folder has not changed since, else None."""
        kept = self._run
        return kept[1] if kept is not None and kept[0] == self._stamp() else None

    def _stamp(self) -> object:
        try:
            return tuple(_state(path) for folder in ("", "cases") for path in _looked_at(self._directory / folder))
        except OSError as error:
            return (error.errno,)


def _looked_at(folder: Path) -> list[Path]:
    """Return the paths whose names end in a suffix that an authority reads or refuses; empty if there is no folder."""
    return sorted(path for path in folder.glob("*") if path.suffix.lower() in SUFFIXES)


def _state(path: Path) -> tuple[object, ...]:
    if not path.is_file():
        return (path.name,)
    stat = path.stat()
    return (path.name, stat.st_mtime_ns, stat.st_size, stat.st_ino)


def list_policies(pool: Pool) -> list[PolicyView]:
    """Return every policy in force, by id."""
    return [_view(row) for row in policies_in_force(pool)]


def find_policy(pool: Pool, policy_id: str) -> PolicyView:
    """Return the policy in force with that id. Raises `NotFound`."""
    found = [row for row in policies_in_force(pool) if row.policy_id == policy_id]
    if not found:
        raise NotFound("no policy of that name is in force")
    return _view(found[0])


def limit_usage_by_window(
    pool: Pool, tenant_id: uuid.UUID, views: Sequence[PolicyView], *, most: int
) -> dict[str, list[LimitUsageRow]]:
    """Return, by the limits' prefixes, the `most` subjects that are nearest to each limit now."""
    windows = [limit.window for view in views for limit in view.limits]
    found: dict[str, list[LimitUsageRow]] = {one.prefix: [] for one in windows}
    for row in highest_limit_usage(pool, tenant_id, windows, most=most):
        found[row.prefix].append(row)
    return found


def _view(row: InForceRow) -> PolicyView:
    policy = policy_from_document(orjson.loads(row.canonical))
    description = describe_policy(policy, digest=row.policy_digest, covered=covered_currencies(policy))
    limits = tuple(_limit(policy, one, said) for one, said in zip(policy.limits, description["limits"], strict=True))
    return PolicyView(policy.policy_id, row.policy_digest, row.since, row.earlier, row.canonical, description, limits)


def _limit(policy: Policy, limit: Limit, description: Mapping[str, Any]) -> LimitView:
    window = LimitWindow(
        f"{policy.policy_id}/{limit.limit_id}|", limit.window.value, limit.window_seconds, limit.bucket_seconds, policy.zone,
        limit.per.index("currency") + 1, limit.cap,
    )  # fmt: skip
    return LimitView(limit.limit_id, description, _ABOUT_LIMIT[limit.window], window)


def _read_policy_files(directory: Path) -> PolicyFiles:
    policies, errors = read_policies(directory, name_of=lambda path: path.name)
    files = {}
    for path, compiled in policies:
        with contextlib.suppress(OSError):  # it was removed since: as if it had not been there
            text = path.read_text(encoding="utf-8", errors="replace")
            files[compiled.policy.policy_id] = PolicyFile(path.name, text, compiled.digest)
    return PolicyFiles(files, tuple(error.explain() for error in errors))


def _run_cases(directory: Path) -> CaseRun:
    try:
        report = run_cases(directory)
    except PolicyError as error:
        # Where the folder is on this machine is no viewer's business.
        return CaseRun({}, {}, fault=str(error).replace(f"{directory}/", "").replace(str(directory), directory.name))
    found: dict[str, list[CaseResult]] = {}
    for result in report.results:
        found.setdefault(result.policy, []).append(result)
    return CaseRun(found, report.coverage)
