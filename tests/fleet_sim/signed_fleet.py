"""A small fleet whose devices have their own keys, and edge servers that an attacker may control."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinator.machine.authorization import Trust
from coordinator.machine.coordinator import Coordinator
from coordinator.machine.kept_models import BEST_ONLY
from coordinator.rounds.device_signatures import HopCheck, NodeKeys, SigningPolicy
from edge_agent.agent import Agent
from edge_agent.result_signing import visit_signer
from edge_agent.training.objectives import NAMES
from fleet_sim.world.memory_fleet import CLOUD
from sojourn.links.memory import MemoryLink
from sojourn.node.workers import InlineWorkers
from sojourn.protocol.signing import NodeKey
from sojourn.protocol.task import ABILITIES
from sojourn.protocol.wire import Offer
from tests.fleet_sim.small_fleet import SHARES, OnceBench, SlowTraining, SmallFleet

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sojourn.data.source import DataSettings
    from sojourn.links.memory import MemoryBroker
    from sojourn.node.node import Node
    from sojourn.store.blobs import BlobStore

_FOLDER = tempfile.TemporaryDirectory(prefix="sojourn-keys-")


@cache
def key_folder(device: str) -> Path:
    """Return the folder of a device's keys."""
    folder = Path(_FOLDER.name) / device
    folder.mkdir()
    NodeKey.generate(folder / "node.key")
    return folder


def public_key(device: str) -> bytes:
    return NodeKey.load(key_folder(device) / "node.key").public_bytes


class SignedFleet(SmallFleet):
    """`unsigned` devices have no key; `known` devices' keys are registered with the coordinator."""

    def __init__(
        self,
        sites: Mapping[str, tuple[str, ...]],
        *,
        policy: SigningPolicy = "enrolled",
        unsigned: tuple[str, ...] = (),
        signers: Mapping[str, str] | None = None,
        **how: Any,
    ) -> None:
        """`signers`: devices that sign with the key of another."""
        self.unsigned, self.signers = unsigned, signers or {}
        names = [name for devices in sites.values() for name in devices]
        self.keys = NodeKeys(None, policy, {name: public_key(name) for name in names if name not in unsigned})
        super().__init__(sites, **how)

    def _coordinator(self, broker: MemoryBroker) -> Node:
        link = MemoryLink(broker)
        node = self._node(
            Coordinator(CLOUD, keep=BEST_ONLY, trust=Trust(device_keys=self.keys.of)),
            {"edge": link, "cloud": link},
            lambda store: InlineWorkers(SignedBench(store.blobs, self.keys)),
        )
        node.on_record(self._planned)
        return node

    def _agent(self, name: str, data: DataSettings, broker: MemoryBroker) -> Node:
        offer = Offer("1", "simulated", "onnxruntime", 1, 0, NAMES, "simulated", SHARES, ABILITIES)
        sign = None if name in self.unsigned else visit_signer(name, key_folder(self.signers.get(name, name)))
        agent = Agent(name, offer, sign=sign)
        return self._node(agent, {"edge": MemoryLink(broker)}, lambda store: SlowTraining(self, name, store.blobs))


class SignedBench(OnceBench):
    """Verifies signatures of devices."""

    def __init__(self, blobs: BlobStore, keys: NodeKeys) -> None:
        super().__init__(blobs)
        self._keys, self._hops = keys, HopCheck(keys)
