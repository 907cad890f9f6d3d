"""What every objective tells of itself to those who do not run it."""

from __future__ import annotations

from typing import ClassVar

from sojourn.parts.part import Part


class ObjectivePart(Part, frozen=True):
    """What the coordinator and an edge server know of an objective."""

    receives: ClassVar[tuple[str, ...]] = ()
    """The job's vectors that travel to a device besides the model."""
    returns: ClassVar[tuple[str, ...]] = ()
    """The vectors that a device sends back besides its model; an edge server sums them over a tour."""
    keeps: ClassVar[bool] = False
    """Whether a device remembers vectors from one visit to the next."""
    server_half: ClassVar[str | None] = None
    """The name of the aggregator that it means nothing without."""
    plain_sgd: ClassVar[bool] = False
    """Whether it is right for plain SGD alone: no momentum, no other optimiser."""
    keeps_model: ClassVar[bool] = False
    """Whether what a device remembers is the model that it sent back last, whole, under the name `own`."""
