"""`sojourn data show`: a split shown in a narrow terminal."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fleet_sim.console.data_commands import app
from fleet_sim.datasets import load
from fleet_sim.datasets.partition import Split, split
from sojourn.errors import ConfigError, DataError


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    return CliRunner()


def shown(narrow: CliRunner, *arguments: str) -> list[str]:
    done = narrow.invoke(app, ["show", *arguments], catch_exceptions=False)
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert max(len(line) for line in lines if "/" not in line) <= 80  # paths are not wrapped
    return lines


@pytest.fixture
def small(tmp_path: Path) -> str:
    """Two writers: one has four cats and a dog, the other a dog; the test part is irrelevant."""
    path = tmp_path / "pets.npz"
    x, y = np.arange(6, dtype=np.float32).reshape(6, 1), np.array([0, 0, 0, 0, 1, 1])
    np.savez(path, x=x, y=y, x_test=x, y_test=y, classes=["cat", "dog", "eel"], users=[0, 0, 0, 0, 0, 1], domains=y)
    return str(path)


def test_table_has_bars_and_counts(narrow: CliRunner, small: str) -> None:
    assert shown(narrow, "--data", small, "--split", "domain", "--devices", "2") == [
        "pets: 6 training samples of 3 classes over 2 devices",
        "device  samples  012  0 1 2",
        "     1        4  █    4 · ·",
        "     2        2   █   · 2 ·",
        "",
        "classes: 0=cat, 1=dog, 2=eel",
        "samples per device: 2 to 4, median 3",
        "classes per device: 1 to 1, median 1",
    ]


def test_bars_are_relative_to_each_device(narrow: CliRunner, small: str) -> None:
    assert shown(narrow, "--data", small, "--split", "iid", "--devices", "1")[2] == "     1        6  █▅   4 2 ·"


def test_printed_counts_match_the_split(narrow: CliRunner) -> None:
    data = load("digits")
    parts = split(Split(alpha=0.5), data, 7, 3)
    lines = shown(narrow, "--devices", "7", "--alpha", "0.5", "--seed", "3")
    for at, part in enumerate(parts):
        counts = np.bincount(data.y_train[part], minlength=10)
        assert lines[2 + at].split()[:2] == [str(at + 1), str(len(part))]
        assert lines[2 + at].split()[-10:] == [str(count or "·") for count in counts.tolist()]


def test_every_option_changes_the_output(narrow: CliRunner) -> None:
    options = [
        (),
        ("--seed", "1"),
        ("--alpha", "1"),
        ("--split", "iid"),
        ("--split", "shards"),
        ("--split", "shards", "--shards", "3"),
        ("--alpha", "1", "--samples", "5"),
        ("--devices", "9"),
    ]
    drawn = ["\n".join(shown(narrow, *each)) for each in options]
    assert len(set(drawn)) == len(options)


def test_unassigned_samples_are_reported(narrow: CliRunner, small: str) -> None:
    lines = shown(narrow, "--data", small, "--split", "domain", "--devices", "2", "--samples", "1")
    assert lines[0] == "pets: 2 training samples of 3 classes over 2 devices, 4 left out"


def test_empty_devices_are_named(narrow: CliRunner, small: str) -> None:
    none = shown(narrow, "--data", small, "--alpha", "0", "--devices", "2")
    assert not any("no samples" in line for line in none)
    one = shown(narrow, "--data", small, "--alpha", "0", "--devices", "6")
    assert one[-1].startswith("1 device has no samples: ")
    empty = shown(narrow, "--data", small, "--alpha", "0", "--devices", "20")
    rows = [int(line.split()[0]) for line in empty[2:22] if line.split()[1] == "0"]
    assert len(rows) == 14
    assert empty[-1] == f"14 devices have no samples: {', '.join(map(str, rows[:10]))} and 4 more"


def test_many_devices_are_summarised_and_written_to_csv(narrow: CliRunner, tmp_path: Path) -> None:
    path = tmp_path / "split.csv"
    lines = shown(narrow, "--devices", "500", "--split", "iid", "--csv", str(path))
    assert lines[25].split()[:2] == ["24", "3"]
    assert lines[26] == "and 476 more devices"
    assert lines[28] == "samples per device: 2 to 3, median 3"
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["device", "samples", *"0123456789"]
    assert [row[0] for row in rows[1:]] == [f"device-{at}" for at in range(1, 501)]
    assert all(int(row[1]) == sum(map(int, row[2:])) for row in rows[1:])
    assert sum(int(row[1]) for row in rows[1:]) == 1437


def test_many_classes_share_bars(narrow: CliRunner, tmp_path: Path) -> None:
    y = np.repeat(np.arange(100), 4)
    x = np.arange(400.0).reshape(400, 1)
    np.savez(tmp_path / "many.npz", x=x, y=y, x_test=x, y_test=y)
    lines = shown(narrow, "--data", str(tmp_path / "many.npz"), "--devices", "1", "--split", "iid")
    assert lines[1:3] == ["device  samples  classes 0 to 99, 2 per bar", f"     1      400  {'█' * 50}"]
    assert not any(line.startswith("classes:") for line in lines)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("--alpha", "-1"), ConfigError, "the command line: alpha: expected `float` >= 0.0"),
        (("--split", "dirichelt"), ConfigError, "did you mean 'dirichlet'?"),
        (("--split", "user"), DataError, "a split by user needs users"),
        (("--data", "digit"), DataError, "there is no data set 'digit'"),
        (("--devices", "1438", "--split", "iid"), DataError, "1437 samples are too few"),
        (("--csv", "none/split.csv"), ConfigError, "--csv none/split.csv: No such file or directory"),
    ],
)
def test_invalid_show_arguments_are_refused(
    arguments: tuple[str, ...], error: type[Exception], message: str, narrow: CliRunner
) -> None:
    done = narrow.invoke(app, ["show", *arguments])
    assert isinstance(done.exception, error)
    assert message in str(done.exception)
