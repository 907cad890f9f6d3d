"""The command line: quick, lazy, and never a traceback for what a person can mend."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sojourn import WIRE, __version__
from sojourn.cli import TOLD, app
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
HELPS = ["--help", *(f"{name} --help" for name in TOLD), "agent run --help"]


@pytest.fixture(scope="module")
def loaded() -> dict[str, set[str]]:
    """The packages that the command line has loaded when it is done, for each call: one Python, and a fork of each."""
    command = [sys.executable, "-c", EACH_APART]
    done = subprocess.run(command, input="\n".join(HELPS), capture_output=True, text=True, timeout=LIMIT, check=True)
    lines = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("LOADED ")]
    return {HELPS[int(number)]: set(packages) for number, *packages in lines}


def test_help_lists_every_command_and_loads_none(loaded: dict[str, set[str]]) -> None:
    command = [sys.executable, "-m", "sojourn.cli", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=True)
    assert all(name in done.stdout for name in TOLD)
    assert {"--install-completion", "--show-completion"} <= set(done.stdout.split())
    assert "typer" in loaded["--help"]
    assert not loaded["--help"] & HEAVY


@pytest.mark.parametrize("arguments", HELPS)
def test_help_of_a_command_needs_nothing_heavy(arguments: str, loaded: dict[str, set[str]]) -> None:
    assert loaded[arguments]
    assert not loaded[arguments] & {"torch", "onnxruntime", "numpy", "onnx", "sklearn"}


def test_version() -> None:
    assert forked.sojourn("--version") == f"sojourn {__version__}, wire {WIRE}\n"


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
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.stdout.split() == completed


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("agent", "run"), 2, "error: the command line: the key 'name' is missing"),
        (("agent", "run", "none.toml"), 2, "error: none.toml: No such file or directory"),
        (("edge", "run", "--name", "Not A Name"), 2, "error: the command line: name: not a valid name"),
        (("coordinator", "run", "--broker", "here:there"), 2, "error: 'here:there' is not an address of a broker"),
        (("job", "submit", "none.toml"), 2, "error: none.toml: No such file or directory"),
        (("job", "list", "--broker", "localhost:1"), 1, "error: "),
        (("broker", "--edge", "s1"), 2, "error: --edge, --device, --cloud, --operator and --home-assistant"),
        (("demo", "--strategy", "vist"), 2, "error: --strategy: there is no strategy 'vist'; did you mean 'visit'?"),
    ],
)
def test_an_error_is_one_line(arguments: tuple[str, ...], code: int, said: str) -> None:
    done = forked.run(*arguments)
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
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
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
        try:
            wait_until(lambda: said in output.read_text(), f"{said!r}", output.read_text)
            process.send_signal(signal.SIGINT)
            assert process.wait(LIMIT) == 0
        finally:
            process.kill()
    assert "Traceback" not in output.read_text()
