"""Signed tokens: one spelling, one purpose, one thing they are bound to; keys rotate."""

from __future__ import annotations

import hashlib
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from itsdangerous import Signer
from itsdangerous.encoding import base64_encode

from sentinel.core.signing import Purpose, TokenSigner

OLD, NEW = "old-secret-0123456789-0123456789-ab", "new-secret-0123456789-0123456789-ab"
CHARACTERS = string.ascii_letters + string.digits + "-_"
PAYLOAD = b"0123456789abcdef"


def signer(*secrets: str, purpose: Purpose = Purpose.PERMIT, size: int = len(PAYLOAD)) -> TokenSigner:
    return TokenSigner(secrets, purpose, size=size)


def other_spellings(token: str) -> list[str]:
    """Texts that a lenient base64 reader takes for the same bytes."""
    head, _, signature = token.partition(".")
    ends = [f"{head[:-1]}{last}.{signature}" for last in CHARACTERS if last != head[-1]]
    ends += [f"{head}.{signature[:-1]}{last}" for last in CHARACTERS if last != signature[-1]]
    extra = [
        f"{head}=.{signature}",
        f"{head}==.{signature}",
        f"{head}.{signature}=",
        f"{token}\n",
        f" {token}",
        f"{token}.",
    ]
    inside = [f"{head[:5]}{odd}{head[5:]}.{signature}" for odd in ("\n", " ", "=", "é", "+", "\ud800", ".")]
    return [*ends, *extra, *inside, token.replace(".", ".."), token.replace(".", ""), token + "A", token[:-1]]


@given(st.binary(min_size=16, max_size=16), st.binary(max_size=40))
def test_a_token_is_read_back_and_is_the_same_every_time(payload: bytes, bound_to: bytes) -> None:
    token = signer(NEW).sign(payload, bound_to=bound_to)
    assert signer(NEW).read(token, bound_to=bound_to) == payload
    assert signer(NEW).sign(payload, bound_to=bound_to) == token


@given(st.binary(min_size=16, max_size=16), st.binary(max_size=40))
def test_a_token_is_the_one_that_the_library_makes_with_the_key_of_its_purpose(payload: bytes, bound_to: bytes) -> None:
    plain = Signer(NEW, salt=Purpose.PERMIT, key_derivation="hmac", digest_method=hashlib.sha256)
    signature = plain.get_signature(bound_to + payload)
    assert (
        signer(NEW, OLD).sign(payload, bound_to=bound_to) == f"{base64_encode(payload).decode()}.{signature.decode()}"
    )


def test_no_other_spelling_of_a_token_is_read() -> None:
    token = signer(NEW).sign(PAYLOAD)
    assert [one for one in other_spellings(token) if signer(NEW).read(one) is not None] == []


def test_the_library_alone_would_read_other_spellings() -> None:
    """The mutant: itsdangerous ignores the bits and characters that mean nothing."""
    loose = Signer(NEW)
    token = loose.sign("payload").decode()
    assert [one for one in other_spellings(token) if loose.validate(one.encode(errors="replace"))]


def test_a_token_is_worthless_for_another_purpose() -> None:
    for made in Purpose:
        token = signer(NEW, purpose=made).sign(PAYLOAD)
        assert [read for read in Purpose if signer(NEW, purpose=read).read(token) is not None] == [made]


def test_a_token_is_worthless_for_what_it_is_not_bound_to() -> None:
    token = signer(NEW).sign(PAYLOAD, bound_to=b"one tenant")
    assert [to for to in (b"", b"another tenant", b"one tenant") if signer(NEW).read(token, bound_to=to)] == [
        b"one tenant"
    ]


def test_a_byte_never_moves_between_payload_and_what_it_is_bound_to() -> None:
    token = signer(NEW).sign(PAYLOAD, bound_to=b"tenant")
    assert signer(NEW, size=15).read(token, bound_to=b"tenant0") is None
    assert signer(NEW).read(signer(NEW, size=15).sign(PAYLOAD[1:], bound_to=b"tenant0"), bound_to=b"tenant") is None


@pytest.mark.parametrize(
    "secrets, good", [([OLD], True), ([NEW, OLD], True), ([OLD, NEW], True), ([NEW], False), ([], False)]
)
def test_the_first_key_signs_and_all_verify(secrets: list[str], good: bool) -> None:
    token = signer(OLD, NEW).sign(PAYLOAD)
    assert token == signer(OLD).sign(PAYLOAD)
    assert (signer(*secrets).read(token) is not None) == good


def test_nothing_is_signed_without_a_key() -> None:
    with pytest.raises(ValueError, match="no secret"):
        signer().sign(PAYLOAD)
