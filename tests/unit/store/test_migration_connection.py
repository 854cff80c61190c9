"""The connections of a migration and of the doctor, whose statements may take any time."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from sentinel.core.errors import EngineUnavailable
from sentinel.store.database import CONSOLE, with_role
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


@pytest.mark.parametrize(("more", "idle"), [("", "30"), ("?keepalives_idle=300", "300")])
def test_so_does_a_programs_or_the_doctors(more: str, idle: str) -> None:
    """The finding: the doctor waited for two hours, and a firewall forgot a program's idle connections before their first use."""
    made = conninfo_to_dict(with_role(f"postgresql://me@db.example/shop{more}", CONSOLE))
    assert (made["keepalives_idle"], made["keepalives_interval"], made["keepalives_count"]) == (idle, "10", "6")
    assert made["tcp_user_timeout"] == "90000"
