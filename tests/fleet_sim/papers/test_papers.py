"""`sojourn papers`: a table is run from its folder, resumes, and writes its page."""

import csv
import re
from dataclasses import replace

import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner

from coordinator.strategies import STRATEGIES
from fleet_sim.console.comparing import rows_of_run
from fleet_sim.papers.paper_table import (
    COURSES,
    RUNS,
    KeptRun,
    digest_of,
    folder_of,
    read_kept,
    read_table,
    show_tables,
    strategy_digest,
)
from fleet_sim.papers.papers_commands import app
from fleet_sim.papers.table_page import MAX_CURVES, PAGE, PICTURE, interval_shown, write_page
from fleet_sim.papers.table_runs import TableRuns, reproduce
from sojourn.errors import ConfigError
from sojourn.parts import AvgM

JOB = """
name = "{name}"
strategy = "{name}"
rounds = 2
threads = 1
[model]
options = {{ hidden = [4] }}
[arranger]
{arranger}
[training]
epochs = 1
[simulation]
data = "digits"
devices = 4
sites = 1
engine = "serial"
"""
TABLE = """
title = "Two ways"
seeds = [1, 2]
reach = 0.1
about = "Cut: nearly all."
findings = "Little."
[paper]
fedavg = "50.5 %"
"""


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / "tables" / "two"
    folder.mkdir(parents=True)
    (folder / "table.toml").write_text(TABLE)
    (folder / "fedavg.toml").write_text(JOB.format(name="fedavg", arranger="fraction = 0.5"))
    (folder / "chain.toml").write_text(JOB.replace("rounds = 2\n", "").format(name="chain", arranger=""))
    return folder.parent


def runs_of(home, output, **more):
    folder = folder_of("two", home)
    table, files = read_table(folder)
    return TableRuns(folder, table, files, output, {}, **more)


def run(home, output, **more):
    console = Console(width=100, record=True)
    reproduce(runs_of(home, output, **more), console)
    return console.export_text()


def test_table_run_resumes_and_writes_its_page(home, tmp_path):
    folder, output = home / "two", tmp_path / "runs"
    first = run(home, output, methods=["fedavg"], seeds=[1])
    assert "1 runs, 0 of them already done" in first
    assert "Not run: chain" in (folder / PAGE).read_text()

    all_of_it = run(home, output)
    assert "4 runs, 1 of them already done" in all_of_it
    assert "left" in all_of_it
    page = (folder / PAGE).read_text()
    assert "# Two ways" in page
    assert "Cut: nearly all." in page
    assert "Little." in page
    line = next(line for line in page.splitlines() if line.startswith("| fedavg"))
    assert "50.5 %" in line
    assert "±" in line
    assert (folder / PICTURE).stat().st_size > 0
    assert set(read_kept(folder)) == {(name, seed) for name in ("fedavg", "chain") for seed in (1, 2)}

    (folder / PAGE).unlink()
    got = CliRunner().invoke(app, ["two", "--tables", str(home), "--page"])
    assert got.exit_code == 0, got.output
    assert (folder / PAGE).read_text() == page

    # The page shows the contents of the runs' folders.
    with (output / "fedavg-seed-2" / "rounds.csv").open() as file:
        last = list(csv.DictReader(file))[-1]
    kept = read_kept(folder)["fedavg", 2]
    assert kept.values[-1] == pytest.approx(float(last["accuracy"]), rel=1e-4)
    assert sum(float(row["bytes"]) for row in kept.course) > 0


def test_changed_job_file_is_run_again(home, tmp_path):
    folder = home / "two"
    run(home, tmp_path / "runs", methods=["chain"], seeds=[1])
    before = read_kept(folder)["chain", 1]
    file = folder / "chain.toml"
    file.write_text(file.read_text().replace("epochs = 1", "epochs = 3"))
    with pytest.raises(ConfigError, match="started with other settings"):
        run(home, tmp_path / "runs", methods=["chain"], seeds=[1])
    run(home, tmp_path / "other", methods=["chain"], seeds=[1])
    after = read_kept(folder)["chain", 1]
    assert after.settings != before.settings
    assert after.values != before.values


def test_run_keeps_the_job_file_it_started_with(home, tmp_path, monkeypatch):
    """Changing or deleting job files during a run does not affect that run."""
    folder = home / "two"
    file, other = folder / "chain.toml", folder / "fedavg.toml"
    before = digest_of(file)

    def meanwhile(*given, **more):
        rows = rows_of_run(*given, **more)
        file.write_text(file.read_text().replace("epochs = 1", "epochs = 3"))
        other.unlink()
        return rows

    monkeypatch.setattr("fleet_sim.papers.table_runs.rows_of_run", meanwhile)
    run(home, tmp_path / "runs", methods=["chain"], seeds=[1])
    it = read_kept(folder)["chain", 1]
    assert it.settings == before != digest_of(file)


def test_changed_strategy_is_run_again(home, tmp_path, monkeypatch):
    folder = home / "two"
    run(home, tmp_path / "runs", methods=["fedavg"], seeds=[1])
    before = read_kept(folder)["fedavg", 1]
    was = STRATEGIES["fedavg"]
    other = msgspec.structs.replace(was.strategy, aggregator=AvgM(momentum=0.5))
    monkeypatch.setitem(STRATEGIES, "fedavg", was._replace(strategy=other))
    run(home, tmp_path / "other", methods=["fedavg"], seeds=[1])
    after = read_kept(folder)["fedavg", 1]
    assert after.settings == before.settings
    assert after.strategy != before.strategy
    assert after.values[0] == before.values[0]
    assert after.values != before.values


