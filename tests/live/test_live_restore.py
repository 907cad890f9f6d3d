"""A coordinator that restarts, or is restored from a backup, in the middle of a job ends with the same bits."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from tests.forked import sojourn
from tests.live.live_fleet import LiveFleet, job_text

JOB = job_text("NAME", rounds=3, devices=2).replace("sets = 2", "sets = 1")
JOB += "[training]\nepochs = 40\n[gate]\non = false\n"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory):
    live = LiveFleet(tmp_path_factory.mktemp("live"), {"edge-1": ["pi-1", "pi-2"]}, own_brokers=False)
    yield live
    live.stop()


@pytest.fixture(scope="module")
def undisturbed(fleet: LiveFleet) -> np.ndarray:
    assert fleet.run(JOB.replace("NAME", "undisturbed"), "undisturbed").status == "done"
    return fleet.model("undisturbed")


def coordinator(fleet: LiveFleet, *arguments: str) -> str:
    store = str(fleet.folder / "stores" / "cloud")
    return sojourn("coordinator", *arguments, "--store", store)


def test_restored_coordinator_ends_its_job_with_same_bits(fleet, undisturbed) -> None:
    """The backup is of round 2 and the store is lost in round 3, which runs again with the same randomness."""
    fleet.submit(JOB.replace("NAME", "restored"))
    fleet.wait_for("cloud", "job restored round 1: ")
    fleet.processes["cloud"].terminate()
    assert fleet.processes["cloud"].wait() == 0
    assert "blobs" in coordinator(fleet, "backup", str(fleet.folder / "stopped.tar"))
    fleet.start("cloud")
    fleet.wait_for("cloud", "job restored round 2: ")
    coordinator(fleet, "backup", str(fleet.folder / "running.tar"))
    fleet.wait_for("cloud", "job restored round 3: ")
    fleet.kill("cloud")
    shutil.rmtree(fleet.folder / "stores" / "cloud")
    coordinator(fleet, "restore", str(fleet.folder / "running.tar"))
    fleet.start("cloud")
    view = fleet.finish("restored")
    assert (view.status, [report.visits for report in view.history]) == ("done", [2, 2, 2]), view
    assert np.array_equal(fleet.model("restored"), undisturbed)
