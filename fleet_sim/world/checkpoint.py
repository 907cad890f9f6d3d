"""A simulation on disk between two rounds: what every node would find in its store after a power cut."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from coordinator.machine.coordinator import Coordinator
from coordinator.records import ENDED
from fleet_sim.world.memory_fleet import CLOUD
from fleet_sim.world.virtual_fleet import VirtualFleet
from fleet_sim.world.world import no_collections
from sojourn.errors import ConfigError
from sojourn.store.files import open_atomic
from sojourn.store.journal import MemoryStore
from sojourn.store.memory_blobs import MemoryBlobs

FILE = "checkpoint.bin"
PAUSE = 2.0
"""Minimum seconds of real time between two checkpoints of a small fleet, which bounds the lost work."""
BYTES_PER_SECOND = 10 << 20
"""Larger checkpoints are written less often, as if at this speed, so that writing takes a small share of the time."""


class NodeKept(msgspec.Struct, frozen=True, array_like=True):
    """A snapshot of a node's journal, and the blobs that it references."""

    snapshot: bytes
    blobs: list[bytes]


class Checkpoint(msgspec.Struct, frozen=True):
    """All nodes at one moment; a blob shared by several nodes is stored once."""

    clock: float
    nodes: dict[str, NodeKept]
    blobs: dict[bytes, bytes]
    worker_times: dict[str, tuple[float, float]] = msgspec.field(name="warm")


def save(fleet: VirtualFleet, folder: Path) -> None:
    """Save all nodes, unless this was just done; the previous checkpoint is kept until the new one is complete."""
    if _ended(fleet) or _is_due(folder / FILE):
        with no_collections(), open_atomic(folder / FILE) as file:
            file.writelines(_pieces(_gathered(fleet)))


def _gathered(fleet: VirtualFleet) -> Checkpoint:
    """Return the current state of all nodes."""
    nodes, blobs = dict[str, NodeKept](), dict[bytes, bytes]()
    for name, simulated in fleet.nodes.items():
        machine, store = simulated.node.machine, fleet.stores[name]
        held = sorted(digest for digest in machine.live() if store.blobs.has(digest))
        nodes[name] = NodeKept(machine.snapshot(), held)
        blobs |= {digest: store.blobs.read(digest) for digest in held}
    for name, device in fleet.hibernated or ():
        if device.node.snapshot:
            kept = {digest: content.data for digest, content in device.blobs if content}
            nodes[name] = NodeKept(device.node.snapshot, list(kept))
            blobs |= kept
    return Checkpoint(fleet.world.now, nodes, blobs, fleet.worker_starts.times)


def _pieces(kept: Checkpoint) -> Iterator[bytes]:
    """Yield a checkpoint as msgpack in pieces, to avoid a second copy of the test set and the models."""
    encode, blobs = msgspec.msgpack.Encoder().encode, kept.blobs
    yield _map_of(len(Checkpoint.__struct_fields__))
    yield encode("clock") + encode(kept.clock) + encode("nodes") + encode(kept.nodes)
    yield encode("blobs") + _map_of(len(blobs))
    for digest, content in blobs.items():
        yield encode(digest) + _bytes_of(len(content))
        yield content
    yield encode("warm") + encode(kept.worker_times)


def _map_of(entries: int) -> bytes:
    """Return msgpack's shortest header of a map."""
    if entries < 1 << 4:
        return bytes([0x80 | entries])
    return b"\xde" + entries.to_bytes(2, "big") if entries < 1 << 16 else b"\xdf" + entries.to_bytes(4, "big")


def _bytes_of(size: int) -> bytes:
    """Return msgpack's shortest header of a byte string."""
    if size < 1 << 8:
        return b"\xc4" + size.to_bytes(1, "big")
    return b"\xc5" + size.to_bytes(2, "big") if size < 1 << 16 else b"\xc6" + size.to_bytes(4, "big")


class Resumed(msgspec.Struct, frozen=True):
    """The state from which a fleet resumes: the clock, every node's store, and the running training processes."""

    clock: float = 0.0
    stores: dict[str, MemoryStore] = {}
    worker_times: dict[str, tuple[float, float]] = {}


def load(folder: Path) -> Resumed:
    """Read the checkpoint of a result folder; raise ConfigError if there is none."""
    path = folder / FILE
    if not path.exists():
        raise ConfigError(f"{folder} has no {FILE}: no round was finished there, so start again in another folder")
    kept = msgspec.msgpack.decode(path.read_bytes(), type=Checkpoint)
    stores = {}
    for name, node in kept.nodes.items():
        store = MemoryStore()
        store.snapshot(node.snapshot)
        held = MemoryBlobs()
        for digest in node.blobs:
            held.put(kept.blobs[digest], digest)
        store.blobs = held
        stores[name] = store
    return Resumed(kept.clock, stores, kept.worker_times)


def _is_due(path: Path) -> bool:
    """Return whether to write the checkpoint: it is missing, or old enough for its size."""
    if not path.exists():
        return True
    kept = path.stat()
    return not 0 <= time.time() - kept.st_mtime < PAUSE + kept.st_size / BYTES_PER_SECOND


def _ended(fleet: VirtualFleet) -> bool:
    """Whether all jobs have ended, so that this checkpoint is the last."""
    machine = fleet.nodes[CLOUD].node.machine
    return isinstance(machine, Coordinator) and all(job.status in ENDED for job in machine.state.jobs.values())
