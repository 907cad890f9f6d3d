"""Which devices form which tours, and what each arranger needs. The algorithms are in `hierarchy.arranging`."""

from __future__ import annotations

from typing import ClassVar, Literal

from sojourn.parts.part import Chance, Count, Natural, Own, Part, Share

Needs = Literal["nothing", "rows", "classes"]
"""What an arranger must know of devices: nothing, a row of any kind, or a row with one number for each class."""


OF_DISTRIBUTIONS = frozenset({"wasserstein", "kl", "gini"})
"""The metrics of FedSeq that are defined for distributions over classes alone."""


class ArrangerPart(Part, frozen=True):
    """What others must know of an arranger, whatever its settings: what it needs, and what its sets are like."""

    counted: ClassVar[bool] = False
    """Whether a schedule can tell it how many sets to make."""
    once: ClassVar[bool] = True
    """Whether a device is in one set of a round at most."""
    alone: ClassVar[bool] = False
    """Whether every set is one device."""
    draws_by_samples: ClassVar[bool] = False
    """Whether a device without samples is never chosen, so that at least one must have some."""

    @property
    def needs(self) -> Needs:
        """What it must know of the devices."""
        return "nothing"

    @property
    def weighs(self) -> bool:
        """Whether it must know how many samples each device has."""
        return False

    @property
    def distributions(self) -> bool:
        """Whether it takes the rows for distributions over classes: then no number in them may be below 0."""
        return False


class SingleArranger(ArrangerPart, frozen=True, tag="single"):
    """Tours of one device: a random share of the fleet each round (FedAvg)."""

    alone: ClassVar[bool] = True
    fraction: Share = 1.0


class VisitArranger(ArrangerPart, frozen=True, tag="visit"):
    """VISIT's greedy client sets: `sets` (the paper's L) of `size` devices (its k).

    search: look at every remaining device for each place (`exact`), at some of them (`fast`), or as the fleet's size
    asks (`auto`).
    """

    needs: ClassVar[Needs] = "classes"
    counted: ClassVar[bool] = True
    sets: Count = 2
    size: Count = 4
    search: Literal["auto", "exact", "fast"] = "auto"


class RandomArranger(ArrangerPart, frozen=True, tag="random"):
    """Random sets: `sets` of them, of `size` devices or, with 0, of all devices in equal parts."""

    counted: ClassVar[bool] = True
    sets: Count = 10
    size: Natural = 0


class FedSeqArranger(ArrangerPart, frozen=True, tag="fedseq"):
    """FedSeq's superclients: each closes with `min_samples` samples or `max_devices` devices.

    grouping: random; one of each k-means cluster in turn; or greedily the device farthest by `tau` from the
    superclient's running estimate, which moves to the `midpoint` with each newcomer (Algorithm 3) or is the mean of
    its members, plain or weighted by samples. kl: the authors' code seeks balance, 1 - KL(midpoint || uniform);
    `pairwise` is KL(D_j || D_S). sets, size: instead, exactly `sets` sets of `size` devices (VISIT's tables).
    """

    grouping: Literal["random", "k-means", "greedy"] = "greedy"
    tau: Literal["cosine", "euclidean", "wasserstein", "kl", "gini"] = "kl"
    kl: Literal["balance", "pairwise"] = "balance"
    estimate: Literal["midpoint", "mean", "weighted-mean"] = "midpoint"
    min_samples: Count = 800
    max_devices: Count = 11
    sets: Natural = 0
    size: Natural = 0

    @property
    def needs(self) -> Needs:
        """Rows, to tell devices apart by; none for a random grouping."""
        return "nothing" if self.grouping == "random" else "rows"

    @property
    def weighs(self) -> bool:
        """Samples close a superclient, unless it has a size, and weigh its members where the estimate says so."""
        return not (self.sets and self.size) or (self.grouping == "greedy" and self.estimate == "weighted-mean")

    @property
    def distributions(self) -> bool:
        """Most metrics compare distributions; cosine and euclidean compare rows of any kind."""
        return self.grouping == "greedy" and self.tau in OF_DISTRIBUTIONS

    @property
    def half_sized(self) -> bool:
        """Whether only one of `sets` and `size` is given, which says nothing: both are needed, or neither."""
        return bool(self.sets) != bool(self.size)


class IcgArranger(ArrangerPart, frozen=True, tag="icg"):
    """FedGSP's inter-cluster grouping: equal-size clusters by minimum-cost flow, one device of each in every group.

    iterations: how often clusters and centroids take turns at most. draws: the most alike of so many random groupings.
    """

    needs: ClassVar[Needs] = "rows"
    counted: ClassVar[bool] = True
    sets: Count = 10
    iterations: Count = 10
    draws: Count = 50


class FedCatArranger(ArrangerPart, frozen=True, tag="fedcat"):
    """FedCat's grouping- and count-based selection: one device of each of `sets` random groups (the paper's K).

    epsilon: how often the least visited is taken; regroup: new groups every so many cycles (lambda); grouped: without
    groups the devices are drawn at random (the ablation `DC`).
    """

    alone: ClassVar[bool] = True
    sets: Count = 10
    epsilon: Chance = 0.5
    regroup: Count = 1
    grouped: bool = True


class HierClusterArranger(ArrangerPart, frozen=True, tag="hiercluster"):
    """Like with like: Ward clusters of the devices' rows, set l drawn from cluster l."""

    needs: ClassVar[Needs] = "rows"
    counted: ClassVar[bool] = True
    sets: Count = 2
    size: Count = 4


class CluSampArranger(ArrangerPart, frozen=True, tag="clusamp"):
    """Clustered sampling: one draw from each of `sets` clusters that hold at most 1 / sets of all data each.

    A device can be drawn twice in a round.
    """

    needs: ClassVar[Needs] = "rows"
    weighs: ClassVar[bool] = True
    once: ClassVar[bool] = False
    alone: ClassVar[bool] = True
    draws_by_samples: ClassVar[bool] = True
    sets: Count = 10


class ChainArranger(ArrangerPart, frozen=True, tag="chain"):
    """All devices in one row, site after site."""

    order: Literal["random", "name"] = "random"


class SiteArranger(ArrangerPart, frozen=True, tag="site"):
    """One set for each site: a random share of its devices."""

    fraction: Share = 1.0


class OwnArranger(Own, frozen=True, tag="own"):
    """An arranger of one's own.

    once: whether a device is in one set of a round at most; an arrangement that breaks it is refused.
    """

    needs: ClassVar[Needs] = "nothing"
    weighs: ClassVar[bool] = False
    distributions: ClassVar[bool] = False
    counted: ClassVar[bool] = True
    alone: ClassVar[bool] = False
    draws_by_samples: ClassVar[bool] = False
    once: bool = True


Arranger = (
    SingleArranger | VisitArranger | RandomArranger | FedSeqArranger | IcgArranger | FedCatArranger
    | HierClusterArranger | CluSampArranger | ChainArranger | SiteArranger | OwnArranger
)  # fmt: skip
