"""The command line: fast, lazy, and without tracebacks for user errors."""

from __future__ import annotations

import signal
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from sojourn import WIRE, __version__
from sojourn.cli import GROUP, SUMMARIES, app
from sojourn.errors import install
from tests import forked
from tests.waiting import LIMIT, wait_until

HEAVY = {"torch", "onnxruntime", "numpy", "onnx", "sklearn", "coordinator", "fleet_sim", "hierarchy", "edge_agent"}


EACH_APART = """
import os, sys
from sojourn.cli import main
for number, line in enumerate(sys.stdin.read().splitlines()):
    if os.fork() == 0:
        sys.argv = ["sojourn", *line.split()]
        try:
            main()
        except SystemExit:
            sys.stdout.flush()
        print("\\nLOADED", number, *{name.partition(".")[0] for name in sys.modules}, flush=True)
        os._exit(0)
    os.wait()
"""
HELPS = ["--help", *(f"{name} --help" for name in SUMMARIES), "agent run --help"]


@pytest.fixture(scope="module")
def loaded() -> dict[str, set[str]]:
    """Return the packages that each call of the command line has loaded, in forks of one Python process."""
    command = [sys.executable, "-c", EACH_APART]
    done = subprocess.run(command, input="\n".join(HELPS), capture_output=True, text=True, timeout=LIMIT, check=True)
    lines = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("LOADED ")]
    return {HELPS[int(number)]: set(packages) for number, *packages in lines}


def test_every_installed_command_has_a_summary() -> None:
    assert {entry.name for entry in entry_points(group=GROUP)} == SUMMARIES.keys()
    assert all(SUMMARIES.values())


def without_help(command: Any, path: str) -> list[str]:
    """Yield this command, its subcommands and their options that have no help text."""
    options = [f"{path} {it.name}" for it in command.params if not it.help and it.name != "help"]
    commands = getattr(command, "commands", {}).items()
    below = [each for name, it in commands for each in without_help(it, f"{path} {name}")]
    return [*([] if command.help else [path]), *options, *below]


@pytest.mark.parametrize("name", SUMMARIES)
def test_every_command_and_option_has_help(name: str) -> None:
    (entry,) = entry_points(group=GROUP, name=name)
    assert without_help(typer.main.get_command(entry.load()), name) == []


def test_help_lists_every_command_and_loads_none(loaded: dict[str, set[str]]) -> None:
    command = [sys.executable, "-m", "sojourn.cli", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=True)
    assert all(name in done.stdout for name in SUMMARIES)
    assert {"--install-completion", "--show-completion"} <= set(done.stdout.split())
    assert "typer" in loaded["--help"]
    assert not loaded["--help"] & HEAVY


@pytest.mark.parametrize("arguments", HELPS)
def test_command_help_loads_no_heavy_modules(arguments: str, loaded: dict[str, set[str]]) -> None:
    assert loaded[arguments]
    assert not loaded[arguments] & {"torch", "onnxruntime", "numpy", "onnx", "sklearn"}


def test_version_option_prints_package_and_wire_version() -> None:
    assert forked.sojourn("--version") == f"sojourn {__version__}, wire {WIRE}\n"


@pytest.mark.parametrize("name", SUMMARIES)
def test_command_groups_do_not_repeat_completion_options(name: str) -> None:
    done = CliRunner().invoke(app, [name, "--help"])
    assert done.exit_code == 0
    assert "--help" in done.output
    assert "completion" not in done.output


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("sojourn ag", ["agent"]),
        ("sojourn agent pre", ["preflight", "predict"]),
        ("sojourn agent run --da", ["--data"]),
    ],
)
def test_completion_knows_commands_never_loaded(
    typed: str, completed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_SOJOURN_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))
    command = [sys.executable, "-c", "import sys; from sojourn.cli import main; sys.argv = ['sojourn']; main()"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.stdout.split() == completed


@pytest.mark.parametrize(
    ("arguments", "code", "output"),
    [
        (("agent", "run"), 2, "error: the command line: the key 'name' is missing"),
        (("agent", "run", "none.toml"), 2, "error: none.toml: No such file or directory"),
        (("edge", "run", "--name", "Not A Name"), 2, "error: the command line: name: not a valid name"),
        (("coordinator", "run", "--broker", "here:there"), 2, "error: 'here:there' is not a broker address"),
        (("job", "submit", "none.toml"), 2, "error: none.toml: No such file or directory"),
        (("job", "list", "--broker", "localhost:1"), 1, "error: "),
        (("broker", "--edge", "s1"), 2, "error: --edge, --device, --cloud, --operator and --home-assistant"),
        (("demo", "--strategy", "vist"), 2, "error: --strategy: there is no strategy 'vist'; did you mean 'visit'?"),
    ],
)
def test_error_is_one_line(arguments: tuple[str, ...], code: int, output: str) -> None:
    done = forked.run(*arguments)
    assert done.returncode == code
    assert done.stderr.startswith(output)
    assert done.stderr.count("\n") == 1
    assert "\x1b" not in done.stderr


def test_missing_extra_is_named(tmp_path: Path) -> None:
    program = (
        "import sys, importlib.util as u; real = u.find_spec;"
        "u.find_spec = lambda name, *a: None if name == 'torch' else real(name, *a);"
        "from sojourn.cli import main; sys.argv = ['sojourn', 'coordinator', 'run', '--store', sys.argv[1]]; main()"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 1
    assert done.stderr == f"error: a coordinator needs torch, which is not installed: {install('cloud')}\n"


@pytest.mark.parametrize("role", ["broker", "edge", "agent"])
def test_ctrl_c_ends_a_service_without_traceback(role: str, tmp_path: Path) -> None:
    node = ["--broker", "localhost:1", "--store", str(tmp_path)]
    arguments = {
        "broker": ["broker", "--port", "0", "--folder", str(tmp_path)],
        "edge": ["edge", "run", "--name", "s1", *node],
        "agent": ["agent", "run", "--name", "pi-1", "--data", "x.npz", *node],
    }[role]
    expected = "listening" if role == "broker" else "; retrying"
    output = tmp_path / "output"
    with output.open("wb") as file:
        process = subprocess.Popen([sys.executable, "-u", "-m", "sojourn.cli", *arguments], stdout=file, stderr=file)
        try:
            wait_until(lambda: expected in output.read_text(), f"{expected!r}", output.read_text)
            process.send_signal(signal.SIGINT)
            assert process.wait(LIMIT) == 0
        finally:
            process.kill()
    assert "Traceback" not in output.read_text()
