"""Addresses of database logins: a program's own one, and one that a test makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from sentinel.store.database import BOARD, CONSOLE, PUBLIC
from sentinel.store.embedded.logins import Passwords


def program_url(admin_url: str, role: str) -> str:
    """The same database of an embedded server for a program that logs in as its own role."""
    return as_login(admin_url, role, _passwords(admin_url).of(role))


def console_urls(admin_url: str) -> dict[str, str]:
    """The console's three addresses by their variables."""
    return {"SENTINEL_DATABASE_URL": program_url(admin_url, CONSOLE), **public_urls(admin_url)}


def public_urls(admin_url: str) -> dict[str, str]:
    """The addresses of what the public reaches."""
    return {
        "SENTINEL_PUBLIC_DATABASE_URL": program_url(admin_url, PUBLIC), "SENTINEL_BOARD_DATABASE_URL": program_url(admin_url, BOARD),
    }  # fmt: skip


_known: dict[tuple[Any, Any], Passwords] = {}


def _passwords(admin_url: str) -> Passwords:
    given = conninfo_to_dict(admin_url)
    place = (given.get("host"), given.get("port"))
    if place not in _known:
        with psycopg.connect(admin_url, autocommit=True) as connection:
            row = connection.execute("show data_directory").fetchone()
        assert row is not None
        _known[place] = Passwords(Path(row[0]).parent / "passwords")
    return _known[place]


def make_login(admin_url: str, login: str, terms: str = "") -> str:
    """A new login's address; its password is the administrator's. `terms` go on in CREATE ROLE, e.g. `in role sentinel_worker`."""
    password = str(conninfo_to_dict(admin_url)["password"])
    with psycopg.connect(admin_url, autocommit=True) as connection:
        connection.execute(
            sql.SQL("create role {} login password {} {}").format(
                sql.Identifier(login),
                sql.Literal(password),
                sql.SQL(terms),  # type: ignore[arg-type]
            )
        )
    return as_login(admin_url, login, password)


def as_login(url: str, login: str, password: str) -> str:
    """The same database under another login."""
    given: dict[str, Any] = {**conninfo_to_dict(url), "user": login, "password": password}
    return make_conninfo(**given)
