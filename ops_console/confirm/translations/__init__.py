"""The texts of the customer's pages, by language: one module per language, each with every key, which a test checks.

`{amount}`, `{until}` and `{moment}` are the only placeholders.
"""

from collections.abc import Mapping

from ops_console.confirm.translations import de, en

CATALOGUES: Mapping[str, Mapping[str, str]] = {"en": en.TEXTS, "de": de.TEXTS}
