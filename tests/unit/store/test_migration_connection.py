"""The connection of a migration, whose statements have no deadline."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from sentinel.core.errors import EngineUnavailable
from sentinel.store.migrate import migrate


def test_a_migration_asks_whether_its_server_is_still_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The finding: of a machine that was gone in the middle of a migration, the system told after more than two hours."""
    opened: list[dict[str, Any]] = []

    def connect(address: str, **how: Any) -> None:
        opened.append(dict(conninfo_to_dict(address)))
        raise psycopg.OperationalError("no route to host")

    monkeypatch.setattr(psycopg, "connect", connect)
    for more in ("", "?keepalives_idle=300"):
        with pytest.raises(EngineUnavailable, match="no route to host"):
            migrate(f"postgresql://admin@db.example/sentinel{more}")
    assert {one["tcp_user_timeout"] for one in opened} == {"90000"}
    assert [(one["keepalives_idle"], one["keepalives_interval"], one["keepalives_count"]) for one in opened] == [
        ("30", "10", "6"), ("300", "10", "6"),
    ]  # fmt: skip
