"""Confirm links: only whole, unaltered ones of ours are read, whatever secret signed them lately."""

from __future__ import annotations

import base64
import string
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.core.confirm_link import ConfirmLink, ConfirmLinks, confirmation_digest
from sentinel.core.signing import PermitSigner

OLD, NEW = "old-secret-0123456789-0123456789-ab", "new-secret-0123456789-0123456789-ab"
END = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
LINK = ConfirmLink(uuid.UUID(int=1), uuid.UUID(int=2), "sha256:" + "ab" * 32, END)
ALPHABET = string.ascii_letters + string.digits + "-_."


def test_a_token_is_read_back_as_it_was_issued() -> None:
    token = ConfirmLinks([NEW]).issue(LINK)
    assert len(token) == 142
    assert set(token) <= set(ALPHABET), "no character that a mail program or an address bar would change"
    assert ConfirmLinks([NEW]).read(token) == LINK
    assert ConfirmLinks([NEW]).issue(LINK) == token


def accepted_changes(read: object) -> list[str]:
    """Every one-character change, one insertion and one deletion at each place, and every shorter piece, that is read."""
    token = ConfirmLinks([NEW]).issue(LINK)
    others = [
        changed
        for place, old in enumerate(token)
        for changed in [
            *(token[:place] + new + token[place + 1 :] for new in (*ALPHABET, "+", "/", "=", "é", "\0", " ") if new != old),
            token[:place] + token[place + 1 :],
            token[:place] + "A" + token[place:],
            token[:place],
        ]
    ]  # fmt: skip
    return [one for one in others if read(one) is not None]  # type: ignore[operator]


def test_no_altered_token_is_read() -> None:
    assert accepted_changes(ConfirmLinks([NEW]).read) == []


def test_a_reader_that_does_not_check_the_signature_would_be_caught() -> None:
    """The mutant."""

    def careless(token: str) -> object:
        try:
            return base64.urlsafe_b64decode(token)[17:33] or None
        except ValueError:
            return None

    assert accepted_changes(careless)


@given(st.text(max_size=300))
def test_no_other_text_is_a_token(text: str) -> None:
    assert ConfirmLinks([NEW, OLD]).read(text) is None


def test_secrets_rotate_without_making_links_that_are_out_worthless() -> None:
    token = ConfirmLinks([OLD]).issue(LINK)
    assert ConfirmLinks([NEW, OLD]).read(token) == LINK
    assert ConfirmLinks([NEW, OLD]).issue(LINK) == ConfirmLinks([NEW]).issue(LINK)
    assert ConfirmLinks([NEW]).read(token) is None


def test_without_a_secret_nothing_is_issued_nor_read() -> None:
    assert ConfirmLinks([]).read(ConfirmLinks([OLD]).issue(LINK)) is None
    with pytest.raises(ValueError, match="no secret"):
        ConfirmLinks([]).issue(LINK)


def test_what_the_secret_signed_for_a_permit_is_no_link() -> None:
    permit = PermitSigner([NEW]).issue(LINK.tenant_id, LINK.confirmation_id, LINK.digest)
    assert ConfirmLinks([NEW]).read(permit) is None


def test_a_link_is_over_from_its_last_second_on() -> None:
    link = ConfirmLinks([NEW]).read(
        ConfirmLinks([NEW]).issue(
            ConfirmLink(LINK.tenant_id, LINK.confirmation_id, LINK.digest, END + timedelta(milliseconds=900))
        )
    )
    assert link is not None
    assert link.expires_at == END, "never later than the card"
    assert [link.is_over(END + timedelta(seconds=after)) for after in (-1, 0, 1)] == [False, True, True]


def test_every_field_and_the_tenant_are_in_the_digest() -> None:
    terms = {
        "tenant_id": uuid.UUID(int=1), "ledger_entry_id": "l", "refund_id": "r", "order_ref": "o", "amount_minor": 980,
        "currency": "EUR", "channel": "private", "scenario": "fee",
    }  # fmt: skip
    others = {"tenant_id": uuid.UUID(int=2), "amount_minor": 981, "order_ref": None}
    digests = [confirmation_digest(**{**terms, name: others.get(name, "other")}) for name in terms]  # type: ignore[arg-type]
    assert len({confirmation_digest(**terms), *digests}) == len(terms) + 1  # type: ignore[arg-type]
