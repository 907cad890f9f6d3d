"""`[tours]` and `[gate]` of a job file: what bounds a visit, a result and a device's weight."""

from __future__ import annotations

from sojourn.parts import Cosine, Factor, Gate, Positive, Samples, Share, TourBounds, TourPolicy

LEASES = 60
"""Unless a job says how long one visit may take, it is as long as so many leases."""
OPEN = Gate(norm_factor=None, loss_factor=None)
"""A gate that every finite model passes."""


class TourSettings(TourPolicy, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`[tours]` of a job: the policy, and the seconds that one visit may take in all, however often it speaks."""

    deadline: Positive | None = None
    """None: as long as 60 leases."""

    @property
    def policy(self) -> TourPolicy:
        """What every version of an edge server understands."""
        return TourPolicy(**{name: getattr(self, name) for name in TourPolicy.__struct_fields__})

    @property
    def visit_deadline(self) -> float:
        """The seconds that one visit may take."""
        return LEASES * self.lease if self.deadline is None else self.deadline


class GateSettings(Gate, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`[gate]` of a job: what results must pass, and how much one device may weigh.

    on: whether anything is checked but that models are finite and of the right length. The rules on the loss need
    exemplars: without them they are off. The others are explained at `TourBounds`.
    """

    on: bool = True
    loss_factor: Factor | None = 2.0
    against_factor: Factor = 1.2
    least_cosine: Cosine = -0.5
    clip: bool = True
    most_samples: Samples = 1_000_000
    most_share: Share = 0.5

    @property
    def rules(self) -> Gate:
        """What every version of an edge server understands."""
        return Gate(norm_factor=self.norm_factor, loss_factor=self.loss_factor) if self.on else OPEN

    def bounds(self, deadline: float, usual_samples: int | None = None, usual_rise: float = 1.0) -> TourBounds:
        """What an edge server is told besides; with the gate off, only the deadline."""
        if not self.on:
            return TourBounds(deadline=deadline)
        return TourBounds(
            deadline=deadline,
            against_factor=self.against_factor,
            least_cosine=self.least_cosine,
            clip=self.clip,
            most_samples=self.most_samples,
            most_share=self.most_share,
            usual_samples=usual_samples,
            usual_rise=usual_rise,
        )
