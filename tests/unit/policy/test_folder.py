"""A folder of policies is checked whole: switches and cases too, with place and nearest known name."""

from __future__ import annotations

from pathlib import Path

import pytest
from policy_samples import POLICY

from sentinel.platform.resources import policies_dir
from sentinel.policy.errors import PolicyError
from sentinel.policy.folder import check_folder

SWITCHES = "switches:\n  a.one:\n    default: false\n    gate: fee\n    policy: sample\n    about: one\n"
CASES = """\
policy: sample
base: {action: sample.pay, params: {amount: {value: "1.00", currency: USD}}}
cases:
  - name: one
    usage: {account_day: "1.00"}
    want: {decision: ALLOW, reason: small_amount}
  - name: two
    policy: none
    want: {decision: DENY, reason: no_matching_policy}
"""


def folder(path: Path, **changed: str) -> Path:
    """A good folder, but for the files that are given."""
    (path / "cases").mkdir()
    for name, text in (
        {"sample.yaml": POLICY, "switches.yaml": SWITCHES, "cases/sample.yaml": CASES} | changed
    ).items():
        (path / name).write_text(text)
    return path


def test_the_shipped_folder_and_a_small_good_one_are_good(tmp_path: Path) -> None:
    assert check_folder(policies_dir())[1] == []
    assert check_folder(folder(tmp_path))[1] == []
    (tmp_path / "switches.yaml").unlink()
    (tmp_path / "cases" / "sample.yaml").unlink()
    assert check_folder(tmp_path)[1] == [], "what is not there is no fault"


@pytest.mark.parametrize(
    ("name", "old", "new", "line", "says"),
    [
        ("switches.yaml", "policy: sample", "policy: sampel", 5, 'did you mean "sample"?'),
        ("switches.yaml", "default: false", "defualt: false", 3, 'did you mean "default"?'),
        ("cases/sample.yaml", "policy: sample", "policy: sampl", 1, 'did you mean "sample"?'),
        ("cases/sample.yaml", "account_day", "acount_day", 5, 'did you mean "account_day"?'),
        ("cases/sample.yaml", "policy: none", "policy: nonne", 8, 'did you mean "none"?'),
        ("cases/sample.yaml", "decision: ALLOW", "decision: ALOW", 6, 'did you mean "ALLOW"?'),
        ("sample.yaml", "per: [account, currency]", "per: [account, curency]", 0, 'did you mean "currency"?'),
        ("sample.yaml", "then: DENY", "then: DENNY", 0, 'did you mean "DENY"?'),
    ],
)
def test_a_misspelt_name_in_any_file_has_its_place_and_the_nearest_known_one(
    tmp_path: Path, name: str, old: str, new: str, line: int, says: str
) -> None:
    text = {"sample.yaml": POLICY, "switches.yaml": SWITCHES, "cases/sample.yaml": CASES}[name]
    assert old in text
    _, (fault,) = check_folder(folder(tmp_path, **{name: text.replace(old, new, 1)}))
    assert fault.file.endswith(name) and fault.line == (line or fault.line) > 0
    assert says in str(fault)


def test_faults_of_several_files_are_told_together_and_names_are_held_against_good_policies_only(
    tmp_path: Path,
) -> None:
    bad = {
        "sample.yaml": POLICY.replace("then: DENY", "then: DENNY"),
        "switches.yaml": SWITCHES.replace("about", "abuot"),
    }
    library, faults = check_folder(folder(tmp_path, **bad, **{"cases/other.yml": CASES, "cases/some.YAML": CASES}))
    assert [Path(fault.file).name for fault in faults] == ["sample.yaml", "switches.yaml", "other.yml", "some.YAML"]
    assert library is None


def test_a_fault_told_as_json_is_the_same_fault_again(tmp_path: Path) -> None:
    wrong = SWITCHES.replace("policy: sample", "policy: sampel")
    library, (fault,) = check_folder(folder(tmp_path, **{"switches.yaml": wrong}))
    assert library is not None, "the policies themselves are good"
    again = PolicyError.from_json(fault.as_json())
    assert (str(again), again.explain()) == (str(fault), fault.explain())
    placeless = PolicyError("cannot be read", file="x.yaml")
    assert PolicyError.from_json(placeless.as_json()).explain() == placeless.explain()
