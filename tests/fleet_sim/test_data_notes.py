"""Suspicious properties of a device's data reach the job's report once, and its summary reaches the coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fleet_sim.world.memory_fleet import CLOUD
from sojourn.node.machine import LocalEvent, WorkDone
from sojourn.protocol.data_summary import DataSummary, DataSurvey
from tests.fleet_sim.small_fleet import TWO_SITES, SmallFleet, fedavg

if TYPE_CHECKING:
    from edge_agent.training.messages import Train
    from sojourn.node.machine import WorkFailed

ODD = "values are on another scale; to do: bring them to it"


def noting(_work: Train, outcome: WorkDone | WorkFailed, _blobs: object) -> WorkDone | WorkFailed:
    assert isinstance(outcome, WorkDone)
    return WorkDone(outcome.key, msgspec.structs.replace(outcome.outcome, note=ODD))


def test_data_note_is_reported_once_per_device() -> None:
    fleet = SmallFleet(TWO_SITES)
    fleet.changes["dev-1"] = noting
    fleet.submit(fedavg(rounds=3, fleet__devices=4))
    state = fleet.run("job")
    assert [report.failures for report in state.history] == [(f"dev-1: data: {ODD}",), (), ()]
    assert [(report.visits, report.lost) for report in state.history] == [(4, 0)] * 3


def test_survey_reaches_the_coordinator_with_the_next_roster() -> None:
    fleet = SmallFleet(TWO_SITES)
    fleet.submit(fedavg(fleet__devices=4))
    fleet.run("job")
    found = DataSurvey(DataSummary(samples=7, classes=("cat",), counts=(7,), class_count=1))
    fleet.nodes["dev-1"].report(LocalEvent(found))
    fleet.world.run(lambda: summary_of(fleet, "dev-1") is not None)
    assert summary_of(fleet, "dev-1") == found.summary  # simulated devices share their class counts
    assert summary_of(fleet, "dev-2") is None


def summary_of(fleet: SmallFleet, device: str) -> object:
    """Return the summary of a device's data at the coordinator."""
    rosters = fleet.nodes[CLOUD].node.machine.sites._rosters.values()  # type: ignore[attr-defined]
    return next(m.offer.summary for roster in rosters for m in roster.members if m.device == device)
