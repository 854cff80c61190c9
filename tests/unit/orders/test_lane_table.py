"""The declared lanes: what can be reached from where, and that the committed drawing says the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.ledger_world import ROOT
from worker.order_review.drawing import MERMAID_FILE, SVG_FILE, draw_mermaid, draw_svg
from worker.order_review.lanes import (
    DENIALS,
    FINAL,
    TRANSITIONS,
    LaneEvent,
    NoSuchTransition,
    Standing,
    after,
    may_fulfil_after_denial,
    reachable,
)
from worker.order_review.model import Lane, ReviewStatus


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
        (Standing(Lane.HIGH, ReviewStatus.DECIDED), LaneEvent.STARTED, Standing(Lane.HIGH, ReviewStatus.STARTED)),
        (Standing(Lane.HIGH, ReviewStatus.HELD), LaneEvent.ALLOWED, Standing(Lane.LOW, ReviewStatus.DECIDED)),
        (Standing(Lane.MEDIUM, ReviewStatus.HELD), LaneEvent.FULFILLED, Standing(Lane.MEDIUM, ReviewStatus.FULFILLED)),
    ],
)
def test_a_table_with_such_a_way_is_found_out(origin: Standing, event: LaneEvent, to: Standing) -> None:
    assert may_fulfil_after_denial({**TRANSITIONS, (origin, event): to})


def test_every_standing_but_the_final_ones_leads_on_and_every_one_is_reached() -> None:
    everything = reachable(Standing(None, ReviewStatus.RECEIVED))
    assert everything == {each for (origin, _), to in TRANSITIONS.items() for each in (origin, to)}
    assert {each.status for each in everything} == set(ReviewStatus)
    leaving = {origin for origin, _ in TRANSITIONS}
    assert {each.status for each in everything - leaving} == FINAL


def test_what_is_not_in_the_table_is_refused() -> None:
    with pytest.raises(NoSuchTransition):
        after(Standing(Lane.HIGH, ReviewStatus.HELD), LaneEvent.STARTED)


@pytest.mark.parametrize(("file", "drawn"), [(MERMAID_FILE, draw_mermaid), (SVG_FILE, draw_svg)])
def test_the_committed_drawing_is_the_table(file: str, drawn: object) -> None:
    assert callable(drawn)
    assert (Path(ROOT) / "deploy" / file).read_text(encoding="utf-8") == drawn()


def test_every_standing_and_way_of_the_drawing_has_the_name_by_which_the_console_lights_it() -> None:
    def name(each: Standing) -> str:
        return f"{each.lane or 'none'}-{each.status}"

    drawn = draw_svg()
    for (start, _), to in TRANSITIONS.items():
        assert drawn.count(f'<g class="way" id="way-{name(start)}--{name(to)}">') == 1
        assert (
            drawn.count(f'<g class="at" id="at-{name(start)}">')
            == drawn.count(f'<g class="at" id="at-{name(to)}">')
            == 1
        )
