"""A device that declines, one that dies, and a restarted coordinator: the fleet's history over real MQTT."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from tests.forked import sojourn
from tests.live.live_fleet import FLEET, LiveFleet, job_text, split_digits
from tests.waiting import LIMIT

if TYPE_CHECKING:
    from pathlib import Path

SITES = {"edge-1": ["pi-1", "pi-2", "pi-3"]}


def test_skipped_devices_are_reported_and_fleet_is_remembered(tmp_path: Path) -> None:
    split_digits(tmp_path, ["pi-1", "pi-2"])
    np.savez(tmp_path / "pi-3.npz", x=np.zeros((20, 3)), y=np.zeros(20, int))  # no images of 8 x 8
    data = {name: str(tmp_path / f"{name}.npz") for name in SITES["edge-1"]}
    fleet = LiveFleet(tmp_path, SITES, own_brokers=False, data=data)
    try:
        view = fleet.run(job_text("job", 1, devices=3).replace("sets = 2", "sets = 1"), "job")
        assert view.status == "done"
        (declined,) = [line for line in view.history[0].failures if line.startswith("pi-3: not estimated: declined")]
        assert "skipped, they could not be estimated: pi-3" in view.history[0].failures
        fleet.wait_for("cloud", "device pi-2 is online (site edge-1")
        fleet.wait_for("edge-1", "device pi-2 is online")
        fleet.kill("pi-2")
        fleet.wait_for("cloud", "device pi-2 is offline (site edge-1")
        fleet.kill("cloud")
        fleet.start("cloud")
        with fleet.operator() as operator:
            operator.jobs(timeout=LIMIT)
            fleet.wait(lambda: [it.online for it in operator.devices()[0]] == [True, False, True], "the roster")
            notes = operator.visits(job="job")
        assert {(it.device, it.phase, it.status) for it in notes} == {
            ("pi-1", "estimate", "done"),
            ("pi-2", "estimate", "done"),
            ("pi-3", "estimate", "declined"),
            ("pi-1", "train", "done"),
            ("pi-2", "train", "done"),
        }
        (why,) = {it.reason for it in notes if it.device == "pi-3"}
        assert declined.startswith(f"pi-3: not estimated: declined, {why}")
        where = ["--broker", fleet._address("cloud"), "--fleet", FLEET]
        assert sojourn("fleet", "status", *where).splitlines()[0] == "3 devices: 2 online, 1 offline"
        shown = json.loads(sojourn("fleet", "show", "pi-3", "--json", *where))
        assert shown["device"]["offer"]["objectives"]
        assert shown["visits"][-1]["reason"] == why
        assert [it["event"] for it in shown["changes"]] == ["online"]
    finally:
        fleet.stop()
