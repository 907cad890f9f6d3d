"""How often a simulation writes checkpoints."""

from __future__ import annotations

import math
import os
import time

import msgspec
import pytest

from fleet_sim.run import SimulationRun
from fleet_sim.settings import read_simulation
from fleet_sim.world import checkpoint

TEXT = """
strategy = "fedavg"
rounds = 4
threads = 1
model = { name = "mlp", options = { hidden = [16] } }
training = { epochs = 1, batch = 64 }
simulation = { devices = 2, sites = 1, engine = "serial" }
"""


def clocks(folder) -> list[float]:
    """Return the clocks of the checkpoints that existed after each round."""
    found, running = [], SimulationRun(read_simulation(TEXT, "a test"), folder)
    save = checkpoint.save

    def saved(fleet, path) -> None:
        save(fleet, path)
        found.append(checkpoint.load(path).clock)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "save", saved)
        for _ in running.courses():
            pass
    running.close()
    return found


def test_recent_checkpoint_is_not_rewritten_before_the_end(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(checkpoint, "PAUSE", 1e9)
    first, second, third, last = clocks(tmp_path / "out")
    assert first == second == third < last


def test_every_round_is_saved_without_a_pause(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(checkpoint, "PAUSE", 0.0)
    monkeypatch.setattr(checkpoint, "BYTES_PER_SECOND", math.inf)
    found = clocks(tmp_path / "out")
    assert len(found) == 4
    assert sorted(set(found)) == found


@pytest.mark.parametrize(
    ("size", "age", "old"),
    [
        (0, 1.0, False),
        (0, 3.0, True),
        (100 << 20, 3.0, False),
        (100 << 20, 11.0, False),
        (100 << 20, 13.0, True),
        (0, -60.0, True),
    ],
)
def test_large_checkpoint_is_written_less_often(tmp_path, monkeypatch, size, age, old) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)  # a machine that stalls for a second makes it older
    path = tmp_path / "checkpoint.bin"
    path.touch()
    os.truncate(path, size)
    os.utime(path, (now - age,) * 2)
    assert checkpoint._is_due(path) is old


def test_missing_checkpoint_is_due(tmp_path) -> None:
    assert checkpoint._is_due(tmp_path / "checkpoint.bin")


@pytest.mark.parametrize("size", [0, 255, 256, 65_535, 65_536])
@pytest.mark.parametrize("count", [0, 15, 16, 65_536])
def test_checkpoint_pieces_equal_one_msgpack_encoding(size: int, count: int) -> None:
    blobs = {number.to_bytes(32, "big"): b"" for number in range(count)} | ({b"x" * 32: b"y" * size} if size else {})
    kept = checkpoint.Checkpoint(1.5, {"cloud": checkpoint.NodeKept(b"s", list(blobs)[:2])}, blobs, {"d": (0.0, 1.0)})
    assert b"".join(checkpoint._pieces(kept)) == msgspec.msgpack.encode(kept)
