"""The log's head is RFC 6962's, whatever the steps in which it grew: Certificate Transparency's own test vectors."""

from __future__ import annotations

import hashlib
import random

from sentinel.core.merkle import TreeHead

LEAVES = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"]
ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]


def plain(leaves: list[bytes]) -> bytes:
    """RFC 6962 §2.1 as it is written."""
    if len(leaves) < 2:
        return hashlib.sha256(b"\0" + leaves[0] if leaves else b"").digest()
    half = 1 << ((len(leaves) - 1).bit_length() - 1)
    return hashlib.sha256(b"\1" + plain(leaves[:half]) + plain(leaves[half:])).digest()


def test_the_published_vectors() -> None:
    leaves = [bytes.fromhex(leaf) for leaf in LEAVES]
    assert [TreeHead().extended(leaves[:size]).root.hex() for size in range(9)] == ROOTS


def test_it_grows_in_any_steps_as_the_plain_definition() -> None:
    chance = random.Random(6962)
    for size in range(70):
        leaves = [chance.randbytes(chance.randrange(9)) for _ in range(size)]
        head, at = TreeHead(), 0
        while at < size:
            step = chance.randrange(1, 9)
            head, at = head.extended(leaves[at : at + step]), at + step
        assert (head.size, head.root) == (size, plain(leaves))
        assert len(head.peaks) == size.bit_count()
