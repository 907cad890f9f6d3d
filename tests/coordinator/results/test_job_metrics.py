"""Tests of metrics in tables, lines and plots: directions of each task, and percent only for shares."""

from __future__ import annotations

from math import nan
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from rich.console import Console

from coordinator.console.job_progress import JobProgress
from coordinator.console.job_status import job_table, models_line
from coordinator.console.live_view import result_table, round_line, screen, some_rounds
from coordinator.results.folder import ROUNDS, ResultFolder
from coordinator.results.job_metrics import (
    TaskMetrics,
    belonging,
    metric_in,
    metric_of_view,
    metric_shown,
    name_in,
    spread_shown,
    task_in,
)
from coordinator.results.plots import answers_plot, course_chart
from coordinator.results.report import ANSWERS_TABLE, REPORT, draw
from coordinator.results.visit_totals import write_tallies
from sojourn.protocol.metric_names import belongs_to, called
from sojourn.protocol.wire import JobModels, JobTimes, JobView, RoundReport

if TYPE_CHECKING:
    from pathlib import Path

REGRESSION = TaskMetrics("regression")


def report(number: int, rmse: float = nan, **more: Any) -> RoundReport:
    metrics = {"rmse": rmse, "mae": rmse / 2, "r2": 0.5}
    return RoundReport(number, nan, rmse**2, 1, 4, 0, 1000, 1.0, {}, (), None, more.get("metrics", metrics))


def view(kind: Any = "regression", **more: Any) -> JobView:
    times = JobTimes(task=kind, metrics={"rmse": 0.25}) if kind else JobTimes()
    return JobView("job", "visit", "mlp", "done", "", 3, 3, "train", more.pop("accuracy", nan), 4, times=times, **more)


def printed(what: Any, width: int = 80) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w", encoding="utf-8"))  # noqa: PTH123, SIM115
    console.print(what)
    return console.export_text()


HISTORY = (report(1, 2.0), report(2, 0.5), report(3, 0.75))


def test_best_round_has_lowest_error() -> None:
    assert REGRESSION.best(HISTORY) is HISTORY[1]
    assert TaskMetrics("multilabel").best([{"macro_f1": "0.1"}, {"macro_f1": "0.9"}]) == {"macro_f1": "0.9"}
    assert REGRESSION.best([report(1), report(2, 3.0)]).round == 2
    many = tuple(report(at + 1, 1.0 if at != 30 else 0.1) for at in range(100))
    assert many[30] in some_rounds(many, REGRESSION)


def test_only_measured_metrics_are_shown() -> None:
    assert REGRESSION.measured(HISTORY) == ["rmse", "mae", "r2", "loss"]
    assert REGRESSION.measured([report(1, metrics={})]) == []
    assert metric_in({"rmse": ""}, "rmse") != metric_in({"rmse": ""}, "rmse")  # NaN
    assert spread_shown("rmse", [1.0, 3.0]) == "2 ± 1"
    assert spread_shown("accuracy", [0.5, 0.7]) == "60.0 ± 14.1 %"
    assert spread_shown("rmse", []) == "-"


def test_task_is_read_from_job_file() -> None:
    assert task_in({}).kind == "classification"
    assert task_in({"task": "forecast"}).kind == "forecast"
    assert task_in({"task": {"kind": "tokens"}}).main == "perplexity"
    assert task_in({"task": {"kind": "of-tomorrow"}}).kind == "classification"


def test_name_in_reads_both_forms_of_a_part() -> None:
    assert name_in({"model": "net:Net"}, "model") == name_in({"model": {"name": "net:Net"}}, "model") == "net:Net"
    assert [name_in({"model": odd}, "model") for odd in (None, 5, ["a"], {}, {"name": 5})] == [None] * 5


def test_lines_and_tables_name_task_metrics() -> None:
    assert round_line(HISTORY[1], 3, REGRESSION).startswith("round 2/3 RMSE 0.5 MAE 0.25 visits 4 ")
    progress = JobProgress(view(models=JobModels((1, 2, 3), 2)), HISTORY)
    table = printed(result_table(progress))
    assert "RMSE" in table
    assert "accuracy" not in table
    assert "at the end: loss 0.5625" in table
    assert models_line(progress) == "stored models: round 1 to 3; the best is 2 (0.5)"
    assert "RMSE 0.75" in printed(screen(progress, 80))


def test_classifier_table_lists_other_metrics_at_the_end() -> None:
    rounds = (RoundReport(1, 0.5, 1.0, 1, 4, 0, 1000, 1.0, {}, (), None, {"macro_f1": 0.25, "auc": 0.75}),)
    table = printed(result_table(JobProgress(view(None), rounds)))
    assert "accuracy" in table
    assert "at the end: macro F1 25.0 %, AUC 75.0 %" in table
    assert round_line(rounds[0], 1).startswith("round 1/1 accuracy 50.0 % loss 1.0000 visits 4")


@pytest.mark.parametrize("kind", ["multilabel", "regression", "reconstruction", "forecast", "tokens"])
def test_table_of_any_task_fits_in_80_columns(kind: Any) -> None:
    task = TaskMetrics(kind)
    metrics = dict.fromkeys(task.more, 0.123456)
    one = RoundReport(10, 0.5, 0.1234, 9, 999, 0, 99_990_000, 9.9, {"vts": 0.9}, (), None, metrics)
    table = printed(result_table(JobProgress(view(kind), (one,))))
    assert "…" not in table


