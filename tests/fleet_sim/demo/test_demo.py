"""The whole thing: a fleet of processes on this machine, over a real broker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime

from coordinator.jobs.data import digits_split

DEMO = [sys.executable, "-m", "sojourn.cli", "demo", "--alpha", "1"]


def processes_of(folder: Path) -> list[int]:
    """The processes that have to do with a folder; only Linux can tell."""
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


def test_the_demo_trains_a_model_that_works(tmp_path: Path) -> None:
    folder, devices = tmp_path / "kept", 4
    options = ["--rounds", "3", "--target", "0", "--output", str(folder), "--devices", str(devices)]
    done = subprocess.run([*DEMO, *options], capture_output=True, text=True, timeout=170, check=False)
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
    assert not processes_of(folder)


def test_sites_with_brokers_of_their_own_train_and_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    logs = [folder / f"device-{number}.log" for number in (1, 2)]
    demo = subprocess.Popen(
        [*DEMO, "--target", "0", "--devices", "2", "--brokers", "per-site", "--output", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A shell that runs the tests in the background has them ignore Ctrl-C, and so would the demo.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    deadline = time.monotonic() + 150
    while demo.poll() is None and not all(map(has_trained, logs)) and time.monotonic() < deadline:
        time.sleep(0.1)
    started = processes_of(folder)
    demo.send_signal(signal.SIGINT)
    said, _ = demo.communicate(timeout=30)
    assert all(map(has_trained, logs)), said
    assert len(started) > 4, said
    assert demo.returncode == 130, said
    assert "all processes have ended" in said
    assert "Traceback" not in said
    deadline = time.monotonic() + 10
    while processes_of(folder) and time.monotonic() < deadline:  # a large process takes a moment to be gone
        time.sleep(0.1)
    assert not processes_of(folder)
