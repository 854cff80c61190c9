"""The lock file and the bill of materials: complete as they stand, and what is taken from them or changed in them is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import lock, sbom

TEXT = lock.LOCK.read_text()
PINS = list(lock.pins(TEXT))


def test_the_lock_file_is_what_setup_cfg_asks_for_and_what_is_installed() -> None:
    assert lock.faults() == []
    print(f"N={len(PINS)}")


def test_every_line_has_one_version_and_hashes() -> None:
    lines = [line for line in TEXT.splitlines() if line and line[0] not in "# "]
    assert len(lines) == len(PINS) == len({pin.name for pin in PINS})
    assert all(pin.hashes and pin.section in lock.SECTIONS for pin in PINS)


def place(tmp_path: Path, text: str, **changed: tuple[str, str]) -> Path:
    """A repository of this lock file; `changed` by file, what is put for what."""
    (tmp_path / lock.LOCK.name).write_text(text)
    for name in ("setup.cfg", "pyproject.toml"):
        old, new = changed.get(name.partition(".")[0], ("", ""))
        (tmp_path / name).write_text((lock.REPO / name).read_text().replace(old, new, 1))
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"setup": ("flask>=3.1.3,<4", "flask>=4")}, "flask>=4 (runtime) is not in it"),
        ({"setup": ("    click>=8.5,<9\n", "    click>=8.5,<9\n    django>=6\n")}, "django>=6 (runtime) is not in it"),
        (
            {"setup": ("    click>=8.5,<9\n", "    click>=8.5,<9\n    hypothesis>=6\n")},
            "hypothesis>=6 (runtime) is not in it",
        ),
        ({"pyproject": ("setuptools>=77", "setuptools>=999")}, "setuptools>=999 (build) is not in it"),
        ({"setup": ("    click>=8.5,<9\n", "")}, "another setup.cfg"),
    ],
)
def test_what_was_changed_and_not_locked_is_told(tmp_path: Path, changed: dict[str, Any], told: str) -> None:
    assert any(told in line for line in lock.faults(place(tmp_path, TEXT, **changed)))


@pytest.mark.parametrize("name", ["flask", "blinker", "setuptools", "pytest", "ruff"])
def test_what_is_taken_out_of_the_lock_file_is_told(tmp_path: Path, name: str) -> None:
    (pin,) = (one for one in PINS if one.name == name)
    without, other = TEXT.replace(pin.text, ""), TEXT.replace(pin.text, pin.text.replace(pin.version, "0.0.1"))
    bare = TEXT.replace(pin.text, pin.text.partition(" \\")[0])
    for text in (without, other, bare):
        assert any(name in line for line in lock.faults(place(tmp_path, text)))


def test_the_bill_has_every_dependency_and_vendored_package_and_nothing_else() -> None:
    told = json.loads(sbom.BILL.read_text())
    assert sbom.faults(told) == []
    assert {one["name"] for one in sbom.vendored()} == {"htmx.org", "@picocss/pico", "uplot", "swagger-ui-dist"}
    assert all(one["licenses"] for one in told["components"])


def test_what_is_taken_out_of_the_bill_or_changed_in_it_is_told() -> None:
    told = json.loads(sbom.BILL.read_text())
    for number, one in enumerate(told["components"]):
        without = {**told, "components": told["components"][:number] + told["components"][number + 1 :]}
        assert sbom.faults(without) == [f"{one['purl']} is not in it"]
    more = {**told, "components": [*told["components"], {**told["components"][0], "purl": "pkg:pypi/x@1"}]}
    assert sbom.faults(more) == ["pkg:pypi/x@1 is in it and nowhere else"]
    text = sbom.BILL.read_text()
    for digest in (next(iter(sbom.vendored()))["components"][0]["hashes"][0]["content"], PINS[0].hashes[0]):
        assert len(sbom.faults(json.loads(text.replace(digest, "0" * 64)))) == 1


def test_vendored_packages_are_all_in_the_tables_the_bill_is_made_from() -> None:
    for folder in sbom.VENDORED:
        listed = {line.split("  ", 1)[1].split("/")[0] for line in (folder / "SHA256SUMS").read_text().splitlines()}
        assert {path.name for path in folder.iterdir() if path.is_dir()} == listed
    named = {file["name"] for one in sbom.vendored() for file in one["components"]}
    there = {
        str(path.relative_to(sbom.REPO)) for folder in sbom.VENDORED for path in folder.rglob("*")
        if path.is_file() and path.parent != folder
    }  # fmt: skip
    assert named == there


def test_the_makefile_installs_nothing_without_hashes() -> None:
    makefile = (lock.REPO / "Makefile").read_text()
    installs = [line for line in makefile.splitlines() if "$(PIP) " in line]
    ours = [line for line in installs if "--no-deps --no-build-isolation --editable ." in line]
    assert len(installs) == 2 and len(ours) == 1, installs
    assert all("--require-hashes" in line for line in installs if line not in ours)
    assert makefile.count("pip install") == 1
