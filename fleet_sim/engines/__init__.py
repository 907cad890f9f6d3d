"""Training engines for the visits of simulated devices, behind one interface."""

from fleet_sim.engines.choosing import choose
from fleet_sim.engines.engine import Engine, Network, Outcome, Shards
from fleet_sim.engines.process_pool import ProcessPoolEngine
from fleet_sim.engines.serial import SerialEngine

__all__ = ["Engine", "Network", "Outcome", "ProcessPoolEngine", "SerialEngine", "Shards", "choose"]
