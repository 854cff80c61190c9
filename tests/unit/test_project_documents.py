"""The checks of documents and the count of journeys tell what they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import FrameType

import pytest

from sentinel.core.money import parse_money
from tests.journeys import Tracer, is_continued
from tests.support.links import broken_links


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(
        "[good](docs/a.md#the-first-rule) [top](#here) [web](https://host.example/)\n\n# Here\n"
    )
    (tmp_path / "sentinel" / "core").mkdir(parents=True)
    (tmp_path / "sentinel" / "core" / "money.py").touch()
    (tmp_path / "docs" / "a.md").write_text(
        "## The first `rule`\n\n`docs/a.md` `sentinel/core/money.py` `core/money.py` `money.py` `sql/NNNN_new.sql`\n"
    )
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    return tmp_path


def checked(pages: Path) -> list[str]:
    subprocess.run(["git", "-C", pages, "add", "-A"], check=True)
    return broken_links(pages)


def test_links_to_files_and_headings_that_are_there_are_well(pages: Path) -> None:
    assert checked(pages) == []


@pytest.mark.parametrize(
    ("text", "broken"),
    [("[x](b.md)", "b.md"), ("[x](../README.md#there)", "../README.md#there"), ("[x](#there)", "there"),
     ("`sentinel/core/mony.py`", "sentinel/core/mony.py"), ("`core/mony.py`", "core/mony.py"), ("`mony.py`", "mony.py"),
     ("`ney.py`", "ney.py"), ("`mony.sql`", "mony.sql")],
)  # fmt: skip
def test_what_leads_nowhere_is_named_with_its_page(pages: Path, text: str, broken: str) -> None:
    (pages / "docs" / "bad.md").write_text(text)
    assert checked(pages) == [f"docs/bad.md: {broken}"]


def test_decisions_may_name_files_of_their_time(pages: Path) -> None:
    (pages / "docs" / "decisions").mkdir()
    (pages / "docs" / "decisions" / "0001.md").write_text("`sentinel/old.py`")
    assert checked(pages) == []


def test_a_call_is_counted_by_its_file_and_only_while_counting() -> None:
    tracer = Tracer()
    before = sys.getprofile()
    sys.setprofile(tracer.event)
    try:
        parse_money("1", "USD")
        with tracer.counting() as passed:
            parse_money("1", "USD")
        parse_money("1", "USD")
    finally:
        sys.setprofile(before)
    assert set(passed.files) == {"sentinel/core/money.py"}
    assert passed.moves == 1, "from a test into the file; within it nothing moves"


def test_continuing_a_generator_is_no_call() -> None:
    def numbers():  # type: ignore[no-untyped-def]
        yield 1
        yield 2

    seen: list[bool] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is numbers.__code__:
            seen.append(is_continued(frame))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        assert list(numbers()) == [1, 2]
    finally:
        sys.setprofile(before)
    assert seen.count(False) == 1 and seen.count(True) >= 2
