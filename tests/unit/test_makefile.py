"""The Makefile's environment, `make wheel` and `make clean`: whatever was there before, the command does what it says.

In a copy of the Makefile, with stand-ins of what is slow: `python -m venv`, pip, `build`, and what stops the database.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]

# Ctrl-C goes to every process of the terminal: make, its shell and this one.
CUT = "os.killpg(0, signal.SIGINT); time.sleep(60)"

PIP = f"""
import os, pathlib, signal, sys, time
site = pathlib.Path(__file__).parents[1]
cut = os.environ.get("CUT")
def package(name, text, cut_here):
    info = site / f"{{name}}-1.dist-info"
    if (info / "METADATA").exists():
        return
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\\nName: {{name}}\\nVersion: 1\\n")
    if cut_here:
        {CUT}
    (site / f"{{name}}.py").write_text(text)
    (info / "RECORD").write_text("")
if "--requirement" in sys.argv:
    package("psycopg", "", cut == "package")
else:
    command = pathlib.Path(sys.executable).with_name("sentinel")
    command.write_text("#!/bin/sh\\necho started: $*\\n")
    command.chmod(0o755)
"""

PYTHON = f"""
import os, pathlib, signal, subprocess, sys, time
assert sys.argv[1:] == ["-m", "venv", ".venv"], sys.argv
subprocess.run([sys.executable, "-m", "venv", "--without-pip", ".venv"], check=True)
cut = os.environ.get("CUT")
(site,) = pathlib.Path(".venv").glob("lib/python*/site-packages")
if cut == "venv":
    {CUT}
(site / "pip").mkdir()
(site / "pip" / "__init__.py").write_text("")
(site / "pip" / "__main__.py").write_text(pathlib.Path("pip_main.py").read_text())
(site / "pip-1.dist-info").mkdir()
(site / "pip-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\\nName: pip\\nVersion: 1\\n")
if cut == "pip":
    {CUT}
(site / "pip-1.dist-info" / "RECORD").write_text("")
"""

STOPS = """
import pathlib, shutil, sys
print("stopped")
shutil.rmtree(pathlib.Path(sys.argv[1]) / "postgres")
"""


# As setuptools: a wheel is what lies in build/lib, with what the sources add to it.
BUILD = """
import pathlib, sys
folder = pathlib.Path(sys.argv[-1])
lib = folder / "build" / "lib"
lib.mkdir(parents=True, exist_ok=True)
version = pathlib.Path("version").read_text()
(lib / f"new_in_{version}.py").touch()
name = "sentinel_client" if folder.name else "sentinel_authority"
wheel = pathlib.Path("dist", f"{name}-{version}-py3-none-any.whl")
wheel.parent.mkdir(exist_ok=True)
wheel.write_text(" ".join(sorted(one.name for one in lib.iterdir())))
"""


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """A shell begins what it puts into the background with SIGINT ignored, which everything that is started from there inherits."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout with what the environment is made of, and nothing else."""
    for name in ("Makefile", "requirements.txt", "setup.cfg", "pyproject.toml"):
        shutil.copy(REPO / name, tmp_path)
    (tmp_path / "pip_main.py").write_text(PIP)
    (tmp_path / "python.py").write_text(PYTHON)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} python.py "$@"\n')
    python.chmod(0o755)
    package = tmp_path / "sentinel" / "store" / "embedded"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import psycopg\n")
    (package / "__main__.py").write_text(STOPS)
    return tmp_path


