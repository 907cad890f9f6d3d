"""No telemetry is sent."""

from __future__ import annotations

import os
import subprocess
import sys

LOOK = """
import time
from sojourn.model.graphs import Graphs, check_probe
from sojourn.model.workload import built_in
kit = built_in()
assert check_probe(kit, Graphs(kit)) is None
time.sleep(0.5)
from pathlib import Path
print([str(each.resolve()) for each in Path("/proc/self/fd").iterdir()])
"""


def test_onnxruntime_writes_no_telemetry(tmp_path) -> None:
    """onnxruntime's telemetry would open a database in the home folder when a session is created."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("ORT_", "XDG_"))}
    done = subprocess.run(
        [sys.executable, "-c", LOOK], env={**clean, "HOME": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert ".onnxruntime" not in done.stdout
    assert not [path for path in tmp_path.rglob("*") if "onnxruntime" in path.name.lower()]
