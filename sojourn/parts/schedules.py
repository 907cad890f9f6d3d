"""Which tours run in a round, from which model, and when models merge. The algorithms are in `coordinator`."""

from __future__ import annotations

from typing import ClassVar, Literal

from sojourn.parts.part import Count, Natural, NotNegative, Own, Part, Share

Order = Literal["arranged", "shuffled"]


class SchedulePart(Part, frozen=True):
    """What others must know of a schedule."""

    in_turn: ClassVar[bool] = False
    """Whether tours follow one another with one model, so that a device is never on two at once."""
    at_edge: ClassVar[bool] = False
    """Whether models merge at the edge servers before they come home."""
    counts_sets: ClassVar[bool] = False
    """Whether it asks the arranger for a number of sets."""

    @property
    def fixed_rounds(self) -> int | None:
        """How many rounds it has, if it says so itself."""
        return None

    @property
    def arranges_once(self) -> bool:
        """Whether devices are arranged before the first round and never again."""
        return getattr(self, "rearrange_every", 1) == 0


class EveryRound(SchedulePart, frozen=True, tag="every-round"):
    """All tours start from the global model and merge after the round."""

    rearrange_every: Natural = 1
    """Arrange anew every so many rounds; 0: never."""
    fraction: Share = 1.0
    """The share of the sets that trains in a round, at least one."""
    order: Order = "arranged"
    """The devices of a set as `arranged`, or `shuffled` each round."""
    passes: Count = 1
    """How often a model tours its set in a round."""


class Slots(SchedulePart, frozen=True, tag="slots"):
    """Several models travel for some rounds before they merge.

    As many slots as sets train in a round; the i-th set's tour starts from slot i and leaves its model there
    (FedSeqInter), or from slot (i - j) mod K in the cycle's round j = 0, 1, ... (rotate: FedCat).
    """

    merge_every: Natural = 0
    """Rounds until models merge; 0: as many as there are sets."""
    rotate: bool = False
    """Whether each model goes on to another set in the next round (FedCat)."""
    rearrange_every: Natural = 0
    """Arrange anew every so many rounds; 0: never."""
    fraction: Share = 1.0
    """The share of the sets that trains in a round, at least one."""
    order: Order = "arranged"
    """The devices of a set as `arranged`, or `shuffled` each round."""
    passes: Count = 1
    """How often a model tours its set in a round."""


class SequentialToParallel(SchedulePart, frozen=True, tag="stp"):
    """FedGSP: round r asks for f(r) groups, more and more; a share kappa of them trains, the rest waits.

    linear: beta floor(alpha (r - 1) + 1); log: beta floor(alpha ln r + 1); exp: beta floor((1 + alpha)^(r - 1)).
    """

    counts_sets: ClassVar[bool] = True
    growth: Literal["linear", "log", "exp"] = "log"
    """How the number of groups grows with the rounds."""
    alpha: NotNegative = 2.0
    """How fast it grows; 0 for not at all."""
    beta: Count = 10
    """The number that it begins with, and grows by."""
    kappa: Share = 0.3
    """The share of the groups that trains in a round."""
    order: Order = "shuffled"
    """The devices of a group as `arranged`, or `shuffled` each round."""
    passes: Count = 1
    """How often a model tours its set in a round."""


class Ring(SchedulePart, frozen=True, tag="ring"):
    """One model goes through all sets, one after another, `trips` times; a trip is a round (FedELMY's few shots)."""

    in_turn: ClassVar[bool] = True
    trips: Count = 1
    """How often the model goes around; each trip is a round."""
    order: Order = "arranged"
    """The devices of a set as `arranged`, or `shuffled` each round."""
    passes: Count = 1
    """How often a model tours its set in a round."""

    @property
    def fixed_rounds(self) -> int:
        """A round for each trip."""
        return self.trips

    @property
    def arranges_once(self) -> bool:
        """Every trip goes the same way."""
        return True


class PhasedRing(SchedulePart, frozen=True, tag="phased-ring"):
    """MetaFed: every device alone, then one model through all sets `trips` times, then every device alone again.

    A trip is a round, and so are the first and the last phase. What devices make alone stays on them.
    """

    in_turn: ClassVar[bool] = True
    trips: Count = 299
    """How often the model goes around (the paper's R - 1)."""

    @property
    def fixed_rounds(self) -> int:
        """A round for each trip, one before and one after."""
        return self.trips + 2

    @property
    def arranges_once(self) -> bool:
        """Every trip goes the same way."""
        return True


class OneShot(SchedulePart, frozen=True, tag="one-shot"):
    """One round of parallel tours, merged once."""

    order: Order = "arranged"
    """The devices of a set as `arranged`, or `shuffled`."""
    passes: Count = 1
    """How often a model tours its set in a round."""

    @property
    def fixed_rounds(self) -> int:
        """The one."""
        return 1

    @property
    def arranges_once(self) -> bool:
        """There is no second round."""
        return True


class EdgeCloud(SchedulePart, frozen=True, tag="edge-cloud"):
    """Client-edge-cloud: the devices of a set train in parallel and merge at their edge server."""

    at_edge: ClassVar[bool] = True
    edge_merges: Count = 2
    """So many times before the cloud merges (the paper's kappa_2, VISIT's j)."""
    rearrange_every: Natural = 1
    """Arrange anew every so many rounds; 0: never."""


class OwnSchedule(Own, frozen=True, tag="own"):
    """A schedule of one's own."""

    in_turn: ClassVar[bool] = False
    at_edge: ClassVar[bool] = False
    counts_sets: ClassVar[bool] = False
    fixed_rounds: ClassVar[int | None] = None
    arranges_once: ClassVar[bool] = False


Schedule = EveryRound | Slots | SequentialToParallel | Ring | PhasedRing | OneShot | EdgeCloud | OwnSchedule


def fixed_rounds(schedule: Schedule) -> int | None:
    """How many rounds the schedule has, if it says so itself."""
    return schedule.fixed_rounds
