"""A headless Chromium for tests, screenshots and measurements: the system's, else the one that playwright brought."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

NAMES = ("chromium-headless-shell", "chrome-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""The shell first: it draws the same pages in a quarter of the time."""


class NoChromium(Exception):
    """There is none that starts; the text says why."""


@contextlib.contextmanager
def running_chromium(*switches: str) -> Iterator[Any]:
    """A browser for the block, started with these switches too. Raises `NoChromium`."""
    try:
        from playwright import sync_api
    except ImportError:
        raise NoChromium("playwright is not installed") from None
    path = next(filter(None, map(shutil.which, NAMES)), None)
    with sync_api.sync_playwright() as playwright:
        try:
            found = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", *switches])
        except sync_api.Error as error:
            raise NoChromium(f"no Chromium to be started: {str(error).splitlines()[0]}") from None
        yield found
        found.close()
