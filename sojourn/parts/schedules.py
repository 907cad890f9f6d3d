"""Settings of schedules: which tours run in a round, from which model, and when models merge."""

from __future__ import annotations

from typing import ClassVar, Literal

from sojourn.parts.part import Count, Natural, NotNegative, Own, Part, Share

Order = Literal["arranged", "shuffled"]


class SchedulePart(Part, frozen=True):
    """The properties of a schedule that the coordinator uses."""

    in_turn: ClassVar[bool] = False
    """Whether tours run one after another with one model, so that a device is never on two at once."""
    at_edge: ClassVar[bool] = False
    """Whether models merge at the edge servers before the coordinator merges them."""
    counts_sets: ClassVar[bool] = False
    """Whether it sets the arranger's number of sets."""

    @property
    def fixed_rounds(self) -> int | None:
        """The number of rounds, if the schedule determines it."""
        return None

    @property
    def arranges_once(self) -> bool:
        """Whether devices are arranged only once, before the first round."""
        return getattr(self, "rearrange_every", 1) == 0


class EveryRound(SchedulePart, frozen=True, tag="every-round"):
    """All tours start from the global model and merge after the round."""

    rearrange_every: Natural = 1
    """Arrange the devices again every N rounds; 0: never."""
    fraction: Share = 1.0
    """The share of the sets that trains in a round, at least one set."""
    order: Order = "arranged"
    """The order of the devices in a set: as `arranged`, or `shuffled` each round."""
    passes: Count = 1
    """How many times a model tours its set in a round."""


class Slots(SchedulePart, frozen=True, tag="slots"):
    """Several models tour for several rounds before they merge.

    There is a slot for each set that trains in a round. The tour of set i starts from slot i and stores its model there
    (FedSeqInter), or uses slot (i - j) mod K in round j = 0, 1, ... of the cycle (rotate: FedCat).
    """

    merge_every: Natural = 0
    """Rounds until models merge; 0: the number of sets."""
    rotate: bool = False
    """Whether each model moves to another set in the next round (FedCat)."""
    rearrange_every: Natural = 0
    """Arrange the devices again every N rounds; 0: never."""
    fraction: Share = 1.0
    """The share of the sets that trains in a round, at least one set."""
    order: Order = "arranged"
    """The order of the devices in a set: as `arranged`, or `shuffled` each round."""
    passes: Count = 1
    """How many times a model tours its set in a round."""


class SequentialToParallel(SchedulePart, frozen=True, tag="stp"):
    """FedGSP: round r has f(r) groups, a growing number, of which a share kappa trains.

    linear: beta floor(alpha (r - 1) + 1); log: beta floor(alpha ln r + 1); exp: beta floor((1 + alpha)^(r - 1)).
    """

    counts_sets: ClassVar[bool] = True
    growth: Literal["linear", "log", "exp"] = "log"
    """The growth of the number of groups over the rounds."""
    alpha: NotNegative = 2.0
    """The growth rate; 0 for no growth."""
    beta: Count = 10
    """The initial number of groups, and the factor of its growth."""
    kappa: Share = 0.3
    """The share of the groups that trains in a round."""
    order: Order = "shuffled"
    """The order of the devices in a group: as `arranged`, or `shuffled` each round."""
    passes: Count = 1
    """How many times a model tours its set in a round."""


class Ring(SchedulePart, frozen=True, tag="ring"):
    """One model tours all sets, one after another, `trips` times; each trip is a round (FedELMY's few-shot form)."""

    in_turn: ClassVar[bool] = True
    trips: Count = 1
    """The number of trips around all sets; each trip is a round."""
    order: Order = "arranged"
    """The order of the devices in a set: as `arranged`, or `shuffled` each round."""
    passes: Count = 1
    """How many times a model tours its set in a round."""

    @property
    def fixed_rounds(self) -> int:
        """One round for each trip."""
        return self.trips

    @property
    def arranges_once(self) -> bool:
        """Every trip has the same order."""
        return True


class PhasedRing(SchedulePart, frozen=True, tag="phased-ring"):
    """MetaFed: every device trains alone, then one model tours all sets `trips` times, then every device trains alone.

    Each trip is a round, and so are the first and the last phase. The models that devices train alone stay on them.
    """

    in_turn: ClassVar[bool] = True
    trips: Count = 299
    """The number of trips around all sets (the paper's R - 1)."""

    @property
    def fixed_rounds(self) -> int:
        """One round for each trip, one before and one after."""
        return self.trips + 2

    @property
    def arranges_once(self) -> bool:
        """Every trip has the same order."""
        return True


class OneShot(SchedulePart, frozen=True, tag="one-shot"):
    """One round of parallel tours, merged once."""

    order: Order = "arranged"
    """The order of the devices in a set: as `arranged`, or `shuffled`."""
    passes: Count = 1
    """How many times a model tours its set in a round."""

    @property
    def fixed_rounds(self) -> int:
        """One round."""
        return 1

    @property
    def arranges_once(self) -> bool:
        """There is no second round."""
        return True


class EdgeCloud(SchedulePart, frozen=True, tag="edge-cloud"):
    """Client-edge-cloud: the devices of a set train in parallel and merge at their edge server."""

    at_edge: ClassVar[bool] = True
    edge_merges: Count = 2
    """The number of merges at the edge before the cloud merges (the paper's kappa_2, VISIT's j)."""
    rearrange_every: Natural = 1
    """Arrange the devices again every N rounds; 0: never."""


class OwnSchedule(Own, frozen=True, tag="own"):
    """A custom schedule."""

    in_turn: ClassVar[bool] = False
    at_edge: ClassVar[bool] = False
    counts_sets: ClassVar[bool] = False
    fixed_rounds: ClassVar[int | None] = None
    arranges_once: ClassVar[bool] = False


Schedule = EveryRound | Slots | SequentialToParallel | Ring | PhasedRing | OneShot | EdgeCloud | OwnSchedule
