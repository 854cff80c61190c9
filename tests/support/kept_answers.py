"""What a program's routes for supervisors and readers cost, however often they are asked."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import apispec
import pytest

from sentinel.platform.http import readiness
from sentinel.store.safety import database_status

TIMES = 5


def require_kept_answers(client: Any, monkeypatch: pytest.MonkeyPatch, module: ModuleType, *, logins: int = 1) -> None:
    """`/readyz` of the program whose routes are in `module` looks once at the database of each of its logins while the answer
    is remembered, and `/openapi.json` is made once.
    """
    looked: list[int] = []
    made: list[int] = []

    def counted_status(*asked: Any, **how: Any) -> Any:
        looked.append(1)
        return database_status(*asked, **how)

    class CountedSpec(apispec.APISpec):
        def __init__(self, *given: Any, **how: Any) -> None:
            made.append(1)
            super().__init__(*given, **how)

    monkeypatch.setattr(readiness, "REMEMBERED_SECONDS", 3600.0)
    monkeypatch.setattr(module, "database_status", counted_status)
    monkeypatch.setattr(apispec, "APISpec", CountedSpec)
    assert len({client.get("/readyz").data for _ in range(TIMES)}) == 1
    assert len(looked) == logins
    assert len({client.get("/openapi.json").data for _ in range(TIMES)}) == 1
    assert len(made) == 1
