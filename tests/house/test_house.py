"""House rules that no tool knows: each failure says the better way."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
import re
import subprocess
from pathlib import Path

import click
import pytest

from sentinel.cli.main import main
from sentinel.platform.secret_files import SECRETS
from tests.support import answer_table, facts_table
from tests.support.settings_table import programs, render

REPO = Path(__file__).resolve().parents[2]
VENDORS = (
    REPO / "sentinel" / "platform" / "http" / "static" / "vendor",
    REPO / "ops_console" / "static" / "vendor",
    REPO / "tests" / "browser" / "axe-4.14.1",
)


def tracked() -> list[Path]:
    """Files that travel with the repository. Skips where it is not one, e.g. in an unpacked archive."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=REPO, capture_output=True, check=False)
    if done.returncode:
        pytest.skip("not a git checkout")
    return [REPO / name for name in done.stdout.decode().split("\0") if name and (REPO / name).is_file()]


@pytest.mark.parametrize("folder", VENDORS, ids=lambda folder: folder.relative_to(REPO).parts[0])
def test_vendored_files_are_the_ones_that_were_looked_at(folder: Path) -> None:
    listed = dict(reversed(line.split("  ", 1)) for line in (folder / "SHA256SUMS").read_text().splitlines())  # type: ignore[misc]
    about = {folder / "SHA256SUMS", folder / "README.md"}
    there = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file() and path not in about}
    assert there.keys() == listed.keys(), "update SHA256SUMS together with the files"
    for name, path in there.items():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == listed[name], f"{name} was changed"


def test_nothing_installed_or_generated_is_tracked() -> None:
    bad = [
        str(path.relative_to(REPO))
        for path in tracked()
        if {".sdk-cache", ".venv", "__pycache__", "node_modules", "var"} & set(path.relative_to(REPO).parts)
    ]
    assert not bad, f"add the folder to .gitignore and remove it from the index: {bad[:5]}"


def test_no_tracked_file_names_a_machine_or_a_private_registry() -> None:
    # Built from parts, so that this file does not find itself.
    patterns = [
        re.compile(text)
        for text in (
            "/" + "root/",
            "/home" + r"/[a-z]+/",
            "/work" + "/",
            "/opt/pypi" + "-more",
            "index" + "-url *=",
            "artifact" + "ory\\b",
        )
    ]
    found = []
    for path in tracked():
        if any(map(path.is_relative_to, VENDORS)) or path.suffix in (".png", ".svg", ".csv"):
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [
            f"{path.relative_to(REPO)}: {match.group()}" for pattern in patterns for match in pattern.finditer(text)
        ]
    assert not found, f"say it relative to the checkout or by a variable: {found[:5]}"


def test_public_documents_are_made_in_one_place() -> None:
    making = re.compile(r"\bPublicFields\(")
    found = [
        str(path.relative_to(REPO))
        for path in tracked()
        if path.suffix == ".py" and path.relative_to(REPO).parts[0] != "tests" and making.search(path.read_text())
    ]
    assert found == ["sentinel/core/publication.py"], "add a method to Publisher instead"


def test_the_table_of_settings_is_the_one_the_code_makes() -> None:
    assert (REPO / "docs" / "settings.md").read_text() == render(), "run `make docs`"


def test_the_table_of_risk_facts_is_the_one_the_code_makes() -> None:
    assert (REPO / "docs" / "risk-facts.md").read_text() == facts_table.render(), "run `make docs`"


def test_the_table_of_the_guards_answer_is_the_one_the_code_makes() -> None:
    assert (REPO / "docs" / "guard-answer.md").read_text() == answer_table.render(), "run `make docs`"


def test_every_setting_is_named_and_explained_once_per_program() -> None:
    for title, kind in programs():
        metadata = [field.metadata for field in kind.__dataclass_fields__.values()]
        assert all(one.get("env") and len(one.get("help", "")) > 10 for one in metadata), title
        assert len({one["env"] for one in metadata}) == len(metadata), title


_FAMILY = "(?:SENTINEL|WORKER|ORDERS|CONFIRM|SMTP|SLACK|HALTSTATE)"
_NOT_A_SETTING = {"HALTSTATE_REFUND_AGENT_API_KEY", "PROMETHEUS_MULTIPROC_DIR", "OTEL_SDK_DISABLED"}
"""Another name for one that is in the table; what a program tells its own children; and OpenTelemetry's own."""


