"""Which passwords are refused where one is set, and that judging one takes a bounded time."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
from marshmallow import ValidationError

from ops_console.accounts import passwords
from ops_console.accounts.passwords import EASY, hash_password, is_right, make_password
from ops_console.api.request_schemas import SignInSchema
from sentinel.core.errors import InvalidInput

COMMON = (
    "password1234", "Password2024!", "P@ssw0rd2024", "qwertyuiop12", "1q2w3e4r5t6y", "iloveyou1234", "letmeinletmein", "adminadminadmin",
    "administrator1", "welcome12345", "aaaaaaaaaaaa", "123456789012", "abcdefghijkl", "changemenow!",
    "sentinelsentinel", "haltstate2024", "x" * 256, "password" * 20,
)  # fmt: skip


@pytest.mark.parametrize("password", COMMON)
def test_a_common_password_is_refused_naming_field_and_rule(password: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        hash_password(password, field="new")
    assert refused.value.errors == {"new": EASY}


@pytest.mark.parametrize("password", ["ann.archer@example.org", "annarcher1", "Ann.Archer2024", "archerarcher"])
def test_the_owners_address_makes_no_password(password: str) -> None:
    password = password.ljust(12, "1")
    with pytest.raises(InvalidInput) as refused:
        hash_password(password, email="ann.archer@example.org")
    assert refused.value.errors == {"password": EASY}


@pytest.mark.parametrize("length", [11, 257])
def test_the_length_is_a_rule_of_its_own(length: int) -> None:
    with pytest.raises(InvalidInput) as refused:
        hash_password(("kJ4.w_vR-9sQ" * 30)[:length])
    assert refused.value.errors == {"password": "must have 12 to 256 characters"}


@pytest.mark.parametrize("character", ["\0", "\x1b", "\x7f", "\u200b", "\u202e"])
def test_no_password_has_a_character_with_which_a_sign_in_is_refused(character: str) -> None:
    """The finding: one from standard input was stored, and its owner could never sign in with it."""
    password = f"correct horse{character}battery staple"
    with pytest.raises(ValidationError):
        SignInSchema().load({"email": "ann@example.org", "password": password})
    with pytest.raises(InvalidInput) as refused:
        hash_password(password)
    assert refused.value.errors == {"password": "must not hold control, zero-width or direction-changing characters"}


@pytest.mark.parametrize(
    "password",
    [
        "correct horse battery staple",
        "grün fällt kein Tisch",
        "木漏れ日の長い散歩道を歩く人",
    ],
)
def test_what_nobody_guesses_is_kept(password: str) -> None:
    assert is_right(hash_password(password, email="ann@example.org"), password)


def test_a_password_that_is_made_is_one_that_nobody_guesses() -> None:
    for made in (make_password() for _ in range(20)):
        assert is_right(hash_password(made, email="ann@example.org"), made)


def test_no_password_takes_long_to_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "_hasher", SimpleNamespace(hash=lambda password: "hash"))
    worst = "4@8({[<369!1|70$5+72%2" * 11
    begun = time.process_time()
    hash_password(worst)
    # Judged whole it takes minutes.
    assert time.process_time() - begun < 5
