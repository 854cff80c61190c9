"""What the customer's pages say, by language: one module per language, each with every key. A test holds them equal.

Texts hold `{amount}`, `{until}` and `{moment}` where values go; nothing else is put into them.
"""

from collections.abc import Mapping

from ops_console.confirm.translations import de, en

CATALOGUES: Mapping[str, Mapping[str, str]] = {"en": en.TEXTS, "de": de.TEXTS}
