"""The agents' distribution names every module that its own modules import of ours: told in seconds, before a wheel is built."""

from __future__ import annotations

import ast

from tests.support.client_wheel import REPO, packaged_modules


def test_every_packaged_module_finds_there_what_it_imports_of_ours() -> None:
    names = packaged_modules()
    missing = {
        f"{name} imports {one.module}"
        for name, path in names.items()
        for one in ast.walk(ast.parse((REPO / path).read_bytes()))
        if isinstance(one, ast.ImportFrom) and (one.module or "").startswith("sentinel.") and one.module not in names
    }
    assert len(names) > 20
    assert not missing, f"add them to py_modules of deploy/sentinel-client/setup.cfg: {sorted(missing)}"
