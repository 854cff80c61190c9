"""Pictures of every page, from a demo of their own: `make screenshots`.

Desktop and phone, light and dark, whole pages, into build/screenshots/; the few that the README shows, as much as a screen
holds, into deploy/screenshots/. `--demo FILE` takes a running demo instead, by the line that it said as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.acceptance.demos import demo_folder, running_demo
from tests.browser.chromium import running_chromium

REPO = Path(__file__).resolve().parents[2]
ALL, BEST = REPO / "build" / "screenshots", REPO / "deploy" / "screenshots"
SIZES = {"phone": {"width": 390, "height": 844}, "desktop": {"width": 1280, "height": 900}}
"""The desktop, of which the README has the overview, last: by then its drawings have something to draw."""
SHOWN = {
    "overview": "desktop", "approval": "desktop", "ledger-entry": "desktop", "live": "desktop", "card": "phone",
}  # fmt: skip
"""In the README: the page and the screen."""
PART = {"ledger-entry": ".life-and-graph", "overview": "body"}
"""Of these the part that says it all, which may be more than a screen holds."""
MOST_BYTES = 250_000
_FIXED = {
    "sign-in": "/ops/sign-in", "overview": "/ops", "approvals": "/ops/approvals", "approvals-decided": "/ops/approvals?status=decided",
    "ledger": "/ops/ledger", "orders": "/ops/orders", "policies": "/ops/policies", "policy": "/ops/policies/retail-refund",
    "policy-cases": "/ops/policies/retail-refund/cases", "switch": "/ops/policies/switches/small_refund.refund_fee",
    "halts": "/ops/halts", "in-doubt": "/ops/in-doubt", "events": "/ops/events", "keys": "/ops/keys", "operators": "/ops/operators",
    "account": "/ops/account", "prove": "/ops/account/prove", "nothing-here": "/ops/nothing-here", "live": "/live",
    "widget": "/live/widget", "verify": "/verify/",
}  # fmt: skip
_FOUND = {
    "approval": ("/ops/approvals", "td[data-label=What] a"), "ledger-entry": ("/ops/ledger?channel=private&scenario=fee", "td[data-label=Entry] a"),
    "order": ("/ops/orders?lane=medium", "a[href^='/ops/orders/']"), "operator": ("/ops/operators", "a[href^='/ops/operators/']"),
    "proof": ("/live", "#events a"),
}  # fmt: skip
"""Pages that a list leads to."""


@contextlib.contextmanager
def demo_at(file: Path | None) -> Iterator[tuple[dict[str, Any], Path]]:
    """What a demo said, and its data folder; one of our own where none is given."""
    if file is not None:
        yield json.loads(file.read_text()), file.parent / "d"
        return
    with demo_folder() as folder, running_demo(folder, within=120) as demo:
        yield demo.told, folder


def card_path(data_dir: Path, *, within: float = 120.0) -> str:
    """The path of the first confirm card that the demo's worker delivers."""
    outbox, deadline = data_dir / "outbox" / "confirmations.jsonl", time.monotonic() + within
    while time.monotonic() < deadline:
        with contextlib.suppress(FileNotFoundError):
            for line in outbox.read_text().splitlines():
                return "/confirm/" + str(json.loads(line)["link"]).partition("/confirm/")[2]
        time.sleep(0.5)
    raise SystemExit("the demo's worker delivered no confirm card")


def sign_in(page: Any, person: dict[str, str]) -> None:
    """By the form."""
    page.goto("/ops/account")
    page.get_by_label("E-mail").fill(person["email"])
    page.get_by_label("Password").fill(person["password"])
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", name="Your account").wait_for()


def fill(page: Any) -> None:
    """What the demo has none of: a halt."""
    page.goto("/ops/halts")
    page.get_by_label("Scope").select_option("scenario")
    page.get_by_label("Target").fill("fee")
    page.get_by_label("Reason").fill("the bank reports fees twice since noon")
    page.get_by_role("button", name="Halt").click()
    page.locator("p.said").first.wait_for()


def paths(page: Any) -> dict[str, str]:
    """The operators' pages and the board's: name in files → path."""
    found = dict(_FIXED)
    for name, (where, link) in _FOUND.items():
        page.goto(where)
        found[name] = page.locator(link).first.get_attribute("href")
    page.goto("/ops/approvals")
    picked = [one.get_attribute("value") for one in page.get_by_role("checkbox").all()[:3]]
    found["batch"] = "/ops/approvals/batch?" + "&".join(f"id={one}" for one in picked)
    return found


def shoot(page: Any, name: str, screen: str, scheme: str) -> None:
    """One picture of the page as it stands; those of the README also as much as the screen holds."""
    page.screenshot(path=ALL / f"{name}-{screen}-{scheme}.png", full_page=True)
    if SHOWN.get(name) == screen and (scheme == "light" or name in ("overview", "live")):
        path = BEST / f"{name}-{scheme}.png"
        if name in PART:
            box = page.locator(PART[name]).bounding_box()
            around = {"x": 0, "y": box["y"], "width": page.viewport_size["width"], "height": box["height"]}
            page.screenshot(path=path, full_page=True, clip=around)
        else:
            page.screenshot(path=path)
        if path.stat().st_size > MOST_BYTES:
            raise SystemExit(
                f"{path.name} has {path.stat().st_size} bytes; the README's pictures have {MOST_BYTES} at most"
            )


def take(browser: Any, demo: dict[str, Any], data_dir: Path) -> int:
    """All pictures of a demo; how many pages."""
    person = next(one for one in demo["operators"] if one["role"] == "admin")
    context = browser.new_context(base_url=demo["console_url"], viewport=SIZES["desktop"])
    page = context.new_page()
    sign_in(page, person)
    # The card first: it is delivered for a fee, and what is halted below are the fees.
    card = card_path(data_dir)
    fill(page)
    found = {**paths(page), "card": card}
    known = context.storage_state()
    context.close()
    for screen, size in SIZES.items():
        for scheme in ("light", "dark"):
            context = browser.new_context(
                base_url=demo["console_url"],
                viewport=size,
                color_scheme=scheme,
                storage_state=known,
                reduced_motion="reduce",
            )
            page = context.new_page()
            for name, path in found.items():
                page.goto(path)
                page.wait_for_timeout(600)
                shoot(page, name, screen, scheme)
            context.close()
    return len(found)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.browser.screenshots", description=__doc__)
    parser.add_argument("--demo", type=Path, help="the JSON line of a running demo, in a file beside its data folder d")
    options = parser.parse_args()
    for folder in (ALL, BEST):
        folder.mkdir(parents=True, exist_ok=True)
    with demo_at(options.demo) as (demo, data_dir), running_chromium() as browser:
        count = take(browser, demo, data_dir)
    print(
        f"{count} pages in {ALL.relative_to(REPO)}, {len(list(BEST.glob('*.png')))} pictures for the README in {BEST.relative_to(REPO)}"
    )


if __name__ == "__main__":
    main()
