"""README's examples print readable output: at most a screen of lines, within 80 columns, also into a file."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sojourn.cli import app

LINES, COLUMNS = 60, 80
SMALLER = {"40": "12", "20": "2"}
"""Few devices and rounds, for a quick test."""


def example(command: str) -> list[str]:
    """Return the words of README's example of a command."""
    (line,) = [
        line
        for line in Path("README.md").read_text(encoding="utf-8").splitlines()
        if line.startswith(f"sojourn {command} ")
    ]
    return shlex.split(line, comments=True)[1:]


def ran(words: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    text = done.output
    assert done.exit_code == 0, text
    assert len(text.splitlines()) <= LINES, text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= COLUMNS, text
    return text


def test_plan_example_runs_as_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = example("plan")
    text = ran(words, tmp_path, monkeypatch)
    assert "the whole job, 50 rounds" in text
    assert "3 of 100 devices have no samples" in text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["simulate", "compare"])
def test_training_examples_run_at_reduced_size(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = example(command)
    assert set(SMALLER) <= set(words)
    if command == "compare":
        assert words[-4:] == ["--seed", "1", "--seed", "2"]
        words = words[:-2]
    # A line for each device that fails or declines is among the lines printed before.
    more = ["--engine", "serial"] + ([] if "--dropout" in words else ["--dropout", "0.3"])
    text = ran([*(SMALLER.get(word, word) for word in words), *more], tmp_path, monkeypatch)
    assert "visits were lost" in " ".join(text.split())
    assert (tmp_path / "simulations").is_dir()


def test_strategies_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "visit" in ran(["strategies"], tmp_path, monkeypatch)
