"""Simulates all roles on one machine; notebooks use `simulate(...)` and `read_simulation(...)`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fleet_sim.run import simulate
    from fleet_sim.settings import Simulation, read_simulation
    from fleet_sim.simulation_result import Simulated

__all__ = ["Simulated", "Simulation", "read_simulation", "simulate"]


def __getattr__(name: str) -> Any:
    """Import an attribute on first use, because commands of this package need only some of them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fleet_sim import run, settings, simulation_result  # noqa: PLC0415

    return next(getattr(room, name) for room in (simulation_result, settings, run) if hasattr(room, name))


def __dir__() -> list[str]:
    """List all attributes, imported or not, for completion in a notebook."""
    return sorted({*globals(), *__all__})
