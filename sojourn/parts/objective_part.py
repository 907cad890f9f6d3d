"""What every objective tells of itself to those who do not run it."""

from __future__ import annotations

from typing import ClassVar

from sojourn.parts.part import Outcome, Part


class ObjectivePart(Part, frozen=True):
    """What the coordinator and an edge server know of an objective."""

    receives: ClassVar[tuple[str, ...]] = ()
    """The job's vectors that travel to a device besides the model."""
    returns: ClassVar[tuple[str, ...]] = ()
    """The vectors that a device sends back besides its model; an edge server sums them over a tour."""
    tells: ClassVar[tuple[str, ...]] = ()
    """The vectors of a length of their own (`sojourn.model.lengths`) that a device sends besides its model; a finisher
    sees each device's, and nobody sums them."""
    finisher_half: ClassVar[str | None] = None
    """The name of the finisher that it means nothing without."""
    consent: ClassVar[str | None] = None
    """What a device's owner must share for it, as `shares` in agent.toml calls it; None: nothing."""
    keeps: ClassVar[bool] = False
    """Whether a device remembers vectors from one visit to the next."""
    server_half: ClassVar[str | None] = None
    """The name of the aggregator that it means nothing without."""
    plain_sgd: ClassVar[bool] = False
    """Whether it is right for plain SGD alone: no momentum, no other optimiser."""
    keeps_model: ClassVar[bool] = False
    """Whether what a device remembers is the model that it sent back last, whole, under the name `own`."""
    one_descent: ClassVar[bool] = True
    """Whether a visit is one descent from the model received, so that several visits can step at once."""
    outcome: ClassVar[Outcome] = "one model"
    """Whether a device ends with a model of its own."""
    shared: ClassVar[str] = ""
    """What the job's one model is where that is no result of its own, for people."""

    @property
    def elsewhere(self) -> bool:
        """Whether a visit may start somewhere else than at the model received: then its way says little."""
        return False

    @property
    def length_tells(self) -> bool:
        """Whether the length of an update says something beside those of others: the gate compares them."""
        return True

    def passes(self, epochs: int, earlier: int) -> int:
        """How often a visit goes through the samples; `earlier`: the visits that the model had on this tour before."""
        del earlier
        return epochs

    def learns_from(self, samples: int) -> int:
        """How many of a device's samples are trained on; the others are held out."""
        return samples


def held_out(samples: int, *shares: float) -> tuple[int, ...]:
    """How many samples each share holds out; none at all where nothing would be left to train on."""
    each = tuple(int(share * samples + 0.5) for share in shares)
    return each if sum(each) < samples else (0,) * len(each)


def kept_for_training(samples: int, *shares: float) -> int:
    """How many samples are trained on, where these shares are held out."""
    return samples - sum(held_out(samples, *shares))
