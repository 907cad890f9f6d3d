"""The command line: quick, lazy, and never a traceback for what a person can mend."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sojourn import WIRE, __version__
from sojourn.cli import TOLD, app

HEAVY = {"torch", "onnxruntime", "numpy", "onnx", "sklearn", "coordinator", "fleet_sim", "hierarchy", "edge_agent"}


def sojourn(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sojourn.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def loaded_by(*commands: tuple[str, ...]) -> list[set[str]]:
    """The packages that the command line has loaded when each command is done, in copies of one fresh interpreter."""
    program = """
import contextlib, io, json, os, sys
from sojourn.cli import main
for arguments in json.loads(sys.argv[1]):
    if not (child := os.fork()):
        sys.argv = ["sojourn", *arguments]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
            main()
        print(*{name.partition(".")[0] for name in sys.modules}, flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, arguments
"""
    command = [sys.executable, "-c", program, json.dumps(commands)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return [set(line.split()) for line in done.stdout.splitlines()]


def test_help_lists_every_command_and_loads_none() -> None:
    done = sojourn("--help")
    assert done.returncode == 0
    assert all(name in done.stdout for name in TOLD)
    (loaded,) = loaded_by(("--help",))
    assert "typer" in loaded
    assert not loaded & HEAVY


def test_help_of_a_command_needs_nothing_heavy() -> None:
    commands = [*((name, "--help") for name in TOLD), ("agent", "run", "--help")]
    found = dict(zip(commands, loaded_by(*commands), strict=True))
    heavy = {"torch", "onnxruntime", "numpy", "onnx", "sklearn"}
    assert {command: loaded & heavy for command, loaded in found.items()} == {command: set() for command in commands}
    assert "coordinator" in found["job", "--help"]


def test_version() -> None:
    assert sojourn("--version").stdout == f"sojourn {__version__}, wire {WIRE}\n"


def test_completion_is_offered_at_the_root() -> None:
    assert {"--install-completion", "--show-completion"} <= set(sojourn("--help").stdout.split())


@pytest.mark.parametrize("name", TOLD)
def test_no_group_of_commands_offers_completion_again(name: str) -> None:
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
def test_completion_knows_commands_that_were_never_loaded(
    typed: str, completed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_SOJOURN_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))
    command = [sys.executable, "-c", "import sys; from sojourn.cli import main; sys.argv = ['sojourn']; main()"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == completed


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("agent", "run"), 2, "error: the command line: the key 'name' is missing"),
        (("agent", "run", "none.toml"), 2, "error: none.toml: No such file or directory"),
        (("edge", "run", "--name", "Not A Name"), 2, "error: the command line: name: not a valid name"),
        (("coordinator", "run", "--broker", "here:there"), 2, "error: --broker 'here:there' is not an address"),
        (("job", "submit", "none.toml"), 2, "error: none.toml: No such file or directory"),
        (("job", "list", "--broker", "localhost:1"), 1, "error: "),
        (("broker", "--edge", "s1"), 2, "error: --edge, --device, --cloud and --operator"),
        (("demo", "--strategy", "vist"), 2, "error: --strategy: there is no strategy 'vist'; did you mean 'visit'?"),
    ],
)
def test_an_error_is_one_line(arguments: tuple[str, ...], code: int, said: str) -> None:
    done = sojourn(*arguments)
    assert done.returncode == code
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == 1
    assert "\x1b" not in done.stderr


def test_a_missing_extra_is_named(tmp_path: Path) -> None:
    program = (
        "import sys, importlib.util as u; real = u.find_spec;"
        "u.find_spec = lambda name, *a: None if name == 'torch' else real(name, *a);"
        "from sojourn.cli import main; sys.argv = ['sojourn', 'coordinator', 'run', '--store', sys.argv[1]]; main()"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == "error: a coordinator needs torch, which is not installed: pip install 'sojourn[cloud]'\n"


@pytest.mark.parametrize("role", ["broker", "edge", "agent"])
def test_ctrl_c_ends_a_service_quietly(role: str, tmp_path: Path) -> None:
    node = ["--broker", "localhost:1", "--store", str(tmp_path)]
    arguments = {
        "broker": ["broker", "--port", "0", "--folder", str(tmp_path)],
        "edge": ["edge", "run", "--name", "s1", *node],
        "agent": ["agent", "run", "--name", "pi-1", "--data", "x.npz", *node],
    }[role]
    said = "listening" if role == "broker" else "trying again until it works"
    output = tmp_path / "output"
    with output.open("wb") as file:
        process = subprocess.Popen([sys.executable, "-u", "-m", "sojourn.cli", *arguments], stdout=file, stderr=file)
        deadline = time.monotonic() + 30
        while said not in output.read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    assert said in output.read_text()
    assert "Traceback" not in output.read_text()
