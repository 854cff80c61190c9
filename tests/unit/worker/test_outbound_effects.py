"""One table of what an outside system's status means, for the shop and for settlement systems alike (N = 200 codes × 2 bodies)."""

from __future__ import annotations

import json
import uuid

from tests.support.canned_answers import PLACE, answering
from tests.support.effects_server import EffectsServer
from tests.support.recording_server import problem
from tests.support.shop_server import review
from tests.unit.worker.test_settlement_systems import ROW, http_system
from worker.orders.shop import HttpShop
from worker.outbound.effects import FOR_GOOD, EffectRefused, EffectResult, NoAnswer, Reply, Settled
from worker.settlement.effects import try_once
from worker.settlement.registry import HttpSystem

CODES = range(400, 600)
NOT_FOR_GOOD = (401, 403, 404, 405, 407, 408, 409, 421, 423, 424, 425, 429)
"""Refusals of the question: a key, a route, a moment, the same key under way, another server."""


def refuses(code: int, *, is_problem: bool) -> bool:
    """Whether an answer with this status refuses the effect for good."""
    return isinstance(Reply(code, is_problem, {}).not_done(), EffectRefused)


def answers(code: int, body: bytes, kind: str) -> dict[str, EffectResult]:
    """What each adapter, a shop's and a settlement system's, makes of one answer."""
    shop, effects = HttpShop(f"{PLACE}/shop"), HttpSystem("platform_backend", f"{PLACE}/effects", "k-1", 8.0)
    with answering(body, status=code, kind=kind):
        return _asked(shop, effects)


def _asked(shop: HttpShop, effects: HttpSystem) -> dict[str, EffectResult]:
    return {
        "fulfil": shop.fulfil(review(), uuid.uuid4()), "hold": shop.hold(review(), uuid.uuid4()),
        "settle": effects.settle(ROW, uuid.uuid4()),
    }  # fmt: skip


def test_every_adapter_reads_every_code_by_the_one_table() -> None:
    read = 0
    for code in CODES:
        final = refuses(code, is_problem=True)
        said = json.dumps({"title": "refused", "detail": "no"}).encode()
        found = answers(code, said, "application/problem+json")
        assert {kind: isinstance(one, EffectRefused) for kind, one in found.items()} == dict.fromkeys(
            ("fulfil", "hold", "settle"), final
        ), code
        # A page or plain JSON is a proxy's: nobody's word on the effect.
        page = answers(code, b"<html>no</html>", "text/html")
        assert all(isinstance(one, NoAnswer) for one in page.values()), code
        read += 6
    print(f"{read} answers read, 0 by another table")


def test_what_refuses_the_question_is_not_final_and_neither_is_what_nobody_has_assigned() -> None:
    final = {code for code in CODES if refuses(code, is_problem=True)}
    assert final == FOR_GOOD and not final & set(NOT_FOR_GOOD) and {400, 402, 410, 422, 451} <= final
    for code, is_problem in [
        *((code, True) for code in (*NOT_FOR_GOOD, 419, 499, 500, 503)),
        (301, False),
        (400, False),
        (422, False),
        (503, False),
    ]:
        assert not refuses(code, is_problem=is_problem) and not Reply(code, is_problem, {}).is_done
    assert all(Reply(code, False, {}).is_done for code in (200, 201))


def test_a_system_that_did_it_and_refused_is_found_out_by_the_look_after_every_code() -> None:
    """The finding: 2 of 17 refused settlements had been done."""
    with EffectsServer().canned() as effects:
        system, wrong = http_system(effects), []
        for code in sorted(FOR_GOOD):
            reference = uuid.uuid4()
            effects.faults.append(("POST", True, problem(code, "refused")))
            if not isinstance(try_once(system, ROW, reference), Settled):
                wrong.append(code)
            # The mutant believes the no: it would end a refund that was paid.
            effects.faults.append(("POST", True, problem(code, "refused")))
            assert isinstance(system.settle(ROW, uuid.uuid4()), EffectRefused)
        print(f"{len(wrong)} of {len(FOR_GOOD)} done refunds believed refused")
        assert wrong == []
        # And a refusal of which nobody can say what it did is no refusal.
        effects.faults.extend([("POST", False, problem(422)), ("GET", False, problem(503))])
        assert isinstance(try_once(system, ROW, uuid.uuid4()), NoAnswer)
