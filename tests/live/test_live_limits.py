"""A device that overheats during a visit: it slows down, then declines with the reason, and returns when cool."""

import re
from pathlib import Path

import numpy as np
import pytest

from coordinator.jobs.data import digits_split
from tests.edge_agent.limits.fake_root import FakeRoot
from tests.live.live_fleet import LiveFleet, job_text

LIMITS = "[limits]\nthrottle_at = 70\nstop_at = 80\nroot = '{root}'\n"
LONG = "[training]\nepochs = 200\n[gate]\non = false\n"
ROUNDS = 1000
"""More than there is time for: the job is stopped once the device has trained again."""


class HotFleet(LiveFleet):
    """One device has limits, and nearly all samples: its visits are long, those of the other short."""

    def __init__(self, folder: Path) -> None:
        x, y = digits_split(train=True)
        data = {name: str(folder / f"{name}.npz") for name in ("pi-1", "pi-2")}
        np.savez(data["pi-1"], x=x[40:], y=y[40:])
        np.savez(data["pi-2"], x=x[:40], y=y[:40])
        self.hot = FakeRoot(folder)
        self.hot.heat(79.9)
        (folder / "hot.toml").write_text(LIMITS.format(root=self.hot.path))
        super().__init__(folder, {"edge-1": list(data)}, own_brokers=False, data=data)

    def _add(self, name: str, command: list[str]) -> None:
        super()._add(name, [*command, *([str(self.folder / "hot.toml")] if name == "pi-1" else [])])


@pytest.fixture
def fleet(tmp_path):
    live = HotFleet(tmp_path)
    yield live
    live.stop()


def declined_rounds(fleet: LiveFleet) -> list[int]:
    """Return the rounds that the hot device declined; an edge server that waits for an answer may have asked twice."""
    return list(dict.fromkeys(int(number) for number in re.findall(r"declined job round (\d+)", fleet.log("pi-1"))))


def test_tour_skips_hot_device_and_includes_it_when_cool(fleet) -> None:
    fleet.submit(job_text("job", ROUNDS, devices=2).replace("sets = 2", "sets = 1") + LONG)
    fleet.wait_for("cloud", "job job: 2 devices estimated")
    fleet.wait_for("pi-1", "visit job round 1 tour", 2)  # the first was the estimation; at this pace it takes long
    fleet.wait_for("pi-1", "device is hot: training slowed")
    assert "declined" not in fleet.log("pi-1")
    fleet.hot.heat(85)
    # The first in the middle of its visit, the second never begun.
    fleet.wait(lambda: len(declined_rounds(fleet)) >= 2, "two rounds that pi-1 declines")
    declined = declined_rounds(fleet)
    assert fleet.log("pi-1").count("85 °C; training resumes below 70 °C") >= len(declined)
    fleet.hot.heat(60)
    with fleet.operator() as operator:

        def newest() -> int:
            history = operator.job("job", max(0, operator.job("job").round - 1)).history
            return int(history[-1].visits) if history else 0

        fleet.wait(lambda: newest() == 2, "a round of both devices")
        operator.stop("job")
    view = fleet.finish("job")
    assert view.status == "stopped"
    first, second = declined[:2]
    assert second == first + 1
    assert (view.history[first - 1].visits, view.history[second - 1].visits) == (1, 1)
    assert any("hot: 85 °C" in line for line in view.history[first - 1].failures), view.history[first - 1].failures
    log = fleet.log("pi-1")
    assert "trained" not in log.partition(f"declined job round {first}")[2].partition(f"declined job round {second}")[0]


LARGE = """
name = "large"
strategy = "fedavg"
rounds = 1
threads = 1
model = { name = "mlp", options = { hidden = [4096, 1024] } }
data = { test = "digits" }
fleet = { devices = 2 }
"""
"""More memory than a training process of an earlier job holds, which a device could reuse."""


def test_device_without_memory_declines_before_fetching(fleet) -> None:
    fleet.hot.memory(10)
    view = fleet.run(LARGE, "large")
    assert (view.status, view.history[0].visits, view.history[0].lost) == ("done", 1, 1)
    assert "memory: training this model takes about" in view.history[0].failures[0]
    log = fleet.log("pi-1")
    assert "MB are available here: stop other programs" in log
    assert "trained large" not in log