def in_the_table() -> set[str]:
    return set(re.findall(r"^\| `([A-Z_]+)` \|", render(), re.MULTILINE))


def code() -> str:
    folders = (REPO / package for package in ("sentinel", "worker", "ops_console"))
    return "\n".join(path.read_text() for folder in folders for path in folder.rglob("*.py"))


def test_every_variable_that_is_read_is_in_the_table() -> None:
    used = re.findall(rf'"({_FAMILY}_[A-Z_]*[A-Z])"|os\.environ(?:\.\w+\(|\[)"([A-Z_]+)"', code())
    unknown = {name for pair in used for name in pair if name} - in_the_table() - _NOT_A_SETTING
    assert not unknown, f"give them a field with env and help: {sorted(unknown)}"


def test_every_secret_is_told_how_it_is_replaced() -> None:
    told = render().split("## Replacing secrets")[1]
    untold = [
        name for name in set(SECRETS) - _NOT_A_SETTING if not name.endswith("_DATABASE_URL") and f"`{name}`" not in told
    ]
    assert not untold, f"give them a row in tests/support/settings_table.py, _ROTATION: {sorted(untold)}"


def of_fields() -> set[str]:
    return {field.metadata["env"] for _, kind in programs() for field in dataclasses.fields(kind)}


def test_every_variable_of_the_table_is_read() -> None:
    """Those of fields by the program's settings, all of which `read_fields` reads."""
    text = code() + (REPO / "policies" / "order_sources.yaml").read_text()
    unread = {name for name in in_the_table() - of_fields() if not re.search(rf"(?:\"|secret: |key: ){name}\b", text)}
    assert not unread, f"nothing reads them: {sorted(unread)}"


def test_every_secret_may_stand_in_a_file() -> None:
    secret = re.compile(r"(?<!_PER)_(?:KEYS?|SECRETS?|TOKEN|PASSWORD|DATABASE_URL)$")
    missing = {name for name in of_fields() if secret.search(name)} - set(SECRETS)
    assert not missing, f"name them in SECRETS of sentinel/platform/secret_files.py: {sorted(missing)}"


def test_every_variable_that_the_readme_names_is_in_the_table() -> None:
    said = set(re.findall(rf"\b({_FAMILY}_[A-Z_]*[A-Z])\b", (REPO / "README.md").read_text()))
    assert said <= in_the_table(), f"the table is where one looks them up: {sorted(said - in_the_table())}"


def test_the_readme_says_where_its_commands_are_before_it_calls_the_first() -> None:
    text = (REPO / "README.md").read_text()
    called = re.search(r"^(?:export \w+=\$\()?(?:sentinel|worker|retail-refund-agent) ", text, re.MULTILINE)
    assert called is not None
    assert 0 < text.find("`. .venv/bin/activate`") < called.start(), "nothing puts them on the reader's PATH"


_IN_TEXT, _ON_A_LINE = re.compile(r"`(sentinel [a-z][^`\n]*)`"), re.compile(r"^ *(sentinel [a-z][^\n]*)$", re.MULTILINE)


def _required_and_left_out(line: str) -> list[str]:
    """The required options that a command line lacks; none where it only names a command, or asks for its help."""
    words = line.partition(" # ")[0].split()[1:]
    command: click.Command | None = main
    while isinstance(command, click.Group) and words:
        command = command.get_command(click.Context(command), words.pop(0))
    if command is None or not words or "--help" in words:
        return []
    options = [one for one in command.params if isinstance(one, click.Option) and one.required]
    return [one.opts[0] for one in options if not {*one.opts, *one.secondary_opts} & set(words)]


def test_a_command_that_a_document_prints_has_the_options_that_it_requires() -> None:
    bad = [
        f"{path.relative_to(REPO)}: {line} lacks {', '.join(lacking)}"
        for path in tracked()
        if path.suffix == ".md" and path.name != "CHANGELOG.md" and path.parent.name != "decisions"
        for printed in (_IN_TEXT, _ON_A_LINE)
        for line in printed.findall(path.read_text())
        if (lacking := _required_and_left_out(line))
    ]
    assert not bad, f"print it as it can be run: {bad}"
    assert _required_and_left_out("sentinel orders decide SOURCE ORDER hold --as EMAIL # why") == ["--reason"]


