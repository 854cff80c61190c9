"""Messages about a database's address tell where it is and never its password, in whatever form it was given."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from sentinel.store.database import InvalidAddress, NoRootCertificate, describe, with_role
from sentinel.store.migrate import migrate

SECRET = "hunter2-secret"
GOOD = {
    f"postgresql://me:{SECRET}@db.example:6000/shop": "db.example:6000/shop",
    f"postgresql+psycopg://me:{SECRET}@db.example/shop": "db.example/shop",
    f"postgresql://me:{SECRET}@/shop?host=%2Ftmp%2Fs&port=5432": "/tmp/s/shop",
    f"user=me password={SECRET} host=db.example port=6000 dbname=shop": "db.example:6000/shop",
    f"dbname=shop password={SECRET}": "a local socket/shop",
    f"postgresql://me:{SECRET}@db_1.example./shop": "db_1.example./shop",
    f"host=/tmp/{'d' * 70}..s dbname=shop password={SECRET}": f"/tmp/{'d' * 70}..s/shop",
}
USES = pytest.mark.parametrize(
    "use", [lambda address: with_role(address, "sentinel_worker"), migrate], ids=["a program", "migrate"]
)
BAD = (
    f"postgre://me:{SECRET}@db.example/shop", f"mysql://me:{SECRET}@db.example/shop", f"me:{SECRET}@db.example",
    f"user=me password={SECRET} hoost=db", f"postgresql://me:{SECRET}@db/shop?pasword={SECRET}",
    f"postgresql://me:{SECRET}/shop", f"postgresql://me:{SECRET}@db.example:port/shop", f"host=db port={SECRET}", "host=db port=5432,0",
    f"postgresql://me:{SECRET}@db..example/shop", f"host=db,{SECRET}..example", f"host={'d' * 64}.example password={SECRET}",
)  # fmt: skip


@pytest.mark.parametrize("address", GOOD)
def test_an_address_is_described_by_its_place(address: str) -> None:
    assert describe(address) == GOOD[address]


@pytest.mark.parametrize("address", BAD)
@USES
def test_a_malformed_address_is_refused_without_its_text(address: str, use: Callable[[str], object]) -> None:
    assert SECRET not in describe(address)
    with pytest.raises(InvalidAddress) as refused:
        use(address)
    assert SECRET not in refused.value.detail
    assert "\n" not in refused.value.detail


CHECKED = f"postgresql://me:{SECRET}@db.example/shop?sslmode=verify-full"


@USES
def test_a_server_that_is_checked_against_no_file_is_a_fault_of_the_address(
    use: Callable[[str], object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """libpq says so only after it has connected, as if the database were away, and names a cure that its wheel has not."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for address in (CHECKED, f"{CHECKED}&sslrootcert={tmp_path}/none.crt"):
        with pytest.raises(NoRootCertificate, match="&sslrootcert=/etc/ssl/certs/ca-certificates.crt") as refused:
            use(address)
        assert SECRET not in refused.value.detail
    assert describe(CHECKED) == "db.example/shop"


@USES
def test_a_file_of_authorities_that_the_account_cannot_read_is_a_fault_of_the_address(
    use: Callable[[str], object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The finding: in a folder that is closed to the account it was a traceback; where it could not be read, the database was away."""
    (file := tmp_path / "root.crt").touch()
    # Whoever runs the tests may be root, who reads everything.
    monkeypatch.setattr(os, "access", lambda path, mode: (str(path), mode) != (str(file), os.R_OK))
    with pytest.raises(NoRootCertificate, match=f"this account cannot read {file}: ") as refused:
        use(f"{CHECKED}&sslrootcert={file}")
    assert SECRET not in refused.value.detail


@pytest.mark.parametrize(
    "address",
    [
        f"{CHECKED}&sslrootcert=system", f"{CHECKED}&sslrootcert={quote(__file__)}", f"{CHECKED}&service=shop",
        CHECKED.replace("verify-full", "require"), CHECKED.replace("db.example", "%2Ftmp"), CHECKED.replace("db.example", ""),
    ],
)  # fmt: skip
def test_an_address_whose_file_is_there_or_not_asked_for_is_taken(
    address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with_role(address, "sentinel_worker")


def test_the_users_own_file_of_authorities_serves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".postgresql").mkdir()
    (tmp_path / ".postgresql" / "root.crt").touch()
    with_role(CHECKED, "sentinel_worker")


def test_every_example_address_names_the_authorities_that_the_server_is_checked_against() -> None:
    examples = sorted((Path(__file__).parents[2] / "deploy").glob("systemd/*.env.example"))
    addresses = re.findall(r"postgresql://[^'\"\s]+", "\n".join(path.read_text() for path in examples))
    assert len(addresses) >= len(examples)
    for address in addresses:
        assert address.endswith("?sslmode=verify-full&sslrootcert=/etc/ssl/certs/ca-certificates.crt"), address
