"""The command `sojourn strategies` fits a narrow terminal, and its output can be pasted into a job file."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

import pytest
from typer.testing import CliRunner

from coordinator.console.strategy_commands import app
from coordinator.jobs.settings import read_job
from coordinator.strategies import STRATEGIES, named
from sojourn.errors import ConfigError
from tests.waiting import LIMIT


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    return CliRunner()


def test_list_has_a_line_per_strategy_within_80_columns(narrow: CliRunner) -> None:
    lines = [line.rstrip() for line in narrow.invoke(app, []).stdout.splitlines()]
    expected = [f"{each.name:17}  {each.summary}" for each in STRATEGIES.values()]
    assert lines[1 : 1 + len(expected)] == expected
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["strategy", "good", "for"]


@pytest.mark.parametrize("name", STRATEGIES)
def test_show_prints_paper_and_job_file_snippet(name: str, narrow: CliRunner) -> None:
    shown = narrow.invoke(app, ["show", name]).stdout
    each = STRATEGIES[name]
    assert each.title == shown.splitlines()[0]
    flat = " ".join(shown.split())
    assert " ".join(each.paper.split()) in flat
    assert " ".join(each.text.split()) in flat
    assert "Requirements for devices - " in flat
    piece = shown.rpartition("Its settings in a job file\n")[2]
    assert tomllib.loads(piece)["strategy"] == name
    pasted = f'name = "it"\n{piece}\n[data]\ntest = "digits"\n'
    assert read_job(pasted, "it").parts() == named(name, "here")


def test_brackets_and_braces_are_printed_unchanged(narrow: CliRunner) -> None:
    shown = narrow.invoke(app, ["show", "fedavg"]).stdout
    assert '\n[arranger]\nname = "single"\nfraction = 1.0\n' in shown


def test_unknown_strategy_suggests_nearest(narrow: CliRunner) -> None:
    error = narrow.invoke(app, ["show", "vist"]).exception
    assert isinstance(error, ConfigError)
    assert str(error) == "the command line: there is no strategy 'vist'; did you mean 'visit'?"


def test_command_loads_neither_torch_nor_numpy() -> None:
    program = (
        "import atexit, sys; from sojourn.cli import main; sys.argv = ['sojourn', 'strategies', 'show', 'visit'];"
        "atexit.register(lambda: print('LOADED', *{name.partition('.')[0] for name in sys.modules})); main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT, check=True)
    shown, _, loaded = done.stdout.rpartition("LOADED")
    assert re.match("VISIT\n", shown)
    assert not {"torch", "numpy", "onnxruntime", "sklearn"} & set(loaded.split())
