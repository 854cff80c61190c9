"""Every field of a settings class is read from its variable; what is malformed is told by variable and leaves the default."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from sentinel.platform.settings import COUNT, PORT, given, read_fields, setting


@dataclass(frozen=True)
class Example:
    text: str = setting("EXAMPLE_TEXT", "A text.", "none")
    absent: str | None = setting("EXAMPLE_ABSENT", "A text that may be absent.")
    count: int = setting("EXAMPLE_COUNT", "A count.", 3, valid=COUNT)
    port: int = setting("EXAMPLE_PORT", "A port.", 80, valid=PORT)
    seconds: float = setting("EXAMPLE_SECONDS", "A time.", 1.5)
    is_on: bool = setting("EXAMPLE_ON", "A switch.", False)
    folder: Path = setting("EXAMPLE_FOLDER", "A folder.", Path("var"))
    tenant_id: uuid.UUID | None = setting("EXAMPLE_TENANT", "An id.")
    secrets: tuple[str, ...] = setting("EXAMPLE_SECRETS", "A list.", ())


DEFAULTS = {field.name: field.default for field in fields(Example)}


def test_what_is_not_set_or_empty_has_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_fields(Example) == (DEFAULTS, {})
    for field in fields(Example):
        monkeypatch.setenv(field.metadata["env"], " ")
    assert read_fields(Example) == (DEFAULTS, {})


def test_each_kind_of_field_is_read_without_blanks_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tenant = uuid.uuid4()
    said = {"TEXT": "a b", "ABSENT": "c", "COUNT": "7", "PORT": "8080", "SECONDS": "0.5", "ON": "1", "FOLDER": "/srv/x",
            "TENANT": str(tenant), "SECRETS": "one, two,, "}  # fmt: skip
    for name, value in said.items():
        monkeypatch.setenv(f"EXAMPLE_{name}", f" {value} ")
    assert read_fields(Example) == (
        {"text": "a b", "absent": "c", "count": 7, "port": 8080, "seconds": 0.5, "is_on": True, "folder": Path("/srv/x"),
         "tenant_id": tenant, "secrets": ("one", "two")}, {},
    )  # fmt: skip


def test_all_that_is_malformed_is_told_and_leaves_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"COUNT": "0", "PORT": "65536", "SECONDS": "nan", "ON": "perhaps", "TENANT": "shop"}
    for name, value in said.items():
        monkeypatch.setenv(f"EXAMPLE_{name}", value)
    values, bad = read_fields(Example)
    assert values == DEFAULTS and bad.keys() == {f"EXAMPLE_{name}" for name in said}
    assert not [text for text in bad.values() if "perhaps" in text or "shop" in text], "a value may be a secret"


def test_a_field_of_a_kind_that_nothing_reads_is_refused() -> None:
    @dataclass
    class Unread:
        named: dict[str, str] = setting("EXAMPLE_NAMED", "Nothing reads such a text.")

    with pytest.raises(KeyError, match="dict"):
        read_fields(Unread)


def test_an_option_that_was_not_given_leaves_the_setting() -> None:
    assert given({"port": None, "text": "", "is_on": False}) == {"text": "", "is_on": False}