def make(folder: Path, target: str, *, cut: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", f"PYTHON={folder / 'python'}", target],
        cwd=folder,
        env={"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "CUT": cut},
        capture_output=True,
        text=True,
        timeout=60,
        start_new_session=True,
        check=False,
    )


def assert_demo_starts(folder: Path) -> None:
    demo = make(folder, "demo")
    assert (demo.returncode, demo.stdout.splitlines()[-1]) == (0, "started: demo"), demo
    assert list(folder.glob(".venv/lib/python*/site-packages/psycopg.py")), "a half that looks whole stayed"


def with_database(folder: Path) -> None:
    (folder / "var" / "postgres").mkdir(parents=True)


def test_the_targets_are_listed_also_with_a_sed_that_knows_no_tab(folder: Path) -> None:
    """POSIX leaves open what `\\t` is in a replacement; to BSD's sed it was a t."""
    sed = folder / "bin" / "sed"
    sed.parent.mkdir()
    sed.write_text(f"#!/bin/sh\nexec {shutil.which('sed')} 's/:.*## */t/'\n")
    sed.chmod(0o755)
    listed = make(folder, "help").stdout.splitlines()
    assert (
        f"  make {'help':<12} list the targets" in listed
        and f"  make {'env':<12} make the environment in .venv, nothing else" in listed
    )


@pytest.mark.parametrize("cut", ["venv", "pip", "package"])
def test_an_environment_that_was_cut_off_is_made_by_the_next_target(folder: Path, cut: str) -> None:
    stopped = make(folder, "demo", cut=cut)
    assert stopped.returncode != 0 and (folder / ".venv" / "bin" / "python").exists(), stopped
    assert_demo_starts(folder)


def test_an_environment_whose_python_is_gone_is_made_anew(folder: Path) -> None:
    assert make(folder, "env").returncode == 0
    python = folder / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to(folder / "gone")
    (folder / "setup.cfg").touch()
    assert_demo_starts(folder)


def test_a_whole_environment_is_kept(folder: Path) -> None:
    assert make(folder, "env").returncode == 0
    (folder / ".venv" / "mine").touch()
    (folder / "setup.cfg").touch()
    assert make(folder, "env").returncode == 0
    assert (folder / ".venv" / "mine").exists()


@pytest.mark.parametrize("cut", ["", "venv", "pip", "package", "no environment"])
def test_clean_stops_the_database_whatever_became_of_the_environment(folder: Path, cut: str) -> None:
    if cut != "no environment":
        make(folder, "env", cut=cut)
    with_database(folder)
    cleaned = make(folder, "clean")
    assert (cleaned.returncode, cleaned.stdout.splitlines()[-1]) == (0, "stopped"), cleaned
    assert not (folder / "var").exists() and not (folder / ".venv").exists()


def test_clean_without_a_database_makes_no_environment(folder: Path) -> None:
    make(folder, "env", cut="venv")
    cleaned = make(folder, "clean")
    assert (cleaned.returncode, cleaned.stdout) == (0, ""), cleaned
    assert not (folder / ".venv").exists()


def test_clean_removes_nothing_where_it_cannot_stop_the_database(folder: Path) -> None:
    (folder / "python.py").write_text("raise SystemExit(1)")
    with_database(folder)
    cleaned = make(folder, "clean")
    assert cleaned.returncode == 2 and "Error: nothing was removed: the environment that stops" in cleaned.stdout, (
        cleaned
    )
    assert (folder / "var" / "postgres").is_dir()


def test_what_a_clean_that_was_cut_off_left_is_no_environment(folder: Path) -> None:
    assert make(folder, "env").returncode == 0
    removes = folder / "bin" / "rm"
    removes.parent.mkdir()
    removes.write_text(
        """#!/bin/sh
        case "$CUT,$*," in remove,*.venv-adapters*) /bin/rm .venv/lib/python*/site-packages/psycopg.py; kill -INT 0; sleep 60;; esac
        exec /bin/rm "$@"
        """
    )
    removes.chmod(0o755)
    stopped = make(folder, "clean", cut="remove")
    assert stopped.returncode != 0 and (folder / ".venv" / "bin" / "sentinel").exists(), stopped
    assert_demo_starts(folder)


def test_a_wheel_has_nothing_of_the_version_before_and_is_alone_in_its_folder(folder: Path) -> None:
    """The finding: modules that are gone were packed again, and an image took the wheels of both versions."""
    (folder / "build.py").write_text(BUILD)
    (folder / "deploy" / "sentinel-client").mkdir(parents=True)
    for kept in ("build/screenshots", "dist/npm"):
        (folder / kept).mkdir(parents=True)
    for version in ("1", "2"):
        (folder / "version").write_text(version)
        made = make(folder, "wheel")
        assert made.returncode == 0, made
    names = [f"sentinel_authority-{version}-py3-none-any.whl", f"sentinel_client-{version}-py3-none-any.whl"]
    assert made.stdout.split()[-2:] == [f"dist/{name}" for name in names]
    assert sorted(one.name for one in folder.glob("dist/*.whl")) == names
    assert {(folder / "dist" / name).read_text() for name in names} == {"new_in_2.py"}
    assert (folder / "build" / "screenshots").exists() and (folder / "dist" / "npm").exists()
