"""All roles on one workstation: `fleet_sim.simulate(...)` and `fleet_sim.read_simulation(...)` for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fleet_sim.run import Simulated, simulate
    from fleet_sim.settings import Simulation, read_simulation

__all__ = ["Simulated", "Simulation", "read_simulation", "simulate"]


def __getattr__(name: str) -> Any:
    """Load what is asked for: a command of this package need not load all of it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fleet_sim import run, settings  # noqa: PLC0415

    return getattr(run, name, None) or getattr(settings, name)
