"""Whatever numbers peers say within the limits, what is made of them fits into records and messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from coordinator.jobs.tour_settings import GateSettings
from hierarchy.edge.server import EdgeServer
from sojourn.node.machine import Did
from sojourn.protocol.limits import MOST, MOST_BYTES, MOST_FIGURE, sum_within
from sojourn.protocol.topics import Address
from tests.fleet_sim.small_fleet import TWO_SITES, SmallFleet, fedavg, job, visit
from tests.fleet_sim.test_kills import after

if TYPE_CHECKING:
    from edge_agent.training.work import Train
    from sojourn.store.blobs import BlobStore

LARGEST = {"loss": MOST_FIGURE, "loss_first": -MOST_FIGURE, "steps": MOST_FIGURE, "remembered": MOST_FIGURE}


def boasts(_work: Train, outcome: Any, _blobs: BlobStore) -> Any:
    """A device with the most samples, and figures as large as any."""
    if not isinstance(outcome, Did):
        return outcome
    trained = msgspec.structs.replace(outcome.outcome, samples=MOST, metrics=LARGEST)
    return msgspec.structs.replace(outcome, outcome=trained)


@pytest.mark.parametrize(
    "text",
    [
        fedavg(),
        visit(schedule__passes=3),
        job(strategy="hierfavg"),
        job(strategy="fedcat", arranger__sets=2, rounds=3),
        job(strategy="scaffold"),
    ],
    ids=["fedavg", "visit", "hierfavg", "fedcat", "scaffold"],
)
def test_a_fleet_of_the_largest_numbers_ends_its_job_with_journals_that_are_read_as_they_are(text: str) -> None:
    fleet = SmallFleet(TWO_SITES)
    fleet.changes = dict.fromkeys(fleet.devices, boasts)
    fleet.submit(text)
    for _ in range(40):
        after(fleet, 8)
        for site in TWO_SITES:
            machine = fleet.nodes[site].node.machine
            assert isinstance(machine, EdgeServer)
            for device in TWO_SITES[site]:
                machine.heard(Address("device", device), 1 << 60, fleet.world.now, spoke=False)
            fleet.nodes["cloud"].node.machine.heard(Address("edge", site), 1 << 60, fleet.world.now, spoke=False)
    state = fleet.run("job")
    assert state.status == "done"
    assert max(report.traffic for report in state.history) == MOST_BYTES
    assert set(state.samples.values()) == {GateSettings().most_samples}
    for name, node in fleet.nodes.items():
        for record in fleet.stores[name].load()[1]:
            msgspec.msgpack.decode(record, type=node.node.machine.record_form)
        fleet.kill(name)
        fleet.start(name)
    assert fleet.job("job") == state


def test_sums_are_cut_off_where_their_kind_is() -> None:
    assert sum_within([MOST, MOST]) == MOST
    assert sum_within([1, 2], MOST_BYTES) == 3
    assert sum_within([]) == 0


def test_a_sites_lease_as_short_as_can_be_keeps_no_server_from_anything_else() -> None:
    fleet = SmallFleet(TWO_SITES)
    fleet.submit(fedavg(tours__site_lease=1e-300))
    after(fleet, 20_000)
    assert fleet.world.now > 20
