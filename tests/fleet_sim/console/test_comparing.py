"""Comparisons of simulations: one split, one table, one image; resuming."""

from __future__ import annotations

import csv
import shutil
from dataclasses import replace

import pytest
from rich.console import Console

from coordinator.jobs.goal import Goal
from coordinator.results.folder import ResultFolder
from coordinator.results.job_metrics import TaskMetrics
from fleet_sim.console.comparing import Comparison, compare, runs_of, training_of
from fleet_sim.console.comparison_report import different, rounds_to, row
from sojourn.errors import ConfigError, JobError

TEXT = """
strategy = "fedavg"
rounds = 2
threads = 1
model = { name = "mlp", options = { hidden = [16] } }
training = { epochs = 1, batch = 16, lr = 0.1 }
[simulation]
devices = 4
engine = "serial"
"""

HALF = Goal("accuracy", 0.5)


def rows(*accuracies: float) -> list[dict[str, str]]:
    return [
        {"round": str(at), "accuracy": str(accuracy), "visits": "4", "bytes": "500000", "clock": str(10.0 * at)}
        for at, accuracy in enumerate(accuracies, 1)
    ]


def console() -> Console:
    return Console(highlight=False, width=120)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Two strategies and two seeds, run to their ends."""
    folder = tmp_path_factory.mktemp("compared")
    file = folder / "job.toml"
    file.write_text(TEXT)
    asked = Comparison([file], ["fedavg", "fedprox"], [1, 2], {}, output=folder / "out", reach=0.1)
    compare(asked, console())
    return asked


def test_failed_run_is_shown_and_exits_with_an_error(tmp_path, capsys) -> None:
    file = tmp_path / "job.toml"
    file.write_text(f"{TEXT}[availability]\ndropout = 0.8\n")
    changes = {"simulation.devices": 2, "rounds": 6}
    asked = Comparison([file], ["fedavg"], [3], changes, output=tmp_path / "out")
    failed = "job fedavg seed 3: job simulation failed after 1 of 6 rounds: 3 attempts at round 2 had no result"
    for again in (asked, replace(asked, output=None, resume=tmp_path / "out")):
        with pytest.raises(JobError, match=f"^{failed}"):
            compare(again, console())
        assert "comparison" in capsys.readouterr().out
    assert (tmp_path / "out" / "report.html").exists()


def test_runs_with_the_same_seed_share_the_split(compared) -> None:
    def shares(name: str) -> list[tuple[str, str]]:
        lines = (compared.output / name / "devices.csv").read_text().splitlines()[1:]
        return [(line.split(",")[0], line.split(",")[2]) for line in lines]

    assert shares("job-fedavg-seed-1") == shares("job-fedprox-seed-1")
    assert shares("job-fedavg-seed-1") != shares("job-fedavg-seed-2")
    assert {"compare.png", "report.html"} <= {path.name for path in compared.output.iterdir()}


def test_resume_runs_only_missing_simulations(compared, tmp_path, capsys) -> None:
    folder = tmp_path / "again"
    shutil.copytree(compared.output, folder)
    shutil.rmtree(folder / "job-fedprox-seed-2")
    before = (folder / "job-fedavg-seed-1" / "rounds.csv").stat().st_mtime_ns
    compare(Comparison(compared.files, ["fedavg", "fedprox"], [1, 2], {}, resume=folder, reach=0.1), console())
    output = capsys.readouterr().out
    assert output.count("already done") == 3
    assert "round of 10 %" in output
    assert "±" in output
    assert (folder / "job-fedavg-seed-1" / "rounds.csv").stat().st_mtime_ns == before
    new, old = (each / "job-fedprox-seed-2" / "rounds.csv" for each in (folder, compared.output))
    assert new.read_text() == old.read_text()


def test_resume_with_other_settings_is_refused(compared) -> None:
    other = Comparison(compared.files, ["fedavg", "fedprox"], [1, 2], {"training.lr": 0.3}, resume=compared.output)
    with pytest.raises(ConfigError, match="started with other settings"):
        compare(other, console())


def test_duplicate_run_is_refused(compared) -> None:
    with pytest.raises(ConfigError, match="two runs have the name 'job fedavg seed 1'"):
        compare(Comparison(compared.files, ["fedavg"], [1, 1], {}), console())


def test_table_row_summarises_all_seeds() -> None:
    line = row("a", [rows(0.1, 0.5, 0.4), rows(0.2, 0.3, 0.6)], TaskMetrics(), HALF)
    assert line == {
        "run": "a",
        "accuracy": "50.0 ± 14.1 %",
        "best": "55.0 ± 7.1 %",
        "round of 50 %": "2",
        "rounds": "3",
        "visits": "12",
        "MB": "1.5",
        "clock": "30.0 s",
    }


def test_target_not_reached_by_all_runs_is_marked() -> None:
    assert rounds_to(rows(0.1, 0.5, 0.4), HALF) == 2
    assert rounds_to(rows(0.1), HALF) is None
    assert rounds_to(rows(0.5, 0.4, 0.5, 0.6, 0.5), HALF, in_a_row=3) == 3
    assert rounds_to(rows(0.5, 0.6), HALF, in_a_row=3) is None
    assert row("a", [rows(0.6), rows(0.1)], TaskMetrics(), HALF)["round of 50 %"] == "1 (1 of 2 runs)"
    assert row("a", [rows(0.1)], TaskMetrics(), HALF)["round of 50 %"] == "not reached"


def test_differing_training_settings_are_reported(tmp_path, capsys) -> None:
    file = tmp_path / "job.toml"
    file.write_text(TEXT.replace("training = ", "# training = ").replace("rounds = 2", "rounds = 1"))
    compare(Comparison([file], ["visit", "fedseq"], [], {}, output=tmp_path / "apart"), console())
    output = capsys.readouterr().out
    assert "These runs use different training settings" in output
    assert ["job", "fedseq", "64", "0.01", "0.0004"] in [line.split() for line in output.splitlines()]
    assert "Different training settings" in (tmp_path / "apart" / "report.html").read_text()


def test_same_training_option_applies_to_all_runs() -> None:
    asked = Comparison([], ["visit", "fedseq"], [1, 2], {"training.lr": 0.2}, same_training=True)
    assert [training_of(run.simulation) for run in runs_of(asked)] == [
        {"epochs": 1, "batch": 32, "lr": 0.2, "optimiser": "sgd", "momentum": 0.0, "weight_decay": 0.0}
    ] * 4
    apart = runs_of(replace(asked, same_training=False))
    assert different({run.group: training_of(run.simulation) for run in apart}) == {
        "visit": {"batch": "32", "weight_decay": "0.0"},
        "fedseq": {"batch": "64", "weight_decay": "0.0004"},
    }


def test_report_and_csv_list_settings_seeds_and_links(compared) -> None:
    page = (compared.output / "report.html").read_text()
    for name in ("job-fedavg-seed-1", "job-fedprox-seed-2"):
        assert f'<a href="{name}/report.html">' in page
        assert (compared.output / name / "report.html").exists()
    assert "seed 1, 2" in page
    assert "<td>objective.name</td><td>sgd</td><td>prox</td>" in page
    assert "split.alpha = 0.1" in page
    assert "Different training settings" not in page
    lines = ResultFolder(compared.output / "job-fedavg-seed-1", resume=True).rows("rounds.csv")
    with (compared.output / "compare.csv").open() as file:
        found = list(csv.DictReader(file))
    assert [row["run"] for row in found] == [
        f"job-{name}-seed-{seed}" for name in ("fedavg", "fedprox") for seed in (1, 2)
    ]
    assert found[0]["accuracy"] == lines[-1]["accuracy"]
    assert int(found[0]["bytes"]) == sum(int(line["bytes"]) for line in lines)
