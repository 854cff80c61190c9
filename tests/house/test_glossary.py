"""House rules on names: modules, classes, public functions and tables use the words of docs/GLOSSARY.md."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
PACKAGES = ("sentinel", "worker", "ops_console", "tests")

BETTER = {
    "again": "reevaluate, retry, resend: what is done again",
    "asker": "requester",
    "book": "inspector, declared_switches, ledger: what it holds",
    "crew": "worker_pool",
    "crowd": "in_flight",
    "crowded": "at_permit_limit",
    "door": "sign_in, authenticator",
    "doorkeeper": "authenticator",
    "errand": "periodic_task",
    "errands": "periodic_tasks",
    "foreseer": "simulator",
    "foresight": "simulation",
    "fullest": "highest_usage",
    "fullness": "limit_usage",
    "gathering": "batching, batch_commit",
    "glance": "status",
    "hands": "lease_keeper",
    "hindrance": "unavailable_reason, obstacle",
    "house": "housekeeping",
    "judged": "raise_if_refused, checked",
    "knowing": "context_loader",
    "lapse": "release_lease",
    "lately": "in_window, recent",
    "minter": "public_id_generator",
    "minters": "public_id_generators",
    "patience": "retry_policy, query_deadline, lock_wait",
    "places": "addresses, slots, steps: what they are",
    "said": "answer, vote, statement",
    "shelf": "policy_files",
    "standing": "status, state",
    "standings": "states",
    "tell": "notify, render, report",
    "together": "combined, batch",
    "told": "response, message, description",
    "twin": "mutant, duplicate",
    "twins": "mutants, duplicates",
    "word": "vote, decision",
    "world": "fixtures, environment",
}
"""Words that no module, class, public function or table is named with, and the better ones."""

TABLES = re.compile(r"create (?:unlogged )?table (?:if not exists )?\w+\.(\w+)", re.IGNORECASE)


def words(name: str) -> set[str]:
    """The words of an identifier, in small letters: "PolicyBook" and "policy_book" are policy and book."""
    return {part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def named(path: Path) -> Iterator[str]:
    """The module's name, its classes and its public functions and methods; a test's own name is a sentence."""
    if path.stem != "__init__":
        yield path.stem
    for node in ast.walk(ast.parse(path.read_text())):
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if isinstance(node, ast.ClassDef) or (is_function and not node.name.startswith(("_", "test_"))):
            yield node.name


def offences() -> Iterator[tuple[str, str, str]]:
    """(place, name, word) of every name with such a word; modules of tests are named like sentences too."""
    for package in PACKAGES:
        for path in sorted((REPO / package).rglob("*.py")):
            for name in named(path):
                if not name.startswith("test_"):
                    yield from (
                        (str(path.relative_to(REPO)), name, word) for word in sorted(words(name) & BETTER.keys())
                    )
    for path in sorted((REPO / "sentinel" / "store" / "schema").rglob("*.sql")):
        for table in TABLES.findall(path.read_text()):
            yield from ((str(path.relative_to(REPO)), table, word) for word in sorted(words(table) & BETTER.keys()))


def test_names_use_the_glossarys_words() -> None:
    bad = [f"{place}: {name} (better: {BETTER[word]})" for place, name, word in offences()]
    assert not bad, "docs/GLOSSARY.md has the word for it:\n" + "\n".join(bad)


def test_every_name_is_seen_in_words() -> None:
    assert words("PolicyBook") == words("policy_book") == {"policy", "book"}
    assert words("HTTPTwins2") == {"http", "twins"} and words("says_bookkeeping") == {"says", "bookkeeping"}


def test_a_class_name_has_one_meaning() -> None:
    found = Counter(
        node.name
        for package in PACKAGES[:-1]
        for path in (REPO / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    shared = sorted(name for name, count in found.items() if count > 1)
    assert not shared, f"one word, one meaning: rename all but one of {shared}"


def test_the_glossary_has_one_line_per_word() -> None:
    lines = [line for line in (REPO / "docs" / "GLOSSARY.md").read_text().splitlines() if line.startswith("* ")]
    entries = [re.fullmatch(r"\* \*\*([a-z -]+)\*\*: (.+)", line) for line in lines]
    assert all(entries), "a line is `* **word**: meaning`"
    terms = [entry[1] for entry in entries if entry]
    assert len(terms) == len(set(terms)) > 50
    assert not {word for term in terms for word in words(term)} & BETTER.keys()