def test_jobs_with_different_tasks_share_one_list() -> None:
    both = printed(job_table([view(), view(None, accuracy=0.5)], 120), 120)
    assert "metric" in both
    assert "RMSE 0.25" in both
    assert "accuracy 50.0 %" in both
    assert "50.0 %" in printed(job_table([view(None, accuracy=0.5)]))


def test_result_folder_has_columns_of_its_task(tmp_path: Path) -> None:
    results = ResultFolder(tmp_path / "a")
    results.open()
    results.begin('name = "job"\n[task]\nkind = "regression"\n')
    for each in HISTORY:
        results.round(each, 1.0)
    rows = results.rows(ROUNDS)
    assert list(rows[0])[-3:] == ["rmse", "mae", "r2"]
    assert [row["rmse"] for row in rows] == ["2.0", "0.5", "0.75"]
    write_tallies(results, {}, {}, [])
    results.table(ANSWERS_TABLE, ("quantity", "true", "predicted"), [("load", 1.0, 1.5), ("load", 2.0, 2.5)])
    draw(results, "job", ["d"])
    page = (tmp_path / "a" / REPORT).read_text()
    assert "RMSE at the end" in page
    assert "Regression: strategy visit" in page
    assert "<th>RMSE</th>" in page
    assert (tmp_path / "a" / "rmse.png").exists()
    assert (tmp_path / "a" / "answers.png").exists()
    assert not (tmp_path / "a" / "accuracy.png").exists()


def test_older_result_folder_without_new_metrics_resumes(tmp_path: Path) -> None:
    results = ResultFolder(tmp_path / "a")
    results.open()
    results.begin('name = "job"\n')
    results.table(ROUNDS, [name for name in results._head(ROUNDS) if name not in ("macro_f1", "auc")], ())
    one = RoundReport(1, 0.5, 1.0, 1, 4, 0, 1000, 1.0, {}, (), None, {"macro_f1": 0.25})
    results.round(one, 1.0)
    results.close()
    results.back_to(5.0)
    assert "macro_f1" not in results.rows(ROUNDS)[0]
    assert results.rows(ROUNDS)[0]["accuracy"] == "0.5"


def test_axis_names_metric_and_better_direction() -> None:
    rows = [
        {"round": "1", "clock": "1", "bytes": "1", "rmse": "900"},
        {"round": "2", "clock": "2", "bytes": "1", "rmse": "1"},
    ]
    axes = course_chart({"a": [rows]}, "rmse").axes
    assert axes[0].get_ylabel() == "RMSE on the test set (lower is better)"
    assert axes[0].get_yscale() == "log"
    shares = course_chart({"a": [[{**row, "auc": "0.5"} for row in rows]]}, "auc").axes
    assert shares[0].get_ylim() == (0, 100)
    assert shares[0].lines[0].get_ydata().tolist() == [50.0, 50.0]


def test_scores_of_normal_and_faulty_samples_are_drawn(tmp_path: Path) -> None:
    rows = [{"score": "0.0", "faulty": "0"}, {"score": "2.5", "faulty": "1"}]
    assert answers_plot(rows, tmp_path / "a.png").startswith("Scores of test samples")
    assert answers_plot(rows[:1], tmp_path / "b.png")
    assert answers_plot([], tmp_path / "c.png") == ""


@pytest.mark.parametrize(("config", "own"), [
    ({"strategy": "fedbn"}, True),
    ({"strategy": "metafed", "objective": {"lam": 2.0}}, True),
    ({"strategy": "fedavg"}, False),
    ({"strategy": "fedavg", "objective": "local-norms"}, True),
    ({"strategy": "fedbn", "objective": {"name": "sgd"}}, False),
    ({"strategy": "fedavg", "objective": {"name": "mine:Pull"}}, False),
    ({"strategy": "of-tomorrow"}, False),
    ({}, False),
])  # fmt: skip
def test_job_file_shows_if_devices_end_with_their_own_models(config: dict[str, Any], own: bool) -> None:
    task = task_in(config)
    assert task.own is own
    assert bool(task.shared) is own
    assert ("own_accuracy" in task.more) is own


def test_metric_name_shows_which_model_it_measures() -> None:
    assert belongs_to("accuracy") is None
    assert belonging(["accuracy", "own_accuracy", "own_devices", "own_validation", "merged_accuracy"]) == {
        "own accuracy": "each device's own model, on its own test part",
        "own validation": "each device's own model, on its own validation part",
        "merged accuracy": "the last round's merged model with each device's own BatchNorm, on its own test part",
    }
    assert metric_shown("own_accuracy_spread", 0.25) == "25.0 %"
    assert metric_shown("own_devices", 6.0) == "6"
    assert called("own_rmse") == "own RMSE"


def test_job_list_marks_metrics_of_device_models() -> None:
    view = JobView("job", "fedbn", "mlp", "done", "", 2, 2, "train", 0.25, 6)
    assert metric_of_view(view) == "25.0 %"
    with_own = msgspec.structs.replace(view, times=JobTimes(metrics={"own_accuracy": 0.75, "macro_f1": 0.1}))
    assert metric_of_view(with_own) == "75.0 % own"
