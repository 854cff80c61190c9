"""The file of switches: what is not clear is refused with its place, and a file that cannot be used turns nothing on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sentinel.platform.resources import policies_dir
from sentinel.policy.errors import PolicyError
from sentinel.policy.library import PolicyLibrary
from sentinel.policy.switches import FILE_NAME, SwitchFile, read_switches

GOOD = "switches:\n  a.one:\n    default: false\n    gate: fee\n    policy: p\n    about: one\n  a.two:\n    default: true\n    about: two\n"


def written(folder: Path, text: str) -> Path:
    path = folder / FILE_NAME
    path.write_text(text)
    return path


def test_the_shipped_file_has_everything_off_but_the_shops_ordinary_refund() -> None:
    found = read_switches(policies_dir() / FILE_NAME)
    assert [name for name, one in found.items() if one.default_on] == ["retail.standard"]
    scenarios = {
        "refund_fee": "fee",
        "price_diff": "price_diff",
        "compensation": "compensation",
        "defect": "defect",
        "quality": "quality",
    }
    assert {name.partition(".")[2]: one.gate for name, one in found.items() if one.gate} == scenarios
    assert found["small_refund.enabled"].gate is None and len(found) == 7


@pytest.mark.timeout(120)
def test_a_pipe_is_no_file_of_switches_and_one_beside_it_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    assert list(read_switches(written(tmp_path, GOOD))) == ["a.one", "a.two"]
    (tmp_path / FILE_NAME).unlink()
    os.mkfifo(tmp_path / FILE_NAME)
    assert "is a pipe or device" in (SwitchFile(tmp_path).declared.fault or "")


def test_every_gated_switch_names_a_shipped_policy() -> None:
    policies = {one.policy.policy_id for one in PolicyLibrary.load(policies_dir()).policies}
    assert {one.policy for one in read_switches(policies_dir() / FILE_NAME).values() if one.gate} <= policies


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("default: false", "defualt: false", 3, 'unknown key "defualt" (did you mean "default"?)'),
        ("switches:", "switchs:", 1, 'unknown key "switchs" (did you mean "switches"?)'),
        ("default: false", "default: true", 3, "turn it on with `sentinel switches on a.one`"),
        ("default: false", "default: yes", 3, "must be true or false"),
        ("default: false", 'default: "false"', 3, "must be true or false"),
        ("    default: false\n", "", 3, '"default" is missing'),
        ("    policy: p\n", "", 3, "gate and policy must be given together"),
        ("    gate: fee\n", "", 3, "gate and policy must be given together"),
        ("gate: fee", "gate: Fee!", 4, "is not a scenario's name"),
        ("a.two", "A two", 8, 'is not a name like "small_refund.refund_fee"'),
        ("a.two", "a.one", 7, 'duplicate key "a.one"'),
        ("    about: two\n", "", 8, '"about" is missing'),
        (GOOD, "switches: {}", 1, "must not be empty"),
        ("    gate: fee\n", "    gate: fee\n    first_canary: 0\n", 5, "must be between 1 and 100"),
        ("    gate: fee\n", "    gate: fee\n    first_canary: 5%\n", 5, "must be a whole number"),
        (GOOD, "", 0, "is empty"),
    ],
)
def test_a_fault_is_told_with_its_file_line_and_what_may_be_meant(
    tmp_path: Path, old: str, new: str, line: int, says: str
) -> None:
    path = written(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(PolicyError) as refused:
        read_switches(path)
    assert (refused.value.file, refused.value.line) == (str(path), line)
    assert says in str(refused.value)


def test_a_gated_switch_begins_small_whether_or_not_its_file_says_so(tmp_path: Path) -> None:
    said = GOOD.replace("    gate: fee\n", "    gate: fee\n    first_canary: 20\n", 1)
    for text, wanted in ((GOOD, [5, 100]), (said, [20, 100])):
        found = read_switches(written(tmp_path, text))
        assert [one.first_canary for one in found.values()] == wanted


def test_the_file_is_read_again_when_it_changes_and_what_cannot_be_used_is_an_empty_book(tmp_path: Path) -> None:
    file = SwitchFile(tmp_path)
    assert file.declared.switches == {} and "cannot be read" in (file.declared.fault or "")
    written(tmp_path, GOOD)
    assert list(file.declared.switches) == ["a.one", "a.two"] and file.declared.fault is None
    assert file.declared is file.declared
    written(tmp_path, GOOD + "  bad\n")
    assert file.declared.switches == {} and file.declared.fault
    (tmp_path / FILE_NAME).unlink()
    assert file.declared.switches == {} and file.declared.fault
    assert SwitchFile(tmp_path / FILE_NAME / "x").declared.switches == {}


def test_a_fault_that_another_file_mends_is_over_with_it(tmp_path: Path) -> None:
    """Files of one change are not written at once: the switch's policy may come a moment after it was looked for."""
    (tmp_path / "other.yaml").write_text("policy: other\n")
    written(tmp_path, GOOD)
    file = SwitchFile(tmp_path)
    assert "policy" in (file.declared.fault or "")
    (tmp_path / "one.yaml").write_text("policy: p\n")
    assert (list(file.declared.switches), file.declared.fault) == (["a.one", "a.two"], None)
    (tmp_path / "one.yaml").unlink()  # as an editor does while it saves
    assert file.declared.fault is None


def test_a_misspelt_name_gets_the_nearest_one(tmp_path: Path) -> None:
    written(tmp_path, GOOD)
    assert SwitchFile(tmp_path).declared.hint("a.onne") == 'did you mean "a.one"?'


@pytest.mark.parametrize(
    ("text", "names"),
    [("a: 1\npolicy: sample # one\n", True), ('policy: "sample"\n', True), ("policy:\n  sample\n", True), ("{policy: sample}\n", True),
     ('"policy": sample\n', True), ("policy: >-\n  sample\n", True), ("policy: sample\n  [\n", True), ("a:\n  policy: sample\n", False),
     ("# policy: sample\n", False), ("policy: [\n", False)],
)  # fmt: skip
def test_a_policy_is_known_however_its_file_says_its_id(tmp_path: Path, text: str, names: bool) -> None:
    (tmp_path / "one.yaml").write_text(text)
    (tmp_path / "other.yaml").write_text("policy: other\n")
    path = tmp_path / "switches.yaml"
    path.write_text(GOOD.replace("policy: p", "policy: sample"))
    if names:
        assert read_switches(path)["a.one"].policy == "sample"
    else:
        with pytest.raises(PolicyError, match="policy"):
            read_switches(path)