def test_every_module_opens_with_its_purpose() -> None:
    silent = [
        str(path.relative_to(REPO))
        for package in ("sentinel", "worker", "ops_console", "tests")
        for path in (REPO / package).rglob("*.py")
        if path.stat().st_size and not path.read_text().lstrip().startswith(('"""', 'r"""'))
    ]
    assert not silent, f"say in the first line what it is for: {silent}"


_BY_NAME = re.compile(r"\b(?:pip|npm)\s+(?:install|i|add)\b[^\n`]*?[\s'\"]sentinel[-_](?:client|authority)(?![-\w])")


@pytest.mark.parametrize(
    ("line", "is_by_name"),
    [
        ("pip install sentinel-client", True), ("pip install -U 'sentinel-authority[mcp]'", True), ("npm install sentinel-client", True),
        ("pip install './dist/sentinel_client-0.1.0-py3-none-any.whl[langchain]'", False),
        ("pip install --no-deps sentinel_authority-*.whl", False), ("npm install ./dist/sentinel-client-0.1.0.tgz", False),
    ],
)  # fmt: skip
def test_what_installs_by_a_name_of_ours_is_told_from_what_installs_a_file(line: str, is_by_name: bool) -> None:
    assert bool(_BY_NAME.search(line)) is is_by_name


def test_nobody_is_told_to_install_a_name_of_ours_from_an_index() -> None:
    """Whoever took the name there first would run in the process that holds the agent's key."""
    kinds = (".md", ".py", ".ts", ".json", ".cfg", ".toml", ".yaml", ".sh", "")
    found = [
        f"{path.relative_to(REPO)}: {match.group()}"
        for path in tracked()
        if path.suffix in kinds and path != Path(__file__).resolve()
        for match in _BY_NAME.finditer(path.read_text(errors="replace"))
    ]
    assert not found, f"name the file that `make wheel` or `make npm-package` made: {found}"


_WRITES = re.compile(r"""\.write_(?:text|bytes)\(|\bopen\([^)]*["'][wax]b?["']|\.open\(["'][wax]b?["']""")
_MAY_WRITE = {
    "sentinel/platform/private_files.py",
    "worker/diagrams.py",
}
"""What makes files private, and what draws documents."""


def test_files_are_written_by_what_makes_them_private() -> None:
    bad = [
        f"{name}:{number}"
        for package in ("sentinel", "worker", "ops_console")
        for path in sorted((REPO / package).rglob("*.py"))
        if (name := str(path.relative_to(REPO))) not in _MAY_WRITE
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if _WRITES.search(line) and "0o600" not in line
    ]
    assert not bad, f"write it with sentinel.platform.private_files: {bad}"


@pytest.fixture(scope="module")
def shared() -> str:
    """What a module sets up once."""
    return "made"


def test_what_shares_a_dear_fixture_runs_in_one_process(shared: str, request: pytest.FixtureRequest) -> None:
    group = request.node.get_closest_marker("xdist_group")
    assert group is not None, "tests/conftest.py groups what uses a fixture of its module"
    if "PYTEST_XDIST_WORKER" in os.environ:
        assert request.node.nodeid.endswith(f"@{group.args[0]}"), (
            "xdist does not know the group (with pytest 9.2 it forgets them): every process makes every shared fixture"
        )


def test_each_guarantee_is_told_once_and_names_tests_that_are_there() -> None:
    lines = (REPO / "tests" / "GUARANTEES.md").read_text().splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ") and not line.startswith("| Id ")]
    assert rows and {len(row) for row in rows} == {5}
    claims = sorted(row[1] for row in rows)
    twice = [one for one, other in itertools.pairwise(claims) if other.startswith(one)]
    assert twice == [], "keep the newer line of the two"
    for *_, paths in rows:
        first, *others = re.findall(r"`([^`]+\.py)`", paths)
        folder = (REPO / first).parent
        gone = [name for name in (first, *others) if not ((REPO / name).exists() or (folder / name).exists())]
        assert gone == [], "name the file that the test is in now"
