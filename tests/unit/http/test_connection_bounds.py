"""Connections are bounded in all and by address, and who waits the longest makes room."""

from __future__ import annotations

import pytest

from sentinel.platform.serving.connection_bounds import Connections, Stage


class One:
    """A connection that remembers whether it was closed."""

    def __init__(self, bounds: Connections, network: str = "a") -> None:
        self.network, self.stage, self.is_shed = network, Stage.NEW, False
        self._bounds = bounds
        self.is_in = bounds.admit(self)

    def shed(self) -> None:
        self.is_shed = True
        self._bounds.gone(self)


def test_the_oldest_that_asks_for_nothing_makes_room() -> None:
    bounds = Connections(3, 3)
    first, second, third = (One(bounds) for _ in range(3))
    bounds.moved(first, Stage.ANSWERED)
    fourth = One(bounds)
    assert fourth.is_in
    assert [one.is_shed for one in (first, second, third, fourth)] == [False, True, False, False]
    assert len(bounds) == 3


@pytest.mark.parametrize(
    ("stages", "goes"),
    [
        ((Stage.IDLE, Stage.NEW, Stage.BODY), 1),
        ((Stage.BODY, Stage.ANSWERED, Stage.IDLE), 2),
        ((Stage.ANSWERED, Stage.BODY, Stage.ANSWERED), 1),
    ],
)
def test_before_the_first_request_goes_before_idle_and_idle_before_a_body(stages: tuple[Stage, ...], goes: int) -> None:
    bounds = Connections(3, 3)
    held = [One(bounds) for _ in stages]
    for one, stage in zip(held, stages, strict=True):
        bounds.moved(one, stage)
    assert One(bounds).is_in
    assert [one.is_shed for one in held] == [number == goes for number in range(3)]


def test_what_is_being_answered_is_never_closed_and_the_newcomer_is() -> None:
    bounds = Connections(2, 2)
    held = [One(bounds), One(bounds)]
    for one in held:
        bounds.moved(one, Stage.ANSWERED)
    assert not One(bounds).is_in
    assert not any(one.is_shed for one in held)
    bounds.gone(held[0])
    assert One(bounds).is_in


def test_an_address_that_is_full_takes_its_own_places_and_nobody_elses() -> None:
    bounds = Connections(10, 2)
    other = One(bounds, "b")
    near = [One(bounds) for _ in range(3)]
    assert [one.is_shed for one in near] == [True, False, False]
    assert not other.is_shed
    for one in near[1:]:
        bounds.moved(one, Stage.ANSWERED)
    assert not One(bounds).is_in
    assert One(bounds, "c").is_in


def test_what_has_gone_is_forgotten_whatever_is_said_of_it_later() -> None:
    bounds = Connections(2, 2)
    one = One(bounds)
    bounds.gone(one)
    bounds.gone(one)
    bounds.moved(one, Stage.IDLE)
    assert (len(bounds), bounds.waiting()) == (0, [])
