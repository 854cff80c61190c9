"""The documented table of settings, made from the fields themselves: `python -m sentinel.settings_table`.

Each program's settings are a dataclass whose fields carry the variable's name and meaning, so that the table cannot say
anything else than the program does.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

_HEAD = """# Settings

Environment variables, all optional unless the text says otherwise. Made from the code by `make docs`; edit the fields'
texts there. Whatever is missing, malformed or unsafe is named at start, all of it at once, and nothing runs.
"""


def programs() -> list[tuple[str, type[Any]]]:
    """(title, settings class) of every program, in the order in which one meets them."""
    from ops_console.settings import ConsoleSettings
    from sentinel.settings import Settings
    from worker.order_review.settings import OrderReviewSettings
    from worker.settings import WorkerSettings

    return [
        ("Authority", Settings), ("Refund worker", WorkerSettings), ("Order intake", OrderReviewSettings),
        ("Console and public board", ConsoleSettings),
    ]  # fmt: skip


_EMBEDDED = """
## Embedded PostgreSQL

| Variable | Default | Meaning |
|---|---|---|
| `SENTINEL_PG_BIN` | – | Folder with `postgres` and `initdb` to use instead of the ones found. |
"""


def render() -> str:
    """The whole document as Markdown."""
    return _HEAD + "".join(f"\n## {title}\n\n{_table(kind)}" for title, kind in programs()) + _EMBEDDED


def _table(kind: type[Any]) -> str:
    rows = [
        f"| `{field.metadata['env']}` | {_default(field.default)} | {_sentence(field.metadata['help'])} |\n"
        for field in dataclasses.fields(kind)
    ]
    return "| Variable | Default | Meaning |\n|---|---|---|\n" + "".join(rows)


def _default(value: Any) -> str:
    if isinstance(value, Path) and value.is_absolute():
        return "the shipped ones"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`" if value not in (None, "", ()) else "–"


def _sentence(text: str) -> str:
    # A first word that is a value ("debug, info …", "name:action") stays as it is typed.
    first = text.split(" ", 1)[0]
    text = text[0].upper() + text[1:] if first.rstrip(";").isalpha() else text
    return text.rstrip(".").replace("|", "\\|") + "."


if __name__ == "__main__":
    import sys

    sys.stdout.write(render())
