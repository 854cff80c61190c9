"""Each page on desktop and phone, light and dark: it fits, complains of nothing, and axe finds nothing serious."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import DESKTOP, PHONE, People
from tests.browser.place import Place
from tests.browser.watch import Watch

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.xdist_group("browser")]
AXE = (Path(__file__).parent / "axe-4.14.1" / "axe.min.js").read_text()
PUBLIC = ("sign in", "live", "widget", "verify", "proof", "card")
PAGES = (
    *PUBLIC, "overview", "approvals", "decided", "approval", "batch", "ledger", "ledger entry", "orders", "order", "policies",
    "policy", "cases", "switch", "halts", "in doubt", "doubt", "events", "keys", "operators", "operator", "account", "prove",
    "nothing",
)  # fmt: skip
RUN_AXE = """async (rules) => {
  const { violations } = await axe.run(document, { resultTypes: ["violations"], ...(rules && { runOnly: rules }) });
  return violations.filter((one) => ["serious", "critical"].includes(one.impact)).flatMap((one) =>
    one.nodes.slice(0, 3).map((node) => `${one.id}: ${node.target.join(" ")}: ${node.any.concat(node.all).map((check) => check.message).join("; ")}`));
}"""
OF_COLOURS = ["color-contrast", "link-in-text-block"]
"""The rules of axe for which colours count."""
AS_BEFORE = """() => {
  const before = window.stands;
  window.stands = document.documentElement.outerHTML + [...document.querySelectorAll("*")].map((one) => {
    const { x, y, width, height } = one.getBoundingClientRect(), { display, visibility, overflow } = getComputedStyle(one);
    return [x, y, width, height, display, visibility, overflow];
  }).join();
  return window.stands === before;
}"""
"""Whether nothing but colours can be otherwise than when it was asked last."""
WIDER = """() => {
  const most = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= most) return [];
  const within = (one) => { for (let at = one.parentElement; at; at = at.parentElement)
    if (getComputedStyle(at).overflowX !== "visible" && at !== document.body && at !== document.documentElement) return true; };
  return [...document.querySelectorAll("body *")].filter((one) => one.getBoundingClientRect().right > most + 1 && !within(one))
    .slice(0, 5).map((one) => `${one.tagName}.${one.className} reaches ${Math.round(one.getBoundingClientRect().right)} of ${most}`)
    .concat(`scrolls to ${document.documentElement.scrollWidth} of ${most}`);
}"""

# On a phone: what a thumb cannot hit, and values of a row that fell among the labels.
CLUMSY = """() => {
  const seen = (one) => one.getBoundingClientRect().width > 0;
  const low = [...document.querySelectorAll("main summary")].filter((one) => seen(one) && one.getBoundingClientRect().height < 24)
    .map((one) => `${one.innerText} is ${one.getBoundingClientRect().height} px high`);
  const astray = [...document.querySelectorAll("table.rows:not(.compact, .live) td[data-label] > :not(.hidden)")]
    .filter((one) => seen(one) && one.getBoundingClientRect().left < one.parentElement.getBoundingClientRect().left + 140)
    .map((one) => `${one.innerText} stands among the labels`);
  return [...low, ...astray].slice(0, 5);
}"""


@pytest.fixture(scope="module")
def readers(chromium: Any, place: Place) -> Iterator[tuple[Watch, Any, Any]]:
    """Who watches, and two pages that stay open, each of which reads one page after the other: a visitor's, and an admin's."""
    watch = Watch(place.url, place.board)
    people = People(chromium, place, watch)
    yield watch, people.visitor(), people.operator("admin", path="")
    people.close()


def faults(page: Any) -> list[str]:
    """What is wrong with the page on each screen and scheme."""
    found = []
    page.evaluate(AXE)
    for screen, size in (("desktop", DESKTOP), ("phone", PHONE)):
        page.set_viewport_size(size)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            page.wait_for_timeout(50)
            rules = OF_COLOURS if page.evaluate(AS_BEFORE) else None
            found += [f"{screen} {scheme}: {text}" for text in page.evaluate(RUN_AXE, rules)]
        found += [f"{screen}: {text}" for text in page.evaluate(WIDER)]
    found += page.evaluate(CLUMSY)
    return found


@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_complains_of_nothing_and_is_accessible(
    name: str, readers: tuple[Watch, Any, Any], place: Place
) -> None:
    watch, visitor, admin = readers
    page = visitor if name in PUBLIC else admin
    watch.forget()
    if name == "nothing":
        watch.expect("status 404")
    page.set_viewport_size(DESKTOP)
    page.emulate_media(color_scheme="light", reduced_motion="no-preference")
    answer = page.goto(place.paths[name])
    assert answer.status == (404 if name == "nothing" else 200)
    page.wait_for_timeout(300)
    before = watch.unexpected()
    assert (before, faults(page)) == ([], [])
    page.goto("about:blank")  # what a page says as it is left is still its own
    assert watch.unexpected() == []


def test_every_page_that_can_be_looked_at_is_looked_at(place: Place) -> None:
    assert set(PAGES) == place.paths.keys()


def test_dark_is_dark_and_light_is_light(people: People, place: Place) -> None:
    page = people.operator("admin", path="")
    for name in ("overview", "live", "widget", "card"):
        page.goto(place.paths[name])
        shades = []
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            shown = page.evaluate(
                "getComputedStyle(document.body).backgroundColor + getComputedStyle(document.documentElement).backgroundColor"
            )
            shades.append((shown, hashlib.sha256(page.screenshot()).hexdigest()))
        assert shades[0][0] != shades[1][0], name
        assert shades[0][1] != shades[1][1], name


def test_the_mutant_with_an_inline_script_and_a_foreign_picture_is_seen(
    people: People, place: Place, watch: Watch
) -> None:
    page = people.visitor()
    page.route("**/live", lambda route: route.fulfill(response=route.fetch(), body=route.fetch().text().replace(
        "<main", "<script>window.evil = 1</script><img alt='' src='http://elsewhere.example/x.png'><b hidden><input></b><input><main")))  # fmt: skip
    page.goto("/live")
    told, wanted = "", ("policy violated: script-src", "policy violated: img-src")
    for _ in range(600):  # the browser tells of it in its next turn
        page.wait_for_timeout(100)
        told += " ".join(watch.unexpected())
        if all(one in told for one in wanted):
            break
    assert [one for one in wanted if one not in told] == []
    assert any("label" in text for text in faults(page))
    page.close()  # a page that is left says more of what its policy refuses
    watch.unexpected()
