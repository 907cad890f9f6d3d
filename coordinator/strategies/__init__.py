"""Strategies by name. A paper is one short file."""

from __future__ import annotations

from coordinator.strategies import fedavg, visit
from coordinator.strategies.strategy import Strategy
from sojourn.config import nearest
from sojourn.errors import ConfigError

STRATEGIES: dict[str, Strategy] = {"fedavg": fedavg.STRATEGY, "visit": visit.STRATEGY}

__all__ = ["STRATEGIES", "Strategy", "named"]


def named(name: str, where: str) -> Strategy:
    """The strategy of this name."""
    try:
        return STRATEGIES[name]
    except KeyError:
        raise ConfigError(f"{where}: there is no strategy {name!r}; {nearest(name, STRATEGIES)}") from None