def test_runs_without_a_strategy_digest_are_kept(home, tmp_path):
    folder = home / "two"
    run(home, tmp_path / "runs", methods=["fedavg"], seeds=[1])
    it = read_kept(folder)["fedavg", 1]
    lines = (folder / "runs.csv").read_text().splitlines()
    assert lines[0].endswith(",strategy")
    (folder / "runs.csv").write_text("".join(f"{line.rpartition(',')[0]}\n" for line in lines))
    assert read_kept(folder)["fedavg", 1] == replace(it, strategy="")
    run(home, tmp_path / "never", methods=["fedavg"], seeds=[1])
    assert not (tmp_path / "never").exists()


def test_strategy_digest_depends_on_effective_settings():
    plain = STRATEGIES["fedavgm"].strategy
    assert strategy_digest(plain) != strategy_digest(STRATEGIES["fedavg"].strategy)
    assert strategy_digest(plain) == strategy_digest(plain.changed({"aggregator": {"momentum": 0.9}}, "here"))
    assert strategy_digest(plain) != strategy_digest(plain.changed({"aggregator": {"momentum": 0.8}}, "here"))


def test_list_shows_the_progress_of_each_table(home):
    got = CliRunner().invoke(app, ["--tables", str(home)])
    assert got.exit_code == 0, got.output
    assert re.search(r"two +2 +4 +0 +Two ways *\n", got.output)


@pytest.mark.parametrize(
    ("columns", "cells"),
    [
        (30, ""),
        (60, "2 4 0 One shot (CIFAR-10, 10 devices, alpha 0.5)"),
        (80, "2 4 0 One shot (CIFAR-10, 10 devices, alpha 0.5)"),
    ],
)
def test_table_names_are_whole_on_narrow_screens(home, columns, cells):
    name = "a-table-of-one-shot-methods"
    (home / "two").rename(home / name)
    title = "One shot (CIFAR-10, 10 devices, alpha 0.5)"
    (home / name / "table.toml").write_text(TABLE.replace("Two ways", title))
    console = Console(width=columns, record=True)
    show_tables(home, console)
    _heading, *lines = console.export_text().partition("To run or")[0].splitlines()
    first, *row = " ".join(lines).split()
    assert (first, " ".join(row)) == (name, cells)


@pytest.mark.parametrize(
    ("name", "message"),
    [("tow", "did you mean 'two'"), ("", "there is no table"), ("nothing-like-it", "known names are: two")],
)
def test_unknown_table_is_named_in_the_error(home, name, message):
    with pytest.raises(ConfigError, match=message):
        folder_of(name, home)


def test_folder_without_tables_names_where_to_find_them(tmp_path):
    with pytest.raises(ConfigError, match="in a clone of it"):
        folder_of("visit", tmp_path)


def test_unknown_method_is_named_in_the_error(home, tmp_path):
    with pytest.raises(ConfigError, match="no method 'fedavgg' in this table; did you mean 'fedavg'"):
        runs_of(home, tmp_path, methods=["fedavgg"]).wanted()
    (home / "two" / "table.toml").write_text(TABLE + 'visit = "71.3 %"\n')
    with pytest.raises(ConfigError, match="no method 'visit' in this folder"):
        read_table(home / "two")


def test_interval_uses_the_student_distribution():
    # Three values with mean 0.5 and deviation 0.1: 4.303 * 0.1 / sqrt(3).
    assert interval_shown("accuracy", [0.4, 0.5, 0.6]) == "50.0 ± 24.8 %"
    assert interval_shown("accuracy", [0.4]) == "40.0 %"
    assert interval_shown("accuracy", [0.4, float("nan")]) == "40.0 %"


@pytest.mark.parametrize(
    ("methods", "shown"), [(MAX_CURVES, "all methods"), (MAX_CURVES + 1, f"the first {MAX_CURVES} methods")]
)
def test_plot_of_a_long_table_shows_the_first_methods(home, monkeypatch, methods, shown):
    drawn: list[str] = []
    monkeypatch.setattr("fleet_sim.papers.table_page.course_plot", lambda courses, *_: drawn.extend(courses))
    names = [f"method-{number}" for number in range(methods)]
    course = [{"round": str(at), "accuracy": "0.5", "loss": "1", "bytes": "1", "clock": "1"} for at in (1, 2)]
    nan = float("nan")
    runs = {(name, 1): KeptRun(name, 1, "2026-11-17", 1, "accuracy", nan, nan, course, 2, 0, "") for name in names}
    table, _ = read_table(home / "two")
    write_page(home / "two", table, {name: {} for name in names}, runs)
    assert drawn == names[:MAX_CURVES]
    assert f"of {shown}, round by round" in (home / "two" / PAGE).read_text()


def test_every_table_in_the_repository_can_be_read():
    from pathlib import Path

    from fleet_sim.console.simulating import read
    from fleet_sim.papers.paper_table import tables_in

    folders = tables_in(Path(__file__).parents[3] / "benchmarks" / "papers")
    assert {"visit", "fedseq", "fedgsp", "fedelmy", "fedcat"} <= {folder.name for folder in folders}
    for folder in folders:
        for file in read_table(folder)[1]:
            assert read(file, {}).read().parts(), file


def test_table_folder_keeps_only_small_result_files(home, tmp_path):
    run(home, tmp_path / "runs", methods=["chain"], seeds=[1])
    assert {path.name for path in (home / "two").iterdir()} == {
        "table.toml", "fedavg.toml", "chain.toml", RUNS, COURSES, PAGE,
    }  # fmt: skip
