"""Builds the wheel `sentinel-client` from a copy of this checkout, and environments that have nothing else."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]


def build_client_wheel(folder: Path) -> Path:
    """The wheel, made in `folder` from a copy, so that nothing is left in the checkout and nothing old is in the wheel."""
    copy, made = folder / "source", folder / "dist"
    for name in ("sentinel", "deploy/sentinel-client"):
        ignore = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
        shutil.copytree(REPO / name, copy / name, ignore=ignore)
    _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(made), str(copy / "deploy/sentinel-client"))
    (wheel,) = made.glob("*.whl")
    return wheel


def packaged_modules() -> dict[str, Path]:
    """The modules that the distribution names, and their packages, each with its file within the checkout."""
    said = configparser.ConfigParser()
    said.read(REPO / "deploy/sentinel-client/setup.cfg")
    files = [Path(*name.split(".")).with_suffix(".py") for name in said["options"]["py_modules"].split()]
    files += [path.parent / "__init__.py" for path in files]
    for name in said["options"]["packages"].split():
        files += [path.relative_to(REPO) for path in (REPO / Path(*name.split("."))).glob("*.py")]
    return {".".join(path.with_suffix("").parts).removesuffix(".__init__"): path for path in files}


def environment_with(folder: Path, wheel: Path, python: str = sys.executable) -> Path:
    """The interpreter of a new environment in `folder` that has the wheel and nothing else."""
    subprocess.run([python, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    interpreter = folder / "bin" / "python"
    _pip("--python", str(interpreter), "install", "--no-index", "--no-deps", str(wheel))
    return interpreter


def other_python(version: str) -> str | None:
    """An interpreter of that version ("3.10") on PATH, if one runs."""
    found = shutil.which(f"python{version}")
    if found is None:
        return None
    # A shim of pyenv runs only the version that it is told.
    env = {**os.environ, "PYENV_VERSION": version}
    done = subprocess.run([found, "-c", "import sys; print(sys.executable)"], capture_output=True, text=True, env=env, check=False)  # fmt: skip
    return done.stdout.strip() or None


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
