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
import pytest

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


@pytest.mark.parametrize(("brokers", "devices"), [("one", 4), ("per-site", 2)])
def test_the_demo_trains_a_model_that_works(brokers: str, devices: int, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    options = [
        "--rounds",
        "3",
        "--target",
        "0",
        "--output",
        str(folder),
        "--brokers",
        brokers,
        "--devices",
        str(devices),
    ]
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


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    demo = subprocess.Popen(
        [*DEMO, "--devices", "4", "--output", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A shell that runs the tests in the background has them ignore Ctrl-C, and so would the demo.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    deadline = time.monotonic() + 90
    while demo.poll() is None and not (folder / "device-4.log").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    started = processes_of(folder)
    demo.send_signal(signal.SIGINT)
    said, _ = demo.communicate(timeout=30)
    assert len(started) > 4, said
    assert demo.returncode == 130, said
    assert "all processes have ended" in said
    assert "Traceback" not in said
    deadline = time.monotonic() + 10
    while processes_of(folder) and time.monotonic() < deadline:  # a large process takes a moment to be gone
        time.sleep(0.1)
    assert not processes_of(folder)
