"""The declared lanes: what can be reached from where, and that the committed drawing says the same."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.ledger_fixtures import ROOT
from worker.diagrams import Diagram, ledger_states, order_lanes, refund_workflow
from worker.orders.lanes import FINAL, TRANSITIONS, LaneEvent, LaneState
from worker.orders.order import Lane, ReviewStatus

_E = LaneEvent
DENIALS = {_E.DENIED, _E.REJECTED, _E.HELD, _E.REFUND_FILED, _E.REFUND_REFUSED}
"""Events after which an order is never fulfilled."""


def reachable(
    start: LaneState, table: Mapping[tuple[LaneState, LaneEvent], LaneState] = TRANSITIONS
) -> frozenset[LaneState]:
    """Everything that can follow `start`, itself included."""
    found, edge = {start}, [start]
    while edge:
        here = edge.pop()
        for (origin, _), to in table.items():
            if origin == here and to not in found:
                found.add(to)
                edge.append(to)
    return frozenset(found)


def may_fulfil_after_denial(table: Mapping[tuple[LaneState, LaneEvent], LaneState] = TRANSITIONS) -> list[str]:
    """Ways from the high lane or from a denial to FULFILLED, named; must be empty."""
    starts = {to for (_, event), to in table.items() if event in DENIALS}
    starts |= {to for to in table.values() if to.lane is Lane.HIGH}
    return sorted(
        f"{start.lane}/{start.status}"
        for start in starts
        if any(each.status in (ReviewStatus.FULFILLED, ReviewStatus.STARTED) for each in reachable(start, table))
    )


def test_nothing_reachable_from_the_high_lane_or_a_denial_leads_to_fulfil() -> None:
    assert may_fulfil_after_denial() == []
    after_denial = {to for (_, event), to in TRANSITIONS.items() if event in DENIALS}
    high = {to for to in TRANSITIONS.values() if to.lane is Lane.HIGH}
    assert after_denial and high
    for start in after_denial | high:
        assert {each.status for each in reachable(start)} <= {
            ReviewStatus.DECIDED,
            ReviewStatus.HELD,
            ReviewStatus.REFUND_FILED,
            ReviewStatus.REFUND_REFUSED,
        }


@pytest.mark.parametrize(
    ("origin", "event", "to"),
    [
        (LaneState(Lane.HIGH, ReviewStatus.DECIDED), LaneEvent.STARTED, LaneState(Lane.HIGH, ReviewStatus.STARTED)),
        (LaneState(Lane.HIGH, ReviewStatus.HELD), LaneEvent.ALLOWED, LaneState(Lane.LOW, ReviewStatus.DECIDED)),
        (
            LaneState(Lane.MEDIUM, ReviewStatus.HELD),
            LaneEvent.FULFILLED,
            LaneState(Lane.MEDIUM, ReviewStatus.FULFILLED),
        ),
    ],
)
def test_a_table_with_such_a_way_is_found_out(origin: LaneState, event: LaneEvent, to: LaneState) -> None:
    assert may_fulfil_after_denial({**TRANSITIONS, (origin, event): to})


def test_every_standing_but_the_final_ones_leads_on_and_every_one_is_reached() -> None:
    everything = reachable(LaneState(None, ReviewStatus.RECEIVED))
    assert everything == {each for (origin, _), to in TRANSITIONS.items() for each in (origin, to)}
    assert {each.status for each in everything} == set(ReviewStatus)
    leaving = {origin for origin, _ in TRANSITIONS}
    assert {each.status for each in everything - leaving} == FINAL


@pytest.mark.parametrize(("ending", "drawn"), [("md", order_lanes().mermaid()), ("svg", order_lanes().svg())])
def test_the_committed_drawing_is_the_table(ending: str, drawn: str) -> None:
    assert (Path(ROOT) / "deploy" / f"order-lanes.{ending}").read_text(encoding="utf-8") == drawn


def test_every_standing_and_way_of_the_drawing_has_the_name_by_which_the_console_lights_it() -> None:
    def name(each: LaneState) -> str:
        return f"{each.lane or 'none'}-{each.status}"

    drawn = order_lanes().svg()
    for (start, _), to in TRANSITIONS.items():
        assert drawn.count(f'<g class="way" id="way-{name(start)}--{name(to)}">') == 1
        assert (
            drawn.count(f'<g class="at" id="at-{name(start)}">')
            == drawn.count(f'<g class="at" id="at-{name(to)}">')
            == 1
        )


LETTER, ABOVE, LINE = 7.0, 11.0, 14.0
"""Of a label, in pixels: the width of a letter, how far it stands above its line, its height."""
LABELS = re.compile(
    r'<g class="way" id="([^"]+)">.*?<text x="([\d.-]+)" y="([\d.-]+)" text-anchor="(start|middle|end)"[^>]*>([^<]+)</text>'
)
RECTANGLES = re.compile(r'<rect x="(\d+)" y="(\d+)" width="(\d+)" height="(\d+)"')


def hidden_labels(drawing: Diagram) -> list[str]:
    """The arrows whose label stands on a box: boxes are drawn over it."""
    drawn, found = drawing.svg(), []
    boxes = [tuple(map(float, each)) for each in RECTANGLES.findall(drawn)]
    for way, x, y, anchor, text in LABELS.findall(drawn):
        width, top = len(text) * LETTER, float(y) - ABOVE
        left = float(x) - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
        if any(left < bx + bw and bx < left + width and top < by + bh and by < top + LINE for bx, by, bw, bh in boxes):
            found.append(way)
    return found


@pytest.mark.parametrize(
    ("drawing", "has_words"),
    [(ledger_states(), True), (refund_workflow(), False), (order_lanes(), True)],
    ids=["ledger-states", "refund-workflow", "order-lanes"],
)
def test_no_box_of_a_drawing_hides_the_word_of_an_arrow(drawing: Diagram, has_words: bool) -> None:
    drawn = drawing.svg()
    assert len(RECTANGLES.findall(drawn)) == drawn.count("<rect") > 0
    assert len(LABELS.findall(drawn)) == (drawn.count('<g class="way"') if has_words else 0)
    assert hidden_labels(drawing) == []
