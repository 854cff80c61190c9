"""`worker check`: every file that only the worker and the order intake read, with place and nearest known name."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from sentinel.cli.main import main as authority_main
from sentinel.platform.resources import policies_dir
from sentinel.policy.errors import PolicyError
from worker.check_policies import check_folder
from worker.cli import main
from worker.critic.bounds import load_bounds
from worker.refunds.build import load_routes
from worker.settlement.registry import system_names


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the shipped folder, to be broken."""
    shutil.copytree(policies_dir(), tmp_path / "policies", ignore=shutil.ignore_patterns("__pycache__", "*.py"))
    return tmp_path / "policies"


def faults(folder: Path) -> list[PolicyError]:
    return [fault for _, wrong in check_folder(folder) for fault in wrong]


def test_the_shipped_folder_is_good_and_what_is_not_there_is_no_fault(folder: Path, tmp_path: Path) -> None:
    names = [name for name, wrong in check_folder(folder) if not wrong]
    assert names[:5] == ["switches.yaml", "routes.yaml", "order_sources.yaml", "order_signals.yaml", "critic.yaml"]
    assert "gates/fee.yaml" in names and faults(folder) == []
    (tmp_path / "empty").mkdir()
    assert list(check_folder(tmp_path / "empty")) == []


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_folder_without_anything_of_the_workers_is_no_good_one(
    folder: Path, tmp_path: Path, form: tuple[str, ...]
) -> None:
    (tmp_path / "empty").mkdir()
    shutil.copy(folder / "agent_actions.yaml", tmp_path / "empty")
    done = CliRunner().invoke(main, ["check", str(tmp_path / "empty"), *form])
    assert done.exit_code == 2
    assert f"nothing in {tmp_path / 'empty'} is read by the worker or the order intake" in done.stderr
    assert done.stdout == ("[]\n" if form else "")


def test_a_folder_of_policies_for_agents_alone_is_a_good_one_to_the_authority(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    shutil.copy(folder / "agent_actions.yaml", tmp_path / "mine")
    done = CliRunner().invoke(authority_main, ["policy", "check", str(tmp_path / "mine")])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("name", "old", "new", "says"),
    [
        ("routes.yaml", "channel: private", "channel: privat", '"private"'),
        ("routes.yaml", "scenario: compensation", "scenario: compensaton", '"compensation"'),
        ("routes.yaml", "mode: price_drop", "mode: price_drp", '"price_drop"'),
        ("routes.yaml", "[image, scenario_validate,", "[image, scenario_valdate,", '"scenario_validate"'),
        (
            "routes.yaml",
            "switch: small_refund.refund_fee",
            "switch: small_refund.refnd_fee",
            '"small_refund.refund_fee"',
        ),
        ("routes.yaml", "settles_to: private_refund", "settles_to: privat_refund", '"private_refund"'),
        ("routes.yaml", '{USD: "8.00"', '{USDD: "8.00"', '"USD"'),
        ("switches.yaml", "gate: compensation", "gate: compensaton", '"compensation"'),
        ("order_sources.yaml", "scheme: hex", "scheme: hexx", '"hex"'),
        ("order_sources.yaml", "    secret:", "    secrt:", '"secret"'),
        ("order_signals.yaml", "band: medium", "band: medum", '"medium"'),
        ("order_signals.yaml", "{USD:", "{USDD:", '"USD"'),
        ("critic.yaml", "order_note:", "order_not:", '"order_note"'),
        ("critic.yaml", "languages:", "langages:", '"languages"'),
        ("gates/fee.yaml", "scenario: fee", "scenario: fees", '"fee"'),
        ("gates/fee.yaml", "channel: private", "channel: privat", '"private"'),
        ("gates/fee.yaml", "{private: private_refund", "{privat: private_refund", '"private"'),
        ("gates/fee.yaml", "{private: private_refund", "{private: privat_refund", '"private_refund"'),
    ],
)
def test_a_misspelt_name_has_file_line_and_the_nearest_known_one(
    folder: Path, name: str, old: str, new: str, says: str
) -> None:
    text = (folder / name).read_text()
    before, found, _ = text.partition(old)
    assert found
    (folder / name).write_text(text.replace(old, new, 1))
    (fault,) = faults(folder)
    assert fault.file == str(folder / name)
    assert fault.line == before.count("\n") + 1
    assert f"did you mean {says}?" in str(fault)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "name",
    ["routes.yaml", "order_sources.yaml", "order_signals.yaml", "critic.yaml", "gates/fee.yaml", "gates/mine.jsonl"],
)
def test_a_pipe_in_the_folder_is_refused_and_not_waited_for(folder: Path, name: str) -> None:
    """The finding: `worker check`, and each program that read the file, waited for ever for somebody to write into it."""
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    (fault,) = faults(folder)
    assert (fault.file, fault.message) == (str(folder / name), "is a pipe or device, not a file")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("[en, de, fr, es, it]", "[en, pl]", 'a language: unknown value "pl" (known: en, de, fr, es, it)'),
        ("[en, de, fr, es, it]", "[]", "languages must not be empty"),
        ("reason: 1000", "reason: 0", "reason must be between 1 and 4000"),
        ("image_text: 2000", "image_text: 4001", "image_text must be between 1 and 4000"),
        ("reason: 1000", 'reason: "1000"', "reason must be a whole number in plain digits"),
        ("  image_text: 2000", "", '"image_text" is missing'),
    ],
)
def test_bounds_of_the_critic_that_mean_nothing_are_refused_and_no_worker_starts_on_them(
    folder: Path, old: str, new: str, says: str
) -> None:
    file = folder / "critic.yaml"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new, 1))
    (fault,) = faults(folder)
    assert fault.file == str(file) and says in str(fault)
    with pytest.raises(PolicyError, match=r"critic\.yaml"):
        load_bounds(folder)


