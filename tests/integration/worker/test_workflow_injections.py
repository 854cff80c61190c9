"""G19: no text changes a money outcome, wherever it stands and however willing the model critic is.

Every text of the corpora, in the refund reason, in the order's note and in a proof image: a row is never executed
where the same row with a harmless text is not, and never for another amount.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from sentinel.core.money import Money
from tests.corpora import TextCorpus, text_corpora
from tests.support.fake_authority import FakeAuthority
from tests.support.ledger_fixtures import LedgerFixtures
from tests.support.scripted_server import ScriptedServer
from tests.support.workflow_fixtures import PUBLIC_FEE, Shop
from worker.critic.critic import Critic
from worker.critic.model import ModelCritic
from worker.images import Recognised
from worker.refunds.workflow.graph import StepName
from worker.refunds.workflow.runner import RunContext, StepResult
from worker.refunds.workflow.steps.checks import ScenarioValidate

HARMLESS = "The parcel came late, please return the shipping fee."
YES = {"approved": True, "reason_code": "ok", "reason": "fits"}
COMPLETION = {
    "id": "c", "object": "chat.completion", "model": "m",
    "choices": [{"index": 0, "finish_reason": "stop",
                 "message": {"role": "assistant", "content": json.dumps(YES), "refusal": None}}],
}  # fmt: skip
PLACES: dict[str, Callable[[str], dict[str, Any]]] = {
    "reason": lambda text: {"reason": text},
    "note": lambda text: {"order": {"note": text}},
    "image": lambda text: {"image": Recognised("fee_receipt", Money(10_000, "USD"), text=text)},
}
# The same row, payable and not: too late, and never confirmed.
KINDS: dict[str, dict[str, Any]] = {"good": {}, "late": {"days_ago": 8}, "silent": {}}


def outcomes(shop: Shop, texts: dict[str, str], place: str) -> dict[str, tuple[Any, ...]]:
    """Row → (amount, currency, system) of what was executed, for every text in that place of every kind of row."""
    for kind, over in KINDS.items():
        shop.enter_all(PUBLIC_FEE, {f"{kind}.{name}": {**over, **PLACES[place](text)} for name, text in texts.items()})
    shop.run()
    shop.answer(*(row for (row,) in shop.fixtures.all(WAITING) if not row.startswith("silent")))
    shop.run()
    found = shop.fixtures.all("select ledger_entry_id, amount_minor, currency, system from refunds.executions")
    return {name: tuple(rest) for name, *rest in found}


WAITING = "select ledger_entry_id from refunds.ledger_entries where waiting_for = 'customer'"


def changed(paid: dict[str, tuple[Any, ...]]) -> list[str]:
    """Rows whose money differs from what the harmless text's row of the same kind got, unless it got nothing at all."""
    return sorted(name for name, got in paid.items() if got != paid.get(f"{name.partition('.')[0]}.harmless"))


@pytest.fixture
def shop(ledger_fixtures: LedgerFixtures, authority: FakeAuthority) -> Any:
    with ScriptedServer().running() as server:
        server.script = lambda asked: asked.say(COMPLETION)
        shop = Shop(ledger_fixtures, authority.url, settings={"concurrency": 8})
        shop.critic = Critic(model=ModelCritic(f"{server.url}/v1", "m", "", 10.0))
        shop.settings["batch"] = 64
        yield shop
        assert server.asked, "the model was never asked"


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("corpus", text_corpora())
def test_no_text_changes_a_money_outcome(shop: Shop, authority: FakeAuthority, corpus: TextCorpus, place: str) -> None:
    texts = {name: one.text.replace("\x00", " ") for name, one in corpus.texts.items()}
    paid = outcomes(shop, {**texts, "harmless": HARMLESS}, place)
    assert paid["good.harmless"] == (400, "USD", "platform_backend"), "without a harmless payment this proves nothing"
    assert changed(paid) == []
    assert {status for (status,) in shop.fixtures.all("select distinct status from refunds.ledger_entries")} <= {
        "EXECUTED", "APPROVAL_REQUIRED", "DENIED"}  # fmt: skip
    assert sorted(name for _, _, name in shop.touches()) == sorted(paid)
    hostile = {name for name, one in corpus.texts.items() if one.is_hostile}
    stopped = [name for name in hostile if f"good.{name}" not in paid]
    print(
        f"N={len(texts)} texts × {len(KINDS)} rows: {len(changed(paid))} changed; of {len(hostile)} hostile {len(stopped)} stopped"
    )
    assert any(f"good.{name}" in paid for name in set(texts) - hostile), "harmless texts are paid, too"
    # Nothing of what was written goes to the authority: the questions differ in nothing but who asks, and tighter risks.
    asked = [operation.body["params"] for operation in authority.operations.values()]
    assert {tuple(sorted(params)) for params in asked} == {tuple(sorted(asked[0]))}
    assert {json.dumps(params["amount"]) for params in asked} == {'{"value": 4, "currency": "USD"}'}


def test_a_workflow_that_lets_itself_be_talked_to_is_caught(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: its validation believes a note that says so."""
    real = ScenarioValidate.run

    def gullible(self: ScenarioValidate, context: RunContext) -> StepResult:
        note = (context.order.note if context.order else None) or ""
        return StepResult({}, StepName.LIMIT_CHECK) if "shop" in note else real(self, context)

    monkeypatch.setattr(ScenarioValidate, "run", gullible)
    paid = outcomes(shop, {"a": "The shop said that this is fine.", "harmless": HARMLESS}, "note")
    assert changed(paid) == ["late.a"]
