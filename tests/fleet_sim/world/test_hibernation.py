"""Idle devices have no node; woken devices continue as if they had been awake all the time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from coordinator.rounds import planning
from fleet_sim import run
from fleet_sim import run as runs
from fleet_sim.run import SimulationRun
from fleet_sim.settings import read_simulation
from fleet_sim.world import checkpoint, hibernation
from fleet_sim.world.memory_fleet import CLOUD
from fleet_sim.world.virtual_fleet import VirtualFleet
from fleet_sim.world.world import SimulatedNode

if TYPE_CHECKING:
    from pathlib import Path

    from fleet_sim.world.world import NodeSnapshot, WakeListener

SETTINGS = {
    "rounds": 2, "simulation.engine": "serial", "simulation.sites": 3, "training.epochs": 1, "model.name": "mlp",
    "model.options": {"hidden": []}, "split.samples": 4, "split.shared": True,
    "data.exemplars_per_class": 1,
}  # fmt: skip


def begun(folder: Path, strategy: str, devices: int, **changes: object) -> SimulationRun:
    """Return a started simulation."""
    settings = {**SETTINGS, "strategy": strategy, "simulation.devices": devices, **changes}
    return SimulationRun(read_simulation("", "test", settings), folder)


def ended(running: SimulationRun) -> tuple[bytes, list[dict[str, str]], int, float]:
    """Return the final model, every recorded visit, all bytes, and the clock."""
    for _ in running.courses():
        pass
    job = running.fleet.job(running.name)
    assert job.status == "done", job.detail
    visits = running.results.rows("visits.csv")
    running.close()
    return job.vectors["model"].digest, visits, running.fleet.traffic, running.fleet.world.now


def test_only_selected_devices_have_a_node(tmp_path: Path) -> None:
    running = begun(tmp_path / "many", "fedavg", 3000, **{"arranger.fraction": 10 / 3000, "rounds": 1})
    fleet = running.fleet
    assert len(fleet.nodes) == 4  # the cloud and three sites
    ended(running)
    assert fleet.coordinator().sites.count() == 3000
    assert len(fleet.nodes) == len(fleet.stores) == 4 + 10
    assert fleet.hibernated is not None
    assert sum(1 for _ in fleet.hibernated) == 2990


@pytest.mark.parametrize(
    ("strategy", "changes"),
    [
        ("visit", {"arranger.sets": 2, "arranger.size": 3, "estimator.epochs": 1}),
        ("scaffold", {}),
        ("fedavg", {"availability.dropout": 0.3, "availability.duty_cycle": {"on": 9, "of": 12}}),
        ("fedavg", {"simulation.transfers": "simulated"}),
    ],
)
def test_hibernated_devices_give_the_same_result_as_awake_ones(
    strategy: str, changes: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"rounds": 8, **({} if strategy == "visit" else {"arranger.fraction": 0.5}), **changes}
    monkeypatch.setattr(hibernation, "MAX_AWAKE", 1)
    monkeypatch.setattr(planning, "ESTIMATED_AT_ONCE", 4)
    hibernate: list[NodeSnapshot] = []
    of_node = SimulatedNode.hibernate

    def noted(self: SimulatedNode, wake_listener: WakeListener) -> NodeSnapshot | None:
        rest = of_node(self, wake_listener)
        hibernate.extend([rest] if rest else [])
        return rest

    monkeypatch.setattr(SimulatedNode, "hibernate", noted)
    slept = ended(begun(tmp_path / "hibernating", strategy, 12, **changes))
    assert len(hibernate) > 4
    monkeypatch.setattr(runs, "VirtualFleet", lambda *args, **named: VirtualFleet(*args, **named, hibernating=False))
    always = ended(begun(tmp_path / "awake", strategy, 12, **changes))
    assert slept == always


def test_killed_simulation_resumes_with_hibernated_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hibernation, "MAX_AWAKE", 1)
    monkeypatch.setattr(checkpoint, "PAUSE", 0.0)
    # The state is checked after every round, however long it takes.
    monkeypatch.setattr(run, "REFRESH", math.inf)
    monkeypatch.setattr(run, "SHARE_WITH_NEWS", math.inf)
    changes: dict[str, object] = {"arranger.fraction": 0.5, "rounds": 4}
    whole = ended(begun(tmp_path / "whole", "scaffold", 12, **changes))
    cut = begun(tmp_path / "cut", "scaffold", 12, **changes)
    for course in cut.courses():
        if len(course.history) >= 2:
            break
    assert not course.ended  # a third round may have been evaluated by then
    cut.engine.close()
    cut.results.close()
    again = SimulationRun(cut.simulation, tmp_path / "cut", resume=True)
    assert len(again.fleet.nodes) < 4 + 12
    assert CLOUD in again.fleet.nodes
    assert ended(again)[0] == whole[0]
