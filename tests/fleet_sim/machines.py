"""Access to the machine of a simulated node with its real type."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from fleet_sim.world.memory_fleet import MemoryFleet

M = TypeVar("M")


def machine_of(fleet: MemoryFleet, name: str, kind: type[M]) -> M:
    """Return the machine of the node with this name, checked to be of this type."""
    machine = fleet.nodes[name].node.machine
    assert isinstance(machine, kind)
    return machine
