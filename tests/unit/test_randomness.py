"""Random bytes by the page: each byte is handed out once, in every thread and after every fork."""

from __future__ import annotations

import os

from sentinel.store import ids
from sentinel.store.ids import random_bytes
from tests.support.harness import at_once


def test_no_bytes_are_handed_out_twice() -> None:
    taken = at_once([lambda: [random_bytes(16) for _ in range(500)] for _ in range(16)], seconds=20)
    found = [one for batch in taken for one in batch]
    assert len(set(found)) == len(found) == 8000
    assert {len(one) for one in found} == {16}


def test_a_forked_process_has_bytes_of_its_own() -> None:
    random_bytes(1)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, random_bytes(64))
        os._exit(0)
    mine = random_bytes(64)
    os.waitpid(child, 0)
    assert os.read(reader, 64) != mine
    os.close(reader)
    os.close(writer)


def test_the_check_of_forks_sees_a_page_that_is_shared() -> None:
    shared = ids._Page.__new__(ids._Page)
    shared.reset()
    shared.take(1)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, shared.take(64))
        os._exit(0)
    mine = shared.take(64)
    os.waitpid(child, 0)
    assert os.read(reader, 64) == mine
    os.close(reader)
    os.close(writer)
