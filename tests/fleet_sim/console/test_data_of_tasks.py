"""`sojourn data` for tasks without classes: ranges, labels and clusters, and the list of sets."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fleet_sim.console.data_commands import app
from fleet_sim.datasets import NAMES
from sojourn.errors import ConfigError


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    return CliRunner()


def shown(narrow: CliRunner, *arguments: str) -> list[str]:
    done = narrow.invoke(app, [*arguments], catch_exceptions=False)
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert max(len(line) for line in lines if "/" not in line) <= 80
    return lines


@pytest.fixture
def prices(tmp_path: Path) -> str:
    path = tmp_path / "prices.csv"
    rows = "".join(f"{at},{at * 10}\n" for at in range(1, 101))
    path.write_text(f"size,price\n{rows}", encoding="utf-8")
    return str(path)


def test_regression_target_is_shown_by_ranges(narrow: CliRunner, prices: str, tmp_path: Path) -> None:
    options = ("--task", "regression", "--target", "price", "--split", "range", "--devices", "2")
    lines = shown(narrow, "show", "--data", prices, *options, "--csv", str(tmp_path / "split.csv"))
    assert lines[0] == "prices: 80 training samples for regression over 2 devices"
    assert lines[1].split() == ["device", "samples", "0123456789", *"0123456789", "price"]
    assert lines[2].split()[:3] == ["1", "40", "█████"]
    assert lines[2].split()[3:13] == ["8"] * 5 + ["·"] * 5
    assert lines[3].endswith("  530 to 990, median 775")
    assert "ranges per device: 5 to 5, median 5" in lines
    with (tmp_path / "split.csv").open(newline="") as file:
        head, *rows = csv.reader(file)
    assert (head[0], head[1], head[-1], len(head)) == ("device", "samples", "price", 13)
    assert [sum(map(int, row[2:12])) for row in rows] == [40, 40]


def test_multilabel_counts_each_label_separately(narrow: CliRunner) -> None:
    lines = shown(narrow, "show", "--data", "digit-attributes", "--split", "domain")
    assert lines[0] == "digit-attributes: 1,437 training samples of 6 labels over 10 devices"
    assert lines[2].split()[1] == "136"
    assert lines[2].split()[-6:] == ["136", "·", "136", "·", "136", "136"]
    assert lines[-3] == "labels: 0=even, 1=prime, 2=loop, 3=above-four, 4=threefold, 5=square"


@pytest.mark.parametrize(
    ("name", "heading", "word"),
    [
        ("households", "load, mean of the horizon", "ranges"),
        ("pumps", "values", "clusters"),
        ("dialects", "tokens used", "clusters"),
    ],
)
def test_other_tasks_use_their_own_terms(narrow: CliRunner, name: str, heading: str, word: str) -> None:
    lines = shown(narrow, "show", "--data", name, "--split", "user", "--devices", "6")
    assert lines[1].endswith(heading)
    assert any(line.startswith(f"{word} per device: ") for line in lines)


def test_windows_use_the_given_steps_and_horizon(narrow: CliRunner) -> None:
    output = shown(narrow, "show", "--data", "households", "--split", "iid", "--steps", "24", "--horizon", "1")[0]
    assert output == "households: 6,560 training samples for forecast over 10 devices"


def test_overlap_changes_the_split(narrow: CliRunner) -> None:
    one, other = (shown(narrow, "show", "--data", "houses", "--split", "range", "--overlap", each) for each in "01")
    assert one != other


def test_file_is_read_for_a_task_only_with_task_option(narrow: CliRunner, prices: str) -> None:
    with pytest.raises(ConfigError, match="set it with --task"):
        shown(narrow, "show", "--data", prices, "--target", "price")
    with pytest.raises(ConfigError, match=r"a forecast needs task\.steps"):
        shown(narrow, "show", "--data", prices, "--task", "forecast")
    with pytest.raises(ConfigError, match="regresion"):
        shown(narrow, "show", "--data", prices, "--task", "regresion")


def test_all_data_sets_are_listed_with_their_task(narrow: CliRunner) -> None:
    lines = shown(narrow, "list")
    listed = {line.split()[0]: line.split()[1] for line in lines[1:] if not line.startswith(" ")}
    assert tuple(listed) == NAMES
    assert (listed["digits"], listed["pumps"]) == ("classification", "reconstruction")


def test_device_without_samples_has_no_range(narrow: CliRunner, tmp_path: Path) -> None:
    np.savez(tmp_path / "few.npz", x=np.arange(5.0)[:, None], y=np.arange(5.0) + 0.5)
    lines = shown(narrow, "show", "--data", str(tmp_path / "few.npz"), "--task", "regression", "--alpha", "0.01")
    assert any("no samples" in line for line in lines)


def test_series_columns_are_named_by_options(narrow: CliRunner, tmp_path: Path) -> None:
    rows = "".join(f"{hour},{pump},{hour + 100 * pump},x\n" for pump in (1, 2) for hour in range(50))
    (tmp_path / "log.csv").write_text(f"hour,pump,level,note\n{rows}", encoding="utf-8")
    options = ("--task", "forecast", "--steps", "4", "--time", "hour", "--series", "pump", "--ignore", "note")
    lines = shown(narrow, "show", "--data", str(tmp_path / "log.csv"), *options, "--split", "user", "--devices", "2")
    assert lines[0] == "log: 66 training samples for forecast over 2 devices"
    values = sorted(line.split("  ")[-1] for line in lines[2:4])
    assert values == ["104 to 136, median 120", "204 to 236, median 220"]
