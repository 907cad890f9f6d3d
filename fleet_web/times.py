"""Times and durations as people read them."""

from __future__ import annotations

from coordinator.console.fleet_tables import age, moment

__all__ = ["age", "moment"]
