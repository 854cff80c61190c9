"""The order policy's cases would notice a number or a rule that is off."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sentinel.platform.resources import policies_dir
from sentinel.policy.cases import run_cases


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The order policy alone, with its cases."""
    (tmp_path / "cases").mkdir()
    for name in ("order_fraud.yaml", "cases/order_fraud.yaml"):
        shutil.copy(policies_dir() / name, tmp_path / name)
    return tmp_path


def test_its_cases_pass_and_touch_every_rule(copy: Path) -> None:
    report = run_cases(copy)
    assert report.passed
    assert report.never_matched == ()


@pytest.mark.parametrize(
    "old, new",
    [
        ('USD: "2000.00"', 'USD: "2000.01"'),
        ('USD: "2000.00"', 'USD: "1999.99"'),
        ('EUR: "2000.00"', 'EUR: "2000.01"'),
        ('GBP: "2000.00"', 'GBP: "1999.99"'),
        ("    then: DENY", "    then: APPROVAL_REQUIRED"),
        ('band == "high"', 'band == "hig"'),
        ('!(band in ["low", "high"])', 'band == "medium"'),
        ('!(band in ["low", "high"])', 'band == "unknown"'),
        ("amount_minor > numbers", "amount_minor >= numbers"),
        ("amount_minor <= numbers", "amount_minor < numbers"),
        ("when: present.nothing_to_pay && nothing_to_pay", "when: present.nothing_to_pay && !nothing_to_pay"),
        ('"!(present.nothing_to_pay && nothing_to_pay) && !currency_covered"', '"present.amount && !currency_covered"'),
        ("once_per: {order: params.order_key}", "# never mind"),
        ("people: 1 ", "people: 2 "),
    ],
)
def test_a_policy_that_is_off_turns_its_cases_red(copy: Path, old: str, new: str) -> None:
    path = copy / "order_fraud.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    assert not run_cases(copy).passed
