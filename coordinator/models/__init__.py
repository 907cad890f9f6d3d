"""Models by name: the ones that come with Sojourn, and a user's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coordinator.models.building import build

__all__ = ["build"]


def __getattr__(name: str) -> Any:
    """Torch takes seconds: it is loaded where a model is built, and not where a data set is read."""
    if name not in __all__:
        raise AttributeError(name)
    from coordinator.models import building  # noqa: PLC0415

    return getattr(building, name)
