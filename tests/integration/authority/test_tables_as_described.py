"""The columns that lists are composed of are there, with the types that values are cast to."""

from __future__ import annotations

from sqlalchemy import BigInteger, DateTime, TableClause, Text, Uuid

from sentinel.store.tables import TABLES
from tests.support.fixtures import Fixtures

TYPES = {Uuid: ("uuid",), Text: ("text",), BigInteger: ("bigint",), DateTime: ("timestamp with time zone",)}
COLUMNS = "select column_name, data_type from information_schema.columns where table_schema = %s and table_name = %s"


def differences(table: TableClause, found: dict[str, str]) -> list[str]:
    return [
        f"{table.fullname}.{column.name}"
        for column in table.c
        if found.get(column.name) not in TYPES[type(column.type)]
    ]


def test_every_described_column_is_in_the_catalog(fixtures: Fixtures) -> None:
    wrong, mutant = [], []
    for table in TABLES:
        found = dict(fixtures.admin.execute(COLUMNS, (table.schema, table.name)).fetchall())
        wrong += differences(table, found)
        mutant += differences(table, dict.fromkeys(found, "integer"))
    assert wrong == []
    assert len(mutant) == sum(len(table.c) for table in TABLES), "the check sees another type"
