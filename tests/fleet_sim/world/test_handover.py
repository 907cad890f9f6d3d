"""Models passed in memory: the same bits as packet by packet, and the computed cost of the transfer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fleet_sim.run import SimulationRun
from fleet_sim.settings import read_simulation
from fleet_sim.world.transfer import transfer_cost
from sojourn.profile import LinkProfile
from sojourn.protocol.envelope import Packet, inlined_size, pack, packed_size
from sojourn.protocol.messages import map_refs, refs
from sojourn.protocol.wire import Epoch, Ref
from sojourn.store.blobs import LEAF
from tests.sojourn.protocol.examples import EXAMPLES

if TYPE_CHECKING:
    from pathlib import Path

LARGE = {"model.options.hidden": [64], "rounds": 2}
"""4,810 numbers: too large to be inlined in a message."""
EPOCH = Epoch(3, bytes(8))
SLOW = {"simulation.link": "lte"}


def outcome(folder: Path, transfers: str, settings: dict[str, Any]) -> tuple[bytes, int, float, list[int]]:
    """Return the model, all bytes, the final clock, and the bytes of each round."""
    given = {
        "simulation.devices": 6, "simulation.sites": 2, "simulation.engine": "serial", "training.epochs": 1,
        **LARGE, **settings, "simulation.transfers": transfers,
    }  # fmt: skip
    running = SimulationRun(read_simulation("", "test", given), folder / transfers)
    try:
        *_, last = running.courses()
    finally:
        running.close()
    model = running.fleet.job("simulation").vectors["model"].digest
    return model, running.fleet.traffic, running.fleet.world.now, [report.traffic for report in last.history]


@pytest.mark.parametrize(
    "settings",
    [
        {"strategy": "visit", "arranger.sets": 2, "arranger.size": 3},
        {"strategy": "fedavg", "encoding": "int8", **SLOW},
        {"strategy": "scaffold", **SLOW},
        {"strategy": "fedelmy", "schedule.trips": 2, "objective.models": 2, "objective.warmup": 1},
        {"strategy": "hierfavg"},
    ],
    ids=lambda it: it["strategy"],
)
def test_computed_transfer_matches_packet_level_simulation(settings, tmp_path) -> None:
    model, total, clock, rounds = outcome(tmp_path, "computed", settings)
    simulated_model, simulated_total, simulated_clock, simulated_rounds = outcome(tmp_path, "simulated", settings)
    assert model == simulated_model
    assert total == pytest.approx(simulated_total, rel=0.02)
    assert rounds == pytest.approx(simulated_rounds, rel=0.02)
    assert clock == pytest.approx(simulated_clock, rel=0.02)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda it: type(it).__name__)
def test_computed_packet_size_matches_packed_bytes(example) -> None:
    for number in (1, 200, 70_000):
        message = map_refs(example, lambda ref: Ref(ref.digest, ref.size, ref.encoding, ref.delta))
        packet, epoch = Packet(number, EPOCH, message), len(msgspec.msgpack.encode(EPOCH))
        assert packed_size(number, epoch, message) == len(pack(packet))
        for content in (b"", bytes(255), bytes(256), bytes(16_000)):
            along = map_refs(message, partial(msgspec.structs.replace, inline=content))
            grown = len(refs(message)) * inlined_size(content)
            assert packed_size(number, epoch, message) + grown == len(pack(Packet(number, packet.epoch, along)))


def test_transfer_cost_grows_with_bytes_and_link_latency() -> None:
    line = LinkProfile(up=10_000, down=100_000, latency=0.5)
    none, one, many = (transfer_cost(size, (60_000, 60_000), None, None) for size in (0, 10, 40 * LEAF))
    assert 0 <= none.given <= one.given - 10 < 200
    assert 40 * LEAF < many.given < 40 * LEAF * 1.02
    assert many.asked > one.asked
    down, up = (transfer_cost(40 * LEAF, (60_000, 60_000), *lines) for lines in ((None, line), (line, None)))
    assert (down.given, down.asked) == (up.given, up.asked) == (many.given, many.asked)
    assert down.seconds > many.given / line.down + 4 * line.latency  # hashes are requested before leaves
    assert up.seconds > many.given / line.up + 4 * line.latency
