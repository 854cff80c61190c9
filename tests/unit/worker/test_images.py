"""Proof images: what is taken, and that no recogniser's failure or falsehood is taken for a reading."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.core.errors import InvalidInput
from sentinel.core.money import Money
from sentinel.platform.outbound.client import NoResponse
from sentinel.platform.outbound.failures import FailureKind
from tests.support.canned_answers import PLACE, CannedServer, answering
from tests.support.scripted_server import SLACK, ScriptedServer, deadline_for, faults, times_asked, took
from worker.images import (
    MAX_IMAGE_BYTES,
    MAX_TEXT,
    HttpRecogniser,
    ImageRefused,
    InvalidLabels,
    InvalidRecogniser,
    LabelFileRecogniser,
    NoRecogniser,
    ProofImage,
    Recognised,
    Recogniser,
    Unrecognised,
    check_image,
    proof_image,
    read_label,
    recogniser_from,
)

PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + b"\x00" * 20
JPEG = b"\xff\xd8\xff\xe0" + b"\x00" * 20
WEBP = b"RIFF\x20\x00\x00\x00WEBPVP8 " + b"\x00" * 20
LABEL = {
    "kind": "fee_receipt",
    "amount": {"value": "4.90", "currency": "USD"},
    "tracking_number": "1Z-9",
    "text": "FEE",
}
READ = Recognised("fee_receipt", Money(490, "USD"), "1Z-9", "FEE")
FAULTS = faults(json.dumps(LABEL).encode())


def image(content: bytes = PNG) -> ProofImage:
    return proof_image("entry-1", content)


# What is taken


@pytest.mark.parametrize("content, kind", [(PNG, "image/png"), (JPEG, "image/jpeg"), (WEBP, "image/webp")])
def test_an_image_is_what_its_bytes_show(content: bytes, kind: str) -> None:
    made = image(content)
    assert (made.media_type, made.sha256) == (kind, hashlib.sha256(content).hexdigest())
    assert "\\x" not in repr(made)


@pytest.mark.parametrize(
    "content, code",
    [(b"", "image_empty"), (PNG.ljust(MAX_IMAGE_BYTES + 1), "image_too_large"), (b"<svg onload=x>", "image_unknown_type"),
     (b"GIF89a" + b"\0" * 20, "image_unknown_type"), (b"\x89PNG\r\n\x1a\nrest", "image_unknown_type"), (b"%PDF-1.7", "image_unknown_type"),
     (b"RIFF\x20\x00\x00\x00WAVE", "image_unknown_type"), (b" " + PNG, "image_unknown_type"), (PNG[:15], "image_unknown_type")],
)  # fmt: skip
def test_what_is_no_image_is_refused_by_name(content: bytes, code: str) -> None:
    with pytest.raises(ImageRefused) as refused:
        check_image(content)
    assert refused.value.code == code


def test_the_largest_image_is_taken() -> None:
    assert check_image(PNG.ljust(MAX_IMAGE_BYTES)) == "image/png"


@given(st.binary(max_size=64))
def test_no_bytes_make_the_check_raise_anything_else(content: bytes) -> None:
    with suppress(ImageRefused):
        assert check_image(content).startswith("image/")


# Every recogniser


@pytest.fixture
def wire() -> Iterator[ScriptedServer]:
    """A real socket: for what breaks on the way, how long it takes and how much it is."""
    with ScriptedServer().running() as running:
        yield running


@pytest.fixture
def server() -> Iterator[CannedServer]:
    with CannedServer().running() as canned:
        yield canned


def labelled(tmp_path: Path, found: Any = None) -> LabelFileRecogniser:
    file = tmp_path / "labels.json"
    file.write_text(json.dumps({image().sha256: LABEL} if found is None else found))
    return LabelFileRecogniser(file)


@pytest.fixture(params=["labels", "http"])
def recogniser(request: pytest.FixtureRequest, tmp_path: Path, server: CannedServer) -> Recogniser:
    """Each recogniser that can read, knowing the PNG and nothing else."""
    known = image().sha256
    server.script = lambda asked: asked.say(
        LABEL if asked.method == "GET" or asked.json["sha256"] == known else {"kind": "none"}
    )
    return labelled(tmp_path) if request.param == "labels" else HttpRecogniser(server.url, "k", 60.0)


def test_a_known_picture_is_read_and_another_is_not(recogniser: Recogniser) -> None:
    assert recogniser.is_ready()
    assert recogniser.recognise(image()) == READ
    assert recogniser.recognise(image(JPEG)) == Unrecognised()


def test_without_a_recogniser_nothing_is_ready_and_nothing_is_read() -> None:
    none: Recogniser = NoRecogniser()
    assert not none.is_ready()
    assert none.recognise(image()) == Unrecognised()


BAD_LABELS: tuple[Any, ...] = (
    None, [], "fee_receipt", {}, {"kind": "gold"}, {"kind": None}, {"kind": ["other"]}, {**LABEL, "approved": True},
    {**LABEL, "amount": 4.9}, {**LABEL, "amount": {"value": "-4.90", "currency": "USD"}}, {**LABEL, "amount": {"value": 1}},
    {**LABEL, "amount": {"value": "4.901", "currency": "USD"}}, {**LABEL, "amount": {"value": 1, "currency": "XXX"}},
    {**LABEL, "amount": {"value": True, "currency": "USD"}}, {**LABEL, "text": ["a"]}, {**LABEL, "tracking_number": 5},
    {**LABEL, "tracking_number": "x" * 65}, {**LABEL, "tracking_number": "'; drop"}, {**LABEL, "tracking_number": ""},
)  # fmt: skip


@pytest.mark.parametrize("label", BAD_LABELS)
def test_a_label_with_any_fault_is_no_reading(label: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        read_label(label)
    with pytest.raises(InvalidLabels, match=image().sha256):
        labelled(tmp_path, {image().sha256: label})
    with answering(label) as asked:
        assert HttpRecogniser(PLACE, timeout_seconds=60.0).recognise(image()) == NoResponse(FailureKind.BROKEN)
    assert len(asked) == 1


@pytest.mark.parametrize("number", ["1e999999999", "1E5", "4." + "0" * 60, "-1.5"])
def test_a_number_that_would_unfold_to_gigabytes_is_no_reading(number: str) -> None:
    body = f'{{"kind": "other", "amount": {{"value": {number}, "currency": "USD"}}}}'
    with answering(body.encode()) as asked:
        found, seconds = took(lambda: HttpRecogniser(PLACE, timeout_seconds=60.0).recognise(image()))
    assert len(asked) == 1
    assert found == NoResponse(FailureKind.BROKEN)
    assert seconds < SLACK


def test_an_exact_number_with_a_fraction_is_read() -> None:
    assert read_label({"kind": "other", "amount": {"value": 5, "currency": "JPY"}}) == Recognised(
        "other", Money(5, "JPY")
    )


@pytest.mark.parametrize("fault", FAULTS)
def test_no_fault_of_the_service_is_a_reading_or_takes_longer_than_the_deadline(
    wire: ScriptedServer, fault: str
) -> None:
    wire.script, known = FAULTS[fault]
    deadline = deadline_for(known)
    found, seconds = took(lambda: HttpRecogniser(wire.url, timeout_seconds=deadline).recognise(image()))
    assert isinstance(found, NoResponse)
    assert seconds < deadline + SLACK
    assert times_asked(wire) == 1
    assert found.kind.value in (known.split("|") if known != "answered" else ["broken"])


def test_what_is_written_in_a_picture_is_bounded_and_can_be_stored() -> None:
    text = "\0\ud800" + "x" * 10_000
    found = read_label({"kind": "other", "text": text})
    assert isinstance(found, Recognised)
    assert len(found.text) == MAX_TEXT
    assert "\0" not in found.text
    found.text.encode("utf-8")


def test_the_picture_goes_out_whole_with_the_key(server: CannedServer) -> None:
    server.script = lambda asked: asked.say(LABEL)
    HttpRecogniser(server.url + "/", "k-1", 60.0).recognise(image(WEBP))
    [asked] = server.asked
    assert (asked.method, asked.path, asked.headers["authorization"]) == ("POST", "/recognise", "Bearer k-1")
    assert base64.b64decode(asked.json["content_base64"]) == WEBP
    assert (asked.json["media_type"], asked.json["sha256"]) == ("image/webp", image(WEBP).sha256)


@pytest.mark.parametrize(
    "script",
    [
        lambda asked: asked.answer(503, b""),
        lambda asked: asked.reset(),
        lambda asked: asked.answer(302, b"", Location="/ok"),
    ],
)
def test_a_service_that_does_not_say_so_is_not_ready(wire: ScriptedServer, script: Callable[[Any], None]) -> None:
    wire.script = script
    assert not HttpRecogniser(wire.url).is_ready()


# The setting


def test_a_setting_chooses_the_recogniser(tmp_path: Path) -> None:
    labelled(tmp_path)
    for setting, name in (("none", "none"), ("", "none"), (f"labels:{tmp_path / 'labels.json'}", "labels"),
                          ("http:https://ocr.example/v1", "http"), ("http://127.0.0.1:9", "http")):  # fmt: skip
        assert recogniser_from(setting).name == name


@pytest.mark.parametrize("setting", ["labels:", "labels", "http:", "http:nowhere", "ftp://x", "None", "http://u:p@h"])
def test_a_setting_that_names_none_is_refused(setting: str) -> None:
    with pytest.raises(InvalidRecogniser, match="labels:FILE"):
        recogniser_from(setting)


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"abc": {"kind": "other"}}', '{"' + "A" * 64 + '": {"kind": "other"}}', "\x00"]
)
def test_a_file_of_labels_that_cannot_be_used_is_refused_in_one_line(tmp_path: Path, content: str) -> None:
    file = tmp_path / "labels.json"
    file.write_text(content)
    with pytest.raises(InvalidLabels) as refused:
        LabelFileRecogniser(file)
    assert str(file) in str(refused.value) and "\n" not in str(refused.value)
    with pytest.raises(InvalidLabels):
        LabelFileRecogniser(tmp_path / "missing.json")
