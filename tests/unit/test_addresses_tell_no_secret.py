"""Messages about a database's address tell where it is and never its password, in whatever form it was given."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sentinel.store.database import InvalidAddress, describe, with_role
from sentinel.store.migrate import migrate

SECRET = "hunter2-secret"
GOOD = {
    f"postgresql://me:{SECRET}@db.example:6000/shop": "db.example:6000/shop",
    f"postgresql+psycopg://me:{SECRET}@db.example/shop": "db.example/shop",
    f"postgresql://me:{SECRET}@/shop?host=%2Ftmp%2Fs&port=5432": "/tmp/s/shop",
    f"user=me password={SECRET} host=db.example port=6000 dbname=shop": "db.example:6000/shop",
    f"dbname=shop password={SECRET}": "a local socket/shop",
}
BAD = (
    f"postgre://me:{SECRET}@db.example/shop", f"mysql://me:{SECRET}@db.example/shop", f"me:{SECRET}@db.example",
    f"user=me password={SECRET} hoost=db", f"postgresql://me:{SECRET}@db/shop?pasword={SECRET}",
    f"postgresql://me:{SECRET}/shop", f"postgresql://me:{SECRET}@db.example:port/shop", f"host=db port={SECRET}", "host=db port=5432,0",
)  # fmt: skip


@pytest.mark.parametrize("address", GOOD)
def test_an_address_is_described_by_its_place(address: str) -> None:
    assert describe(address) == GOOD[address]


@pytest.mark.parametrize("address", BAD)
@pytest.mark.parametrize(
    "use", [lambda address: with_role(address, "sentinel_worker"), migrate], ids=["a program", "migrate"]
)
def test_a_malformed_address_is_refused_without_its_text(address: str, use: Callable[[str], object]) -> None:
    assert SECRET not in describe(address)
    with pytest.raises(InvalidAddress) as refused:
        use(address)
    assert SECRET not in refused.value.detail
    assert "\n" not in refused.value.detail
