"""The machine of a simulated node, as what it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from fleet_sim.world.memory_fleet import MemoryFleet

M = TypeVar("M")


def machine_of(fleet: MemoryFleet, name: str, kind: type[M]) -> M:
    """The machine of the node with this name, which is of this kind."""
    machine = fleet.nodes[name].node.machine
    assert isinstance(machine, kind)
    return machine
