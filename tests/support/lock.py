"""The lock file: every dependency with one version and the hashes of its files. `python -m tests.support.lock make` writes it (uv), `check` judges it.

`requirements.txt` has a section for each step of the Makefile: what builds the project and what it runs with, then what the
tests, the linters and a release need besides. A section is installed together with those before it.
"""

from __future__ import annotations

import configparser
import functools
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPO = Path(__file__).resolve().parents[2]
LOCK = REPO / "requirements.txt"
SECTIONS = ("build", "runtime", "test", "lint", "release")
LEAST_PYTHON = "3.11"

_HEAD = """# Every dependency, for CPython 3.11 to 3.13 on Linux (x86_64, aarch64) and macOS (arm64), with the hashes of its files. Made by `make lock`; edit setup.cfg.
# inputs: sha256:{digest}
"""
# What uv writes on every line because pyproject.toml names the environments: said once, in the head.
_EVERYWHERE = (
    " ; python_full_version < '3.14' and implementation_name == 'cpython' and platform_python_implementation == 'CPython'"
    " and (sys_platform == 'darwin' or sys_platform == 'linux')"
)
_ENTRY = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;\\]+)[^\n]*(?:\n +--hash=[^\n]+)*", re.MULTILINE)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Pin:
    """One line of the lock file, under the section it was first needed for."""

    name: str
    version: str
    hashes: tuple[str, ...]
    section: str
    text: str


def declared(repo: Path = REPO) -> dict[str, list[str]]:
    """What setup.cfg and the build backend's table ask for, by section."""
    config = configparser.ConfigParser()
    config.read(repo / "setup.cfg")
    extras = config["options.extras_require"]
    backend = tomllib.loads((repo / "pyproject.toml").read_text())["build-system"]["requires"]
    texts = {"runtime": config["options"]["install_requires"], **{name: extras[name] for name in SECTIONS[2:]}}
    return {"build": backend, **{name: [line for line in text.splitlines() if line] for name, text in texts.items()}}


def digest(asked: dict[str, list[str]]) -> str:
    """What the lock file says it was made from."""
    return hashlib.sha256(json.dumps({name: sorted(lines) for name, lines in asked.items()}).encode()).hexdigest()


def pins(text: str) -> Iterator[Pin]:
    """The lines of a lock file."""
    section = ""
    for part in re.split(r"^(# == \w+ ==)$", text, flags=re.MULTILINE):
        if part.startswith("# == "):
            section = part.strip("# =")
        for found in _ENTRY.finditer(part):
            hashes = tuple(sorted(_HASH.findall(found[0])))
            yield Pin(canonicalize_name(found["name"]), found["version"], hashes, section, found[0])


def faults(repo: Path = REPO) -> list[str]:
    """Where the lock file is not what setup.cfg asks for, or the environment not what it says. A line each."""
    text, asked = (repo / LOCK.name).read_text(), declared(repo)
    locked = {pin.name: pin for pin in pins(text)}
    found = [] if f"sha256:{digest(asked)}" in text else ["it was made from another setup.cfg or pyproject.toml"]
    found += [f"{pin.name} has no hash" for pin in locked.values() if not pin.hashes]
    for number, section in enumerate(SECTIONS):
        for line in asked[section]:
            wanted = Requirement(line)
            pin = locked.get(canonicalize_name(wanted.name))
            if pin is None or not wanted.specifier.contains(pin.version) or pin.section not in SECTIONS[: number + 1]:
                found.append(f"{line} ({section}) is not in it")
    linters = [
        line for line in asked["lint"] if _is_installed(Requirement(line).name)
    ]  # `make test` alone installs none
    return found + list(_differs(locked, [*asked["build"], *asked["runtime"], *asked["test"], *linters]))


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


@functools.cache
def _installed(name: str) -> tuple[str, list[str]]:
    """The version of what is installed under a name, and what it requires."""
    found = distribution(name)
    return found.version, found.requires or []


def _differs(locked: dict[str, Pin], asked: list[str]) -> Iterator[str]:
    """What is installed of `asked`, and of what that needs here, in another version than the locked one or unlocked."""
    waiting, seen = [Requirement(line) for line in asked], set()
    while waiting:
        wanted = waiting.pop()
        key = (canonicalize_name(wanted.name), frozenset(wanted.extras))
        if key in seen or (wanted.marker is not None and not wanted.marker.evaluate({"extra": ""})):
            continue
        seen.add(key)
        try:
            version, requires = _installed(wanted.name)
        except PackageNotFoundError:
            yield f"{wanted.name} is not installed"
            continue
        pin = locked.get(key[0])
        if pin is None or pin.version != version:
            yield f"{wanted.name} {version} is installed and {pin.version if pin else 'nothing'} locked"
        for line in requires:
            needed = Requirement(line)
            if needed.marker is None or any(needed.marker.evaluate({"extra": one}) for one in {"", *wanted.extras}):
                needed.marker = None
                waiting.append(needed)


def make(*options: str) -> None:
    """Resolve anew, keeping the versions that still fit (`--upgrade` takes the newest), and write the file."""
    asked = declared()
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole.txt"
        if LOCK.exists():
            shutil.copy(LOCK, whole)
        _resolve([line for lines in asked.values() for line in lines], whole, *options)
        entries = {pin.name: pin.text.replace(_EVERYWHERE, "") for pin in pins(whole.read_text())}
        parts, so_far, written = [_HEAD.format(digest=digest(asked))], [], set()
        for section in SECTIONS:
            so_far += asked[section]
            part = Path(folder) / f"{section}.txt"
            _resolve(so_far, part, "--constraint", str(whole))
            new = sorted({pin.name for pin in pins(part.read_text())} - written)
            written |= set(new)
            parts += [f"\n# == {section} ==\n", *(f"{entries[name]}\n" for name in new)]
    LOCK.write_text("".join(parts))


def _resolve(asked: list[str], into: Path, *options: str) -> None:
    command = [
        "uv", "pip", "compile", "-", "--quiet", "--universal", "--python-version", LEAST_PYTHON, "--generate-hashes", "--no-header",
        "--no-annotate", "--output-file", str(into), *options,
    ]  # fmt: skip
    tool = Path(sys.executable).with_name("uv")
    subprocess.run(
        [str(tool), *command[1:]], cwd=REPO, input="\n".join(asked), text=True, check=True, stdout=subprocess.DEVNULL
    )


def main(what: str, *options: str) -> int:
    """Exit code 0, or 1 with what is wrong on standard error."""
    if what == "make":
        make(*options)
    found = faults() if what == "check" else []
    for line in found:
        print(f"Error: {LOCK.name}: {line}", file=sys.stderr)
    if found:
        print("Error: run make lock, and install anew (make env)", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
