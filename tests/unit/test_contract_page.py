"""docs/CONTRACT.md says what the code does, where that can be tried from its text."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ops_console.board import stream
from sentinel.authority.switches import CanaryTooWide, GateRefused
from sentinel.core.errors import InvalidInput, PasswordChangeRequired, TooManyOpenPermits, TooManyOpenQuestions
from sentinel.core.operation import IDENTIFIER_PARAMS, MAX_IDENTIFIER, MAX_KEY, MAX_TEXT, build_operation
from sentinel.platform.http.problems import STATUSES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "CONTRACT.md").read_text()


def digest(params: str) -> str:
    return build_operation(idempotency_key="k", agent_id="a", action="refund.create", params=json.loads(params)).digest


def test_the_spellings_that_the_page_calls_one_operation_are_one() -> None:
    (paragraph,) = re.findall(r"\*\*One operation per key\.\*\*.*?\n\n", PAGE, re.DOTALL)
    spelled = re.findall(r"`(\{.*?\})`", paragraph)
    assert len(spelled) == 2
    assert len({digest(params) for params in spelled}) == 1


def test_the_params_that_the_page_says_are_refused_are() -> None:
    (row,) = re.findall(r"\| Money \| .*", PAGE)
    (params,) = re.findall(r"params `(\{.*?\})`", row)
    with pytest.raises(InvalidInput) as refused:
        digest(params)
    assert refused.value.errors == {"params.currency": "is required next to amount"}


def test_the_codes_of_every_refusal_are_on_the_page() -> None:
    (row,) = re.findall(r"\| Codes \| .*", PAGE)
    kinds = (*STATUSES, TooManyOpenPermits, TooManyOpenQuestions, PasswordChangeRequired, CanaryTooWide, GateRefused)
    assert {kind.code for kind in kinds} - set(re.findall(r"`([a-z-]+)`", row)) == set()


def test_the_codes_of_the_other_protocols_are_on_their_page() -> None:
    raised: set[str] = set()
    for name, call in (("aap", "AapConflict"), ("access_requests", "_Refusal"), ("access_requests", "_denied")):
        source = (ROOT / "sentinel" / "authority" / "api" / f"{name}.py").read_text()
        found = re.findall(rf'{call}\(\s*"([a-z_]+)"', source)
        assert found, call
        raised.update(found)
    assert raised - set(re.findall(r"`([a-z_]+)`", (ROOT / "docs" / "wires.md").read_text())) == set()


def test_the_page_names_the_params_that_are_identifiers() -> None:
    (paragraph,) = re.findall(r"\*\*Params\.\*\*.*?\n\n", PAGE, re.DOTALL)
    assert IDENTIFIER_PARAMS <= set(re.findall(r"`([a-z_]+)`", paragraph))
    assert f"at most {MAX_TEXT:,} characters" in paragraph and f"1 to {MAX_KEY} printable" in paragraph
    assert f"at most {MAX_IDENTIFIER} characters" in paragraph


def test_each_named_event_of_the_public_stream_is_on_the_page() -> None:
    (row,) = re.findall(r"\| GET `/ops/api/live/stream` \| .*", PAGE)
    named = set(re.findall(r"event: ([a-z-]+)", Path(stream.__file__).read_text()))
    assert named == {"tenant", "status", "left-out", "anew"}
    assert named <= set(re.findall(r"`([a-z-]+)`", row))