def test_a_folder_without_bounds_of_the_critic_has_the_shipped_ones(tmp_path: Path) -> None:
    assert load_bounds(tmp_path) == load_bounds(policies_dir())


def test_a_masters_switch_that_is_not_declared_is_told_where_a_route_rests_on_it(folder: Path) -> None:
    switches = folder / "switches.yaml"
    switches.write_text(switches.read_text().replace("small_refund.enabled:", "small_refund.enabld:"))
    (fault,) = faults(folder)
    assert Path(fault.file).name == "routes.yaml"
    assert '"small_refund.enabled", which is not declared' in str(fault)
    assert 'did you mean "small_refund.enabld"?' in str(fault)


def test_a_route_of_small_refunds_whose_scenario_has_no_cap_is_told(folder: Path) -> None:
    """The finding: reconciliation takes each such refund for a wrong execution, and turns the switch off after the first."""
    policy = folder / "small_refund.yaml"
    policy.write_text(policy.read_text().replace("cap_fee:", "cap_fees:"))
    (fault,) = faults(folder)
    assert Path(fault.file).name == "routes.yaml"
    assert 'no policy has the number "cap_fee": every refund of private/fee' in str(fault)
    assert 'did you mean "cap_fees"?' in str(fault)
    policy.write_text("numbers: [")
    told = {Path(fault.file).name for fault in faults(folder)}
    assert told == {"switches.yaml"}, "a policy that cannot be read is a fault of its own"


def test_the_command_explains_every_files_fault_and_its_exit_code_says_whether_there_is_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = CliRunner().invoke(main, ["check", str(folder)])
    assert (good.exit_code, good.stderr) == (0, "")
    assert "ok  routes.yaml" in good.stdout
    for name, old, new in (
        ("routes.yaml", "channel: public", "channel: pubic"),
        ("switches.yaml", "default: false", "defualt: false"),
    ):
        (folder / name).write_text((folder / name).read_text().replace(old, new, 1))
    (folder / "gates" / "late.yml").write_text("scenario: fee")
    bad = CliRunner().invoke(main, ["check", str(folder)])
    assert bad.exit_code == 1
    for part in (
        "routes.yaml:",
        'did you mean "public"?',
        "switches.yaml:",
        'did you mean "default"?',
        "late.yml",
        "rename it",
    ):
        assert part in bad.stderr, part
    assert "ok  order_sources.yaml" in bad.stdout
    monkeypatch.setenv("SENTINEL_POLICIES_DIR", str(folder))
    listed = CliRunner().invoke(main, ["check", "--json"])
    assert [Path(one["file"]).name for one in json.loads(listed.stdout)] == ["switches.yaml", "routes.yaml", "late.yml"]
    assert CliRunner().invoke(main, ["check", str(folder / "nowhere")]).exit_code == 2


def test_a_worker_does_not_start_on_a_switch_whose_gate_is_no_scenario(folder: Path) -> None:
    file = folder / "switches.yaml"
    file.write_text(file.read_text().replace("gate: fee", "gate: fe", 1))
    with pytest.raises(PolicyError, match=r'switches\.yaml:\d+:\d+: .*did you mean "fee"'):
        load_routes(folder, system_names())
