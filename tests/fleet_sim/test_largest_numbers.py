"""Whatever numbers peers report within the limits, derived numbers fit into records and messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from coordinator.jobs.settings_tables import GateSettings
from hierarchy.edge.server import EdgeServer
from sojourn.node.machine import WorkDone
from sojourn.protocol.limits import MAX_BYTES, MAX_COUNT, MAX_NUMBER, sum_within
from sojourn.protocol.topics import Address
from tests.fleet_sim.small_fleet import TWO_SITES, SmallFleet, fedavg, job, visit
from tests.fleet_sim.test_kills import after

if TYPE_CHECKING:
    from edge_agent.training.messages import Train
    from sojourn.store.blobs import BlobStore

LARGEST = {"loss": MAX_NUMBER, "loss_first": -MAX_NUMBER, "steps": MAX_NUMBER, "remembered": MAX_NUMBER}


def boasts(_work: Train, outcome: Any, _blobs: BlobStore) -> Any:
    """A device with the maximum number of samples and maximum metrics."""
    if not isinstance(outcome, WorkDone):
        return outcome
    trained = msgspec.structs.replace(outcome.outcome, samples=MAX_COUNT, metrics=LARGEST)
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
def test_largest_numbers_keep_journals_readable(text: str) -> None:
    fleet = SmallFleet(TWO_SITES)
    fleet.changes = dict.fromkeys(fleet.devices, boasts)
    fleet.submit(text)
    for _ in range(40):
        after(fleet, 8)
        for site in TWO_SITES:
            machine = fleet.nodes[site].node.machine
            assert isinstance(machine, EdgeServer)
            for device in TWO_SITES[site]:
                machine.on_traffic(Address("device", device), 1 << 60, fleet.world.now, sign_of_life=False)
            fleet.nodes["cloud"].node.machine.on_traffic(
                Address("edge", site), 1 << 60, fleet.world.now, sign_of_life=False
            )
    state = fleet.run("job")
    assert state.status == "done"
    assert max(report.traffic for report in state.history) == MAX_BYTES
    assert set(state.samples.values()) == {GateSettings().most_samples}
    for name, node in fleet.nodes.items():
        for record in fleet.stores[name].load()[1]:
            msgspec.msgpack.decode(record, type=node.node.machine.record_form)
        fleet.kill(name)
        fleet.start(name)
    assert fleet.job("job") == state


def test_sums_are_capped_at_their_limit() -> None:
    assert sum_within([MAX_COUNT, MAX_COUNT]) == MAX_COUNT
    assert sum_within([1, 2], MAX_BYTES) == 3
    assert sum_within([]) == 0


def test_tiny_site_lease_does_not_block_the_servers() -> None:
    fleet = SmallFleet(TWO_SITES)
    fleet.submit(fedavg(tours__site_lease=1e-300))
    after(fleet, 20_000)
    assert fleet.world.now > 20
