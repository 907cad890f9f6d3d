"""All roles on one workstation: `fleet_sim.simulate(...)` and `fleet_sim.read_simulation(...)` for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fleet_sim.run import simulate
    from fleet_sim.settings import Simulation, read_simulation
    from fleet_sim.simulated import Simulated

__all__ = ["Simulated", "Simulation", "read_simulation", "simulate"]


def __getattr__(name: str) -> Any:
    """Load what is asked for: a command of this package need not load all of it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fleet_sim import run, settings, simulated  # noqa: PLC0415

    return next(getattr(room, name) for room in (simulated, settings, run) if hasattr(room, name))


def __dir__() -> list[str]:
    """What there is, loaded or not, so that a notebook completes it."""
    return sorted({*globals(), *__all__})
