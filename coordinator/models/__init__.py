"""Models by name: the ones that come with Sojourn, and a user's own."""

from coordinator.models.building import build

__all__ = ["build"]
