"""Permit tokens: the same for the same permit, worthless for anything else, good through a rotation of secrets."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.core.canonical import sha256_hex
from sentinel.core.signing import PermitSigner, PermitSlip

OLD, NEW = "old-secret-0123456789abcdefghijkl", "new-secret-0123456789abcdefghijkl"
TENANT, PERMIT, DIGEST = uuid.UUID(int=1), uuid.UUID(int=2), sha256_hex("operation")


def test_a_token_says_what_it_was_issued_for_and_is_the_same_every_time() -> None:
    signer = PermitSigner([OLD])
    token = signer.issue(TENANT, PERMIT, DIGEST)
    assert signer.issue(TENANT, PERMIT, DIGEST) == token
    assert signer.read(TENANT, token) == PermitSlip(PERMIT, DIGEST)
    assert token.isascii()
    assert len(token) <= 512


@given(place=st.integers(0, 200), other=st.sampled_from("ABCxyz019-_."))
def test_any_other_character_makes_it_worthless(place: int, other: str) -> None:
    signer = PermitSigner([OLD])
    token = signer.issue(TENANT, PERMIT, DIGEST)
    place %= len(token)
    changed = token[:place] + other + token[place + 1 :]
    assert (signer.read(TENANT, changed) is not None) == (changed == token)


def test_another_base64_spelling_of_the_same_bytes_is_no_token() -> None:
    signer = PermitSigner([OLD])
    head, _, signature = signer.issue(TENANT, PERMIT, DIGEST).partition(".")
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    loose = (
        signature[:-1] + alphabet[alphabet.index(signature[-1]) ^ 1]
    )  # the last character has two bits that mean nothing
    for spelling in (
        f"{head}.{loose}",
        f"{head}=.{signature}",
        f"{head}.{signature}=",
        f"{head}.{signature}\n",
        f" {head}.{signature}",
    ):
        assert signer.read(TENANT, spelling) is None, spelling


@given(token=st.text(max_size=200))
def test_rubbish_is_none_and_never_an_error(token: str) -> None:
    assert PermitSigner([OLD]).read(TENANT, token) is None


def test_another_tenants_token_is_worthless() -> None:
    signer = PermitSigner([OLD])
    assert signer.read(uuid.UUID(int=9), signer.issue(TENANT, PERMIT, DIGEST)) is None


@pytest.mark.parametrize("secrets, good", [([OLD], True), ([NEW, OLD], True), ([NEW], False)])
def test_secrets_rotate_without_a_drop_and_end_with_the_old_one(secrets: list[str], good: bool) -> None:
    token = PermitSigner([OLD]).issue(TENANT, PERMIT, DIGEST)
    assert (PermitSigner(secrets).read(TENANT, token) is not None) == good
