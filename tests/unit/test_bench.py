"""The benchmark's own arithmetic: its check can fail, its requests are what they claim, its tables and chart say what was measured."""

from __future__ import annotations

import itertools
import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.bench import adapter_calls, check, minimal, pieces_adapters, report, row_by_row, templates
from tests.bench.chart import chart
from tests.bench.check import BUSY, GREEN, RED, Slices, judge

MACHINE = {"processor": "Made Up 9000", "processors": "2", "memory": "4 GiB", "load by": "wrk", "busy before": "0.1"}


def slices(
    cost: float = 300.0, *, yardstick: float = 40.0, noise: float = 1.02, others: float = 2.0, **machine: str
) -> Slices:
    """Twelve slices that cost so much, two thirds authority, every other one dearer by `noise`."""
    each = [cost * (noise if place % 2 else 1.0) for place in range(12)]
    return Slices(
        MACHINE | machine, [one * 2 / 3 for one in each], [one / 3 for one in each], [yardstick] * 12, [others] * 12
    )


@pytest.mark.parametrize(
    "now, wanted",
    [
        (slices(300), GREEN),
        (slices(312), GREEN),
        (slices(318), RED),
        (slices(250), GREEN),
        (slices(600, yardstick=80), GREEN),
        (slices(640, yardstick=80), RED),
        (slices(310, yardstick=38), RED),
    ],
    ids=[
        "the same",
        "4 % more",
        "6 % more",
        "less",
        "a machine half as fast",
        "half as fast and more",
        "faster and more",
    ],
)
def test_more_than_five_percent_of_cpu_a_guard_is_red(now: Slices, wanted: int, tmp_path: Path) -> None:
    assert judge(slices(300), tmp_path)[0] == GREEN
    code, said = judge(now, tmp_path)
    assert code == wanted, said
    assert said.startswith("RED" if wanted == RED else "green")


def test_one_program_that_costs_more_is_red_though_the_other_is_as_it_was(tmp_path: Path) -> None:
    judge(slices(300), tmp_path)
    now = slices(300)
    dearer = Slices(now.machine, now.authority, [one * 1.2 for one in now.postgresql], now.yardstick, now.others)
    assert judge(dearer, tmp_path)[0] == RED


def test_the_first_run_on_a_machine_keeps_its_figures_and_says_so(tmp_path: Path) -> None:
    code, said = judge(slices(300), tmp_path)
    assert (code, "there were no figures of this machine" in said) == (GREEN, True)
    (file,) = tmp_path.iterdir()
    assert Slices(**json.loads(file.read_text())) == slices(300)


def test_another_machine_has_figures_of_its_own(tmp_path: Path) -> None:
    judge(slices(300), tmp_path)
    assert judge(slices(900, processors="64"), tmp_path)[0] == GREEN
    assert len(list(tmp_path.iterdir())) == 2


def test_figures_stay_until_others_are_kept_on_purpose(tmp_path: Path) -> None:
    judge(slices(300), tmp_path)
    assert [judge(slices(400), tmp_path)[0] for _ in range(2)] == [RED, RED]
    assert judge(slices(400), tmp_path, keep=True)[0] == GREEN
    assert judge(slices(400), tmp_path)[0] == GREEN


@pytest.mark.parametrize("now", [slices(300, noise=2.0), slices(300, others=40.0)], ids=["unsteady", "used by others"])
def test_a_busy_machine_judges_nothing_and_keeps_nothing(now: Slices, tmp_path: Path) -> None:
    code, said = judge(now, tmp_path, keep=True)
    assert (code, "quiet" in said, list(tmp_path.iterdir())) == (BUSY, True, [])


def test_the_command_ends_with_the_verdict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    costs = iter([300.0, 400.0])
    monkeypatch.setattr(check, "running_bench", lambda: open("/dev/null"))
    monkeypatch.setattr(check, "measure", lambda *_: slices(next(costs)))
    monkeypatch.setattr(check, "KEPT", tmp_path)
    monkeypatch.setattr("sys.argv", ["check"])
    monkeypatch.setattr(check.signal, "signal", lambda *_: None)
    codes = []
    for _ in range(2):
        with pytest.raises(SystemExit) as ended:
            check.main()
        codes.append(ended.value.code)
    assert codes == [GREEN, RED]


@pytest.mark.parametrize(
    "made",
    [
        templates.guards("k"),
        templates.mixed_guards("k"),
        templates.hot_guards("k"),
        templates.checks("k"),
        templates.cerbos_checks(),
    ],
    ids=["guards", "mix", "hot", "checks", "cerbos"],
)
def test_every_request_says_its_own_length(made: templates.Template) -> None:
    for request in itertools.islice(made.filled(), 25):
        head, _, body = request.partition(b"\r\n\r\n")
        assert f"Content-Length: {len(body)}".encode() in head
        json.loads(body)


