"""Facts from a file: what cannot be meant is refused with its line, its field and the rule that it breaks."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from worker.images import MAX_IMAGE_BYTES, ProofImage
from worker.refunds.facts_file import Blacklisted, Flag, read_facts
from worker.refunds.intake import Refusal
from worker.refunds.rows import OrderFacts

PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"
GOOD: dict[str, dict[str, Any]] = {
    "order": {"kind": "order", "channel": "private", "order_ref": "o-1", "account_ref": "a", "ordered_at": "2026-11-01T10:00:00Z",
              "paid": "90.00", "currency": "EUR", "shipping_fee": "4.90", "item_paid": "50", "price_now": "0", "note": "x"},
    "complaint": {"kind": "complaint", "channel": "private", "order_ref": "o-1"},
    "delay": {"kind": "delay", "channel": "private", "order_ref": "o-1", "closed": True},
    "blacklist": {"kind": "blacklist", "channel": "private", "account_ref": "a"},
    "image": {"kind": "image", "ledger_entry_id": "l-1", "content": base64.b64encode(PNG).decode()},
}  # fmt: skip


def read(*facts: Any) -> list[Any]:
    return list(read_facts("".join(json.dumps(fact) + "\n" for fact in facts), Path(".")))


def test_every_kind_of_fact_is_read_to_the_minor_unit() -> None:
    order, complaint, delay, blacklisted, image = read(*GOOD.values())
    assert isinstance(order, OrderFacts)
    assert (order.paid_minor, order.shipping_fee_minor, order.item_paid_minor, order.price_now_minor) == (
        9000,
        490,
        5000,
        0,
    )
    assert complaint == Flag("private", "o-1", "open_complaint", False)
    assert delay == Flag("private", "o-1", "delayed_shipment", True)
    assert blacklisted == Blacklisted("private", "a")
    assert isinstance(image, ProofImage) and image.content == PNG


@pytest.mark.parametrize(
    "kind, change, field, rule",
    [
        ("order", {"kind": "ordr"}, "kind", "must be one of order, complaint, delay, blacklist, image"),
        ("order", {"kind": "ordr"}, "kind", 'did you mean "order"?'),
        ("order", {"kind": None}, "kind", "must be one of"),
        ("order", {"kind": ["order"]}, "kind", "must be one of"),
        ("order", {"channel": "privat"}, "channel", 'unknown channel "privat"; did you mean "private"?'),
        ("complaint", {"channel": "marketplace"}, "channel", "known: retail, private, public"),
        ("blacklist", {"channel": "pubic"}, "channel", 'did you mean "public"?'),
        ("order", {"order_ref": None}, "order_ref", "is required"),
        ("order", {"order_ref": "o 1"}, "order_ref", ""),
        ("order", {"ordered_at": None}, "ordered_at", "is required"),
        ("order", {"ordered_at": "2026-11-01T10:00:00"}, "ordered_at", "must have a time zone"),
        ("order", {"delivered_at": "yesterday"}, "delivered_at", "must be an RFC 3339 time"),
        ("order", {"delivered_at": 5}, "delivered_at", "must be an RFC 3339 time"),
        ("order", {"paid": None}, "paid", "is required"),
        ("order", {"paid": "90.005"}, "paid", ""),
        ("order", {"paid": "-1"}, "paid", ""),
        *(("order", {"paid": text}, "paid", "plain decimal number") for text in ("", ".", "..", "00", "0.0.0", "0.")),
        ("order", {"paid": False}, "paid", "must be an integer or a decimal number"),
        ("order", {"ordered_at": "0001-01-01T00:00:00+23:59"}, "ordered_at", "must be an RFC 3339 time"),
        ("order", {"shipping_fee": "4,90"}, "shipping_fee", ""),
        ("order", {"shipping_fee": True}, "shipping_fee", ""),
        ("order", {"currency": "EURO"}, "currency", "at most 3"),
        ("order", {"currency": "eur", "paid": "0", "shipping_fee": None, "item_paid": None}, "currency", "ISO 4217"),
        ("order", {"note": "x" * 2001}, "note", "must be text of at most 2000 characters"),
        ("order", {"note": 7}, "note", "must be text"),
        ("order", {"note": "\ud800"}, "note", "half a surrogate pair"),
        ("image", {"content": None, "file": "\udc00.png"}, "file", "half a surrogate pair"),
        ("delay", {"\ud800": 1}, "row", "has a name with half a surrogate pair"),
        ("order", {"colour": "red"}, "colour", "is not a field of this kind of fact"),
        ("complaint", {"channel": None}, "channel", "is required"),
        ("delay", {"closed": "yes"}, "closed", "must be true or false"),
        ("blacklist", {"account_ref": None}, "account_ref", "is required"),
        ("image", {"content": None}, "file", "give either file, or content"),
        ("image", {"file": "a.png"}, "file", "give either file, or content"),
        ("image", {"content": "%%"}, "content", "is not base64"),
        ("image", {"content": "é"}, "content", "is not base64"),
        ("image", {"content": "R0lGODlh"}, "content", "image_unknown_type"),
        ("image", {"content": None, "file": "not/there.png"}, "file", "cannot be read"),
    ],
)  # fmt: skip
def test_a_wrong_fact_is_refused_by_line_field_and_rule(
    kind: str, change: dict[str, Any], field: str, rule: str
) -> None:
    first, refused, last = read(GOOD["blacklist"], {**GOOD[kind], **change}, GOOD["delay"])
    assert isinstance(refused, Refusal), refused
    assert (refused.line, refused.field.partition(".")[0]) == (2, field)
    assert rule in refused.rule and refused.rule
    assert not isinstance(first, Refusal) and not isinstance(last, Refusal), "the others are taken"


def test_an_image_is_a_file_of_the_folder_and_nothing_else_is_opened(tmp_path: Path) -> None:
    """A shop's export may hold a name that its customer chose."""
    folder, beside = tmp_path / "facts", tmp_path / "facts-of-others"
    for one in (folder / "below", beside):
        one.mkdir(parents=True)
        (one / "a.png").write_bytes(PNG)
    (folder / "a.png").write_bytes(PNG)
    (folder / "large.png").write_bytes(PNG + bytes(MAX_IMAGE_BYTES))
    (folder / "link.png").symlink_to(beside / "a.png")
    (folder / "round.png").symlink_to("round.png")
    os.mkfifo(folder / "pipe.png")

    def rule_of(file: str) -> Any:
        (found,) = read_facts(json.dumps({"kind": "image", "ledger_entry_id": "l-1", "file": file}), folder)
        return found.rule if isinstance(found, Refusal) else found

    for file in ("a.png", "below/a.png", "below/../a.png", str(folder / "a.png")):
        assert isinstance(rule_of(file), ProofImage), file
    for file in ("../facts-of-others/a.png", str(beside / "a.png"), "link.png", "/etc/hostname", "../nothing.png"):
        assert rule_of(file) == "must be in the folder of the facts file", file
    for file in ("pipe.png", "below", "."):
        assert rule_of(file) == "is not a regular file", file
    for file in ("round.png", "x" * 999):
        assert rule_of(file).startswith("cannot be read"), file
    assert rule_of("large.png") == "image_too_large"


@pytest.mark.parametrize("line", ["[1]", "7", "{", '{"kind": "order", "kind": "order"}'])
def test_what_is_no_object_is_refused(line: str) -> None:
    found = list(read_facts(json.dumps(GOOD["delay"]) + "\n" + line + "\n", Path(".")))
    assert isinstance(found[1], Refusal) and found[1].line == 2
