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
    """The share of the fleet that trains in a round."""


class VisitArranger(ArrangerPart, frozen=True, tag="visit"):
    """VISIT's greedy client sets."""

    needs: ClassVar[Needs] = "classes"
    counted: ClassVar[bool] = True
    sets: Count = 2
    """How many client sets (the paper's L)."""
    size: Count = 4
    """How many devices each has (the paper's k)."""
    search: Literal["auto", "exact", "fast"] = "auto"
    """Look at every remaining device for each place (`exact`), at some of them (`fast`), or as the fleet's size asks
    (`auto`)."""


class RandomArranger(ArrangerPart, frozen=True, tag="random"):
    """Random sets."""

    counted: ClassVar[bool] = True
    sets: Count = 10
    """How many sets."""
    size: Natural = 0
    """How many devices each has; 0: all devices in equal parts."""
    turns: bool = False
    """Whether everybody has a turn before anybody has the next one, in an order that is drawn for each lap."""


class FedSeqArranger(ArrangerPart, frozen=True, tag="fedseq"):
    """FedSeq's superclients: each closes with `min_samples` samples or `max_devices` devices."""

    grouping: Literal["random", "k-means", "greedy"] = "greedy"
    """`random`; one of each `k-means` cluster in turn; or `greedy`, the device farthest by `tau` from the superclient's
    running estimate."""
    tau: Literal["cosine", "euclidean", "wasserstein", "kl", "gini"] = "kl"
    """By what the distance is measured."""
    kl: Literal["balance", "pairwise"] = "balance"
    """The authors' code seeks `balance`, 1 - KL(midpoint || uniform); `pairwise` is KL(D_j || D_S)."""
    estimate: Literal["midpoint", "mean", "weighted-mean"] = "midpoint"
    """The running estimate moves to the `midpoint` with each newcomer (Algorithm 3), or is the mean of the members,
    plain or weighted by samples."""
    min_samples: Count = 800
    """A superclient with so many samples is complete."""
    max_devices: Count = 11
    """A superclient with so many devices is complete."""
    sets: Natural = 0
    """Instead, exactly so many sets of `size` devices (VISIT's tables); 0: as many as it takes."""
    size: Natural = 0
    """With `sets`: the devices of each; 0 without."""

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
    """FedGSP's inter-cluster grouping: equal-size clusters by minimum-cost flow, one device of each in every group."""

    needs: ClassVar[Needs] = "rows"
    counted: ClassVar[bool] = True
    sets: Count = 10
    """How many groups, unless the schedule asks for another number."""
    iterations: Count = 10
    """How often clusters and centroids take turns at most."""
    draws: Count = 50
    """The most alike of so many random groupings."""


class FedCatArranger(ArrangerPart, frozen=True, tag="fedcat"):
    """FedCat's grouping- and count-based selection: one device of each random group."""

    alone: ClassVar[bool] = True
    sets: Count = 10
    """How many groups (the paper's K)."""
    epsilon: Chance = 0.5
    """How often the least visited is taken, from 0 to 1."""
    regroup: Count = 1
    """New groups every so many cycles (lambda)."""
    grouped: bool = True
    """Without groups the devices are drawn at random (the ablation `DC`)."""


class HierClusterArranger(ArrangerPart, frozen=True, tag="hiercluster"):
    """Like with like: Ward clusters of the devices' rows, set l drawn from cluster l."""

    needs: ClassVar[Needs] = "rows"
    counted: ClassVar[bool] = True
    sets: Count = 2
    """How many sets, and clusters."""
    size: Count = 4
    """How many devices each has."""


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
    """How many clusters, and draws."""


class ChainArranger(ArrangerPart, frozen=True, tag="chain"):
    """All devices in one row, site after site."""

    order: Literal["random", "name"] = "random"
    """The order inside a site: anew at `random`, or by `name`."""


class SiteArranger(ArrangerPart, frozen=True, tag="site"):
    """One set for each site: a random share of its devices."""

    fraction: Share = 1.0
    """The share of a site's devices that trains in a round."""


class OwnArranger(Own, frozen=True, tag="own"):
    """An arranger of one's own."""

    needs: ClassVar[Needs] = "nothing"
    weighs: ClassVar[bool] = False
    distributions: ClassVar[bool] = False
    counted: ClassVar[bool] = True
    alone: ClassVar[bool] = False
    draws_by_samples: ClassVar[bool] = False
    once: bool = True
    """Whether a device is in one set of a round at most; an arrangement that breaks it is refused."""


Arranger = (
    SingleArranger | VisitArranger | RandomArranger | FedSeqArranger | IcgArranger | FedCatArranger
    | HierClusterArranger | CluSampArranger | ChainArranger | SiteArranger | OwnArranger
)  # fmt: skip
