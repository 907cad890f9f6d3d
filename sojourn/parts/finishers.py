"""What the coordinator makes of all members' models at once, after a round. It runs in `coordinator.finishers`."""

from __future__ import annotations

from typing import ClassVar

from sojourn.parts.part import Outcome, Own, Part


class FinisherPart(Part, frozen=True):
    """What the coordinator knows of a finisher."""

    sends: ClassVar[tuple[str, ...]] = ()
    """The vectors of its state that travel to the devices with the next round."""
    apart: ClassVar[bool] = False
    """Whether it runs in a process of its own: what needs torch does."""
    alone: ClassVar[bool] = True
    """Whether a member must be one device: then tours of several devices are refused."""
    device_half: ClassVar[str | None] = None
    """The name of the objective that it means nothing without."""
    outcome: ClassVar[Outcome] = "one model"


class NoFinisher(FinisherPart, frozen=True, tag="none"):
    """The aggregator's model is the result."""


class OwnFinisher(Own, frozen=True, tag="own"):
    """A finisher of one's own."""

    sends: ClassVar[tuple[str, ...]] = ()
    device_half: ClassVar[str | None] = None
    outcome: ClassVar[Outcome] = "one model"
    apart: bool = True
    """Whether it runs in a process of its own: what needs torch should."""
    alone: bool = False
    """Whether a member must be one device."""


Finisher = NoFinisher | OwnFinisher
