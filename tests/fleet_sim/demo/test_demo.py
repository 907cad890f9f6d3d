"""The whole demo: a fleet of local processes with a real broker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime

from coordinator.jobs.data import digits_split
from tests.waiting import LIMIT, WHOLE, wait_until

DEMO = [sys.executable, "-m", "sojourn.cli", "demo", "--alpha", "1"]


def processes_of(folder: Path) -> list[int]:
    """Return the processes that use a folder; works only on Linux."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if os.fsencode(folder) in entry.read_bytes():
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


def has_trained(log: Path) -> bool:
    return log.exists() and "trained " in log.read_text()


def test_demo_trains_a_working_model(tmp_path: Path) -> None:
    folder, devices = tmp_path / "kept", 4
    options = ["--rounds", "3", "--target", "0", "--output", str(folder), "--devices", str(devices)]
    done = subprocess.run([*DEMO, *options], capture_output=True, text=True, timeout=WHOLE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rounds = [line.split() for line in done.stdout.splitlines() if line.startswith("round ")]
    assert [words[1] for words in rounds] == ["1/3", "2/3", "3/3"]
    assert [words[words.index("visits") + 1] for words in rounds] == [str(devices)] * 3
    assert len(done.stdout.splitlines()) <= 60, done.stdout
    assert "mosquitto at 127.0.0.1:" in " ".join(done.stdout.split())
    assert str(folder / "digits.onnx") in done.stdout.replace("\n", "")
    x, y = digits_split(train=False)
    session = onnxruntime.InferenceSession(folder / "digits.onnx")
    assert np.mean(session.run(None, {"x": x})[0].argmax(axis=1) == y) > 0.5
    # A large process takes a moment to exit.
    wait_until(lambda: not processes_of(folder), "the end of all processes", lambda: processes_of(folder))


def test_ctrl_c_ends_sites_with_separate_brokers_cleanly(tmp_path: Path) -> None:
    folder, terminal = tmp_path / "kept", tmp_path / "terminal.log"
    logs = [folder / f"device-{number}.log" for number in (1, 2)]
    # More rounds than it can finish before Ctrl-C, however late that arrives.
    options = ["--rounds", "1000000", "--target", "0", "--devices", "2", "--brokers", "per-site"]
    with terminal.open("wb") as file:
        demo = subprocess.Popen(
            [*DEMO, *options, "--output", str(folder)],
            stdout=file,
            stderr=file,
            # A shell that runs the tests in the background makes them ignore Ctrl-C, and the demo would inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        )
    try:
        wait_until(
            lambda: demo.poll() is not None or all(map(has_trained, logs)), "training on both", terminal.read_text
        )
        started = processes_of(folder)
        demo.send_signal(signal.SIGINT)
        demo.wait(LIMIT)
    finally:
        demo.kill()  # everything it started ends with it
    output = terminal.read_text()
    assert all(map(has_trained, logs)), output
    assert len(started) > 4, output
    assert demo.returncode == 130, output
    assert "all processes have ended" in output
    assert "Traceback" not in output
    wait_until(lambda: not processes_of(folder), "the end of all processes", lambda: processes_of(folder))
