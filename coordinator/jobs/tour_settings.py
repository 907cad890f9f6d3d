"""`[tours]` and `[gate]` of a job file: what bounds a visit, a result and a device's weight."""

from __future__ import annotations

import math
from typing import Any

from sojourn.errors import ConfigError
from sojourn.parts import Cosine, Evidence, Factor, Gate, Positive, Samples, Share, TourBounds, TourPolicy

LEASES = 60
"""Unless a job says how long one visit may take, it is as long as so many leases."""
LEAST_SPREAD, MOST_SPREAD = 0.2, 1e6
"""Growths of the loss that are this near to the usual are never far from it; a spread beyond the other is none."""
OPEN = Gate(norm_factor=None, loss_factor=None)
"""A gate that every finite model passes."""
MODES: dict[str, dict[str, Any]] = {"enforce": {}, "report": {"report": True}, "off": {"on": False}}
"""The tables that `gate = "..."` stands for."""


def gate_table(mode: str) -> dict[str, Any]:
    """The `[gate]` table that a word stands for."""
    if mode not in MODES:
        raise ConfigError(f"gate = {mode!r} is not a mode of the gate: write {', '.join(map(repr, MODES))}, or a table")
    return MODES[mode]


class TourSettings(TourPolicy, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What happens when a visit or a whole site fails, and how long a visit may take."""

    deadline: Positive | None = None
    """Seconds that one visit may take in all, however often it speaks; 60 leases unless told. Example: `3600`."""

    @property
    def policy(self) -> TourPolicy:
        """What every version of an edge server understands."""
        return TourPolicy(**{name: getattr(self, name) for name in TourPolicy.__struct_fields__})

    @property
    def visit_deadline(self) -> float:
        """The seconds that one visit may take."""
        return LEASES * self.lease if self.deadline is None else self.deadline


class GateSettings(Gate, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What results must pass, and how much one device may weigh.

    `gate = "report"` is short for `report = true`, and `gate = "off"` for `on = false`. The rules on the loss need
    exemplars: without them they are off.
    """

    on: bool = True
    """`false`: models need only be finite and of the right length, and nobody's weight is bounded."""
    report: bool = False
    """`true`: every result is kept unless it is damaged, no device's weight is bounded, and the reports count and name
    the results that the gate would have refused. The default of `simulate`, `compare` and `papers`."""
    loss_factor: Factor | None = 2.0
    """The loss on the exemplars may grow by this factor at a visit, on top of what is usual among the devices."""
    spread_factor: Factor = 15.0
    """The loss may grow by so many times the median deviation more than usual, where that is less than what loss_factor
    allows."""
    against_factor: Factor = 1.2
    """The loss may grow by this factor at most where the update points against the exemplars."""
    least_cosine: Cosine = -0.5
    """An update points against the exemplars when its cosine to their steepest descent is less than this."""
    most_evidence: Evidence = 0.4
    """How much may speak for false labels or a wrong direction where a classifier's loss rose by more than
    against_factor: most honest updates are below 0, most attacks above 0.5."""
    clip: bool = True
    """Whether an update that is only too long is shortened rather than refused."""
    most_samples: Samples = 1_000_000
    """A device's samples count as at most so many."""
    most_share: Share = 0.5
    """One device's share of the weight in a merge by samples at most, with four devices or more."""

    @property
    def rules(self) -> Gate:
        """What every version of an edge server understands."""
        return Gate(norm_factor=self.norm_factor, loss_factor=self.loss_factor) if self.on else OPEN

    def bounds(
        self, deadline: float, usual_samples: int | None = None, rises: tuple[float, float] = (1.0, math.inf)
    ) -> TourBounds:
        """What an edge server is told besides; with the gate off, only the deadline.

        rises: by which factor visits made the loss on the exemplars grow: the median, and the median deviation from it.
        """
        if not self.on:
            return TourBounds(deadline=deadline)
        most_rise = rises[0] + max(LEAST_SPREAD, self.spread_factor * rises[1]) if rises[1] < MOST_SPREAD else None
        return TourBounds(
            deadline=deadline,
            against_factor=self.against_factor,
            least_cosine=self.least_cosine,
            clip=self.clip and not self.report,
            most_samples=None if self.report else self.most_samples,
            most_share=None if self.report else self.most_share,
            usual_samples=usual_samples,
            usual_rise=rises[0],
            most_rise=most_rise,
            report=self.report,
            most_evidence=self.most_evidence,
        )