def test_guards_have_fresh_keys_over_every_account_and_repeats_come_again() -> None:
    bodies = [
        json.loads(request.partition(b"\r\n\r\n")[2])
        for request in itertools.islice(templates.guards("k").filled(), 300)
    ]
    assert len({body["idempotency_key"] for body in bodies}) == 300
    assert (
        len({number * templates.STEP % templates.ACCOUNTS for number in range(templates.ACCOUNTS)})
        == templates.ACCOUNTS
    )
    again = list(itertools.islice(templates.guards("k", wrap=3).filled(), 6))
    assert again[:3] == again[3:]
    assert len(set(again)) == 3


def test_a_mix_has_one_in_ten_for_a_person_and_one_in_ten_denied() -> None:
    bodies = [
        json.loads(request.partition(b"\r\n\r\n")[2])
        for request in itertools.islice(templates.mixed_guards("k").filled(), 10)
    ]
    assert sorted(float(body["params"]["amount"]["value"]) for body in bodies) == [0.01] * 8 + [200.0, 2000.0]


def test_what_pgbench_logs_is_counted_within_the_window_only() -> None:
    log = "0 0 5000 0 99 900000\n0 1 1000 0 100 100000\n1 1 3000 0 100 500000\n0 2 9000 0 102 0\n"
    measured = minimal._from_log(log, (100.0, 102.0), 4.0)
    assert (measured.requests, measured.per_second, measured.p50_ms, measured.p99_ms, measured.cpu_seconds) == (
        2,
        1.0,
        3.0,
        3.0,
        2.0,
    )


def test_row_by_row_makes_every_batch_one_row_long(monkeypatch: pytest.MonkeyPatch) -> None:
    for committer in row_by_row.COMMITTERS:
        monkeypatch.setattr(committer.__init__, "__kwdefaults__", dict(committer.__init__.__kwdefaults__))
    row_by_row.commit_each_row_alone()
    assert {committer.__init__.__kwdefaults__["most"] for committer in row_by_row.COMMITTERS} == {1}


def figures() -> dict[str, list[float]]:
    made = {f"{name} {n}": [100.0 * n, 120.0 * n] for name in ("guard", "Cerbos", "minimal") for n in (1, 8, 32, 128)}
    return made | {
        "guard 32 authority µs": [200.0, 180.0],
        "guard 32 PostgreSQL µs": [100.0, 90.0],
        "Cerbos 32 Cerbos µs": [600.0, 620.0],
        "minimal 32 PostgreSQL µs": [220.0, 240.0],
    }


def test_bars_are_red_below_green_above_and_goals_are_told() -> None:
    lines = {
        line.split("|")[1].strip(): line
        for line in report.bars_table(figures() | {"guard 32": [320.0, 320.0], "Cerbos 32": [100.0, 200.0]})
    }
    assert lines["guard 32 / Cerbos 32"].rstrip("| ").endswith("goal")
    assert "2.40 [1.60–3.20]" in lines["guard 32 / Cerbos 32"]
    assert "**red**" in lines["guard 32 / minimal 32"]
    assert lines["CPU a guard at 32, authority + PostgreSQL, µs"].rstrip("| ").endswith("green")
    assert "refunds a second, one worker" not in lines


def test_the_chart_is_an_svg_with_every_bar_and_none_without_a_rival() -> None:
    drawn = chart(figures())
    assert drawn is not None
    ET.fromstring(drawn)
    assert drawn.count("<rect") == 1 + 3 + 12 + 3 + 4
    assert chart({name: values for name, values in figures().items() if not name.startswith("Cerbos")}) is None


def test_a_run_beside_other_work_says_so() -> None:
    busy = report.Run(MACHINE, 2, 4, figures() | {"guard 32 others %": [60.0, 40.0]})
    assert "**Not quiet**: others used 50 %" in report.text_of(busy)


def test_a_kept_run_stands_in_the_results_between_its_marks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    results = tmp_path / "RESULTS.md"
    results.write_text(f"# Results\n\n{report.BEGIN}\nold\n{report.END}\n\nhistory\n")
    monkeypatch.setattr(report, "RESULTS", results)
    monkeypatch.setattr(report, "CHART", tmp_path / "results.svg")
    run = report.Run(MACHINE, 2, 4, figures())
    report.write(run, tmp_path, whole=True, keep=True)
    text = results.read_text()
    assert "old" not in text
    assert "history" in text
    assert "2 rounds of 4 s" in text
    assert "Not quiet" not in text
    assert (tmp_path / "results.svg").exists()
    with pytest.raises(SystemExit):
        report.write(run, tmp_path, whole=False, keep=True)


def test_what_an_adapter_adds_is_the_median_of_what_each_round_added() -> None:
    figures = {
        "bare cpu": [1.0, 3.0, 2.0],
        "guarded cpu": [11.0, 14.0, 10.0],
        "bare wall": [5.0] * 3,
        "guarded wall": [9.0] * 3,
    }
    table = pieces_adapters.table([pieces_adapters.Form("langchain", None, figures)], 3)  # type: ignore[arg-type]
    assert table.splitlines()[-1] == "| LangChain middleware | 2 | 11 | 10 [8–11] | 5 | 9 | 4 [4–4] |"


def test_every_form_of_an_adapter_has_a_name_and_is_measured() -> None:
    assert pieces_adapters.FORMS.keys() == adapter_calls.FORMS.keys()
