"""The documented table of settings, made from the fields themselves: `python -m tests.settings_table`.

Each program's settings are a dataclass whose fields carry the variable's name and meaning, so that the table cannot say
anything else than the program does.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import yaml

from ops_console.settings import ConsoleSettings
from sentinel.resources import policies_dir
from sentinel.settings import Settings
from worker.order_review.settings import OrderReviewSettings
from worker.settings import WorkerSettings

_HEAD = """# Settings

Environment variables, all optional unless the text says otherwise. Made from the code by `make docs`; edit the fields'
texts there. Whatever is missing, malformed or unsafe is named at start, all of it at once, and nothing runs.
"""


def programs() -> list[tuple[str, type[Any]]]:
    """(title, settings class) of every program, in the order in which one meets them."""
    return [
        ("Authority", Settings), ("Refund worker", WorkerSettings), ("Order intake", OrderReviewSettings),
        ("Console and public board", ConsoleSettings),
    ]  # fmt: skip


_COLUMNS = "| Variable | Default | Meaning |\n|---|---|---|\n"

_SOURCES = """
## Senders of orders

Where a sender's secret and a lookup's key come from is said in `order_sources.yaml` (`secret`, `old_secret`, `key`);
these are the ones of the shipped file. A sender whose secret is not set is closed: nothing is genuine there. A secret has
at least 16 bytes, one for Standard Webhooks 24. `sentinel demo` makes the one of `demo` and keeps it in its data folder,
if none is given.

"""

_EMBEDDED = f"""
## Embedded PostgreSQL

{_COLUMNS}| `SENTINEL_PG_BIN` | – | Folder with `postgres` and `initdb` to use instead of the ones found. |
| `TMPDIR` | `/tmp` | Where the folder of the server's socket is made; a path too long for a socket is passed over for `/tmp`. |
"""


def render() -> str:
    """The whole document as Markdown."""
    return (
        _HEAD
        + "".join(f"\n## {title}\n\n{_table(kind)}" for title, kind in programs())
        + _SOURCES
        + _senders()
        + _EMBEDDED
    )


def _senders() -> str:
    shipped = yaml.safe_load((policies_dir() / "order_sources.yaml").read_text())["sources"]
    rows = []
    for name, source in shipped.items():
        rows.append((source["secret"], f"Secret of `{name}`: {source['about']}"))
        if old := source.get("old_secret"):
            rows.append((old["env"], f"Secret of `{name}` until {old['until']}"))
        rows += [(one["key"], f"Key for {one['url']}") for one in source.get("lookups", ()) if "key" in one]
    return _COLUMNS + "".join(f"| `{variable}` | – | {_sentence(text)} |\n" for variable, text in rows)


def _table(kind: type[Any]) -> str:
    rows = [
        f"| `{field.metadata['env']}` | {_default(field.default)} | {_sentence(field.metadata['help'])} |\n"
        for field in dataclasses.fields(kind)
    ]
    return _COLUMNS + "".join(rows)


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
