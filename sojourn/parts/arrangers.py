"""Settings of arrangers, which form tours, and of estimators, which characterise devices for them."""

from __future__ import annotations

from typing import ClassVar, Literal

from sojourn.parts.part import Chance, Count, Natural, Own, Part, Share, Where


class EstimatorPart(Part, frozen=True):
    """The properties of an estimator that the coordinator uses."""

    by_class: ClassVar[bool] = False
    """Whether a device's row has one number for each class."""
    exemplars: ClassVar[bool] = False
    """Whether it needs exemplars."""
    rows: ClassVar[bool] = True
    """Whether it produces a row for each device, not only its number of samples."""
    sizes: ClassVar[bool] = True
    """Whether it requests the number of samples of each device."""
    weights: ClassVar[bool] = False
    """Whether a device's row is a vector of weights."""

    @property
    def from_visits(self) -> bool:
        """Whether it uses only visits in rounds, so that it has no data before the first round."""
        return False


class NoEstimator(EstimatorPart, frozen=True, tag="none"):
    """No estimation: devices report nothing about their data before they train."""

    rows: ClassVar[bool] = False
    sizes: ClassVar[bool] = False


class SizeEstimator(EstimatorPart, frozen=True, tag="sizes"):
    """The number of samples of each device; nothing is trained."""

    rows: ClassVar[bool] = False


class TrainedEstimator(EstimatorPart, frozen=True):
    """An estimator that trains each device's model for a few epochs."""

    epochs: Count = 10
    """Epochs that each device trains once, from the same model, before its first round."""
    where: Where = "server"
    """Where it is computed: on the `server` or on the `device`; the result is the same."""


class SignatureEstimator(TrainedEstimator, frozen=True, tag="signature"):
    """VISIT's signature: mean softmax outputs on the exemplars after a few epochs from the same model."""

    by_class: ClassVar[bool] = True
    exemplars: ClassVar[bool] = True


class ConfidenceEstimator(TrainedEstimator, frozen=True, tag="confidence"):
    """FedSeq's confidence: the signature normalised by its sum (the authors' code) or a softmax (equation 3)."""

    by_class: ClassVar[bool] = True
    exemplars: ClassVar[bool] = True
    normalise: Literal["sum", "softmax"] = "sum"
    """Normalisation by the sum (the authors' code) or a softmax (equation 3)."""


class ClassifierEstimator(TrainedEstimator, frozen=True, tag="classifier"):
    """FedSeq's classifier: weights of the fully connected layers after a few epochs, reduced by a PCA."""

    weights: ClassVar[bool] = True
    layers: Literal["all", "last-two", "last"] = "last"
    """Which fully connected layers are used."""
    variance: Share = 0.9
    """The share of the variance that the fewest possible principal components must explain."""


class ClassCountEstimator(EstimatorPart, frozen=True, tag="class-counts"):
    """FedGSP's label histograms, the least private estimator: only devices whose owners share them send theirs."""

    by_class: ClassVar[bool] = True
    unwilling: Literal["refuse", "leave-out"] = "refuse"
    """What to do about devices that do not share: `refuse` the job, or exclude them (`leave-out`)."""


class UpdateEstimator(EstimatorPart, frozen=True, tag="updates"):
    """The last update w_out - w_in of each device, from its last visit only."""

    weights: ClassVar[bool] = True
    epochs: Natural = 1
    """Epochs of training from the same model before the first round; 0: the row of a device is zero until its first
    visit."""

    @property
    def from_visits(self) -> bool:
        """Whether nothing is trained before the first round (0 epochs)."""
        return not self.epochs


class OwnEstimator(Own, frozen=True, tag="own"):
    """A custom estimator, which computes each device's row on the server from the model that it trained."""

    exemplars: ClassVar[bool] = True
    rows: ClassVar[bool] = True
    sizes: ClassVar[bool] = True
    weights: ClassVar[bool] = False
    from_visits: ClassVar[bool] = False
    by_class: bool = False
    """Whether a row has one number for each class."""
    epochs: Count = 10
    """Epochs that each device trains once, from the same model, before its first round."""


Estimator = (
    NoEstimator
    | SizeEstimator
    | SignatureEstimator
    | ConfidenceEstimator
    | ClassifierEstimator
    | ClassCountEstimator
    | UpdateEstimator
    | OwnEstimator
)


Needs = Literal["nothing", "rows", "classes"]
"""What an arranger needs for each device: nothing, any row, or a row with one number for each class."""


OF_DISTRIBUTIONS = frozenset({"wasserstein", "kl", "gini"})
"""The distances of FedSeq that are defined only for distributions over classes."""


class ArrangerPart(Part, frozen=True):
    """The properties of an arranger that the coordinator uses: its inputs and the kind of its sets."""

    counted: ClassVar[bool] = False
    """Whether a schedule can set the number of sets."""
    once: ClassVar[bool] = True
    """Whether a device is in at most one set of a round."""
    alone: ClassVar[bool] = False
    """Whether every set has exactly one device."""
    draws_by_samples: ClassVar[bool] = False
    """Whether it never chooses devices without samples, so that at least one device must have samples."""

    @property
    def needs(self) -> Needs:
        """What it needs for each device."""
        return "nothing"

    @property
    def weighs(self) -> bool:
        """Whether it needs the number of samples of each device."""
        return False

    @property
    def distributions(self) -> bool:
        """Whether it treats rows as distributions over classes, which must not have negative numbers."""
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
    """The number of client sets (the paper's L)."""
    size: Count = 4
    """The number of devices in each set (the paper's k)."""
    search: Literal["auto", "exact", "fast"] = "auto"
    """How to search for the device of each place: among all remaining devices (`exact`), among some of them (`fast`),
    or depending on the size of the fleet (`auto`)."""


class RandomArranger(ArrangerPart, frozen=True, tag="random"):
    """Random sets."""

    counted: ClassVar[bool] = True
    sets: Count = 10
    """The number of sets."""
    size: Natural = 0
    """The number of devices in each set; 0: all devices, divided equally."""
    turns: bool = False
    """Whether all devices are selected once before any is selected again, in a new random order for each lap."""


class FedSeqArranger(ArrangerPart, frozen=True, tag="fedseq"):
    """FedSeq's superclients: each is complete with `min_samples` samples or `max_devices` devices."""

    grouping: Literal["random", "k-means", "greedy"] = "greedy"
    """How devices are added: `random`; one of each `k-means` cluster in turn; or `greedy`, the device farthest by `tau`
    from the superclient's running estimate."""
    tau: Literal["cosine", "euclidean", "wasserstein", "kl", "gini"] = "kl"
    """The distance measure."""
    kl: Literal["balance", "pairwise"] = "balance"
    """The variant of `tau = "kl"`: `balance` is 1 - KL(midpoint || uniform), as in the authors' code; `pairwise` is
    KL(D_j || D_S)."""
    estimate: Literal["midpoint", "mean", "weighted-mean"] = "midpoint"
    """The running estimate: the `midpoint` of the previous estimate and each new device (Algorithm 3), or the mean of
    the members, plain or weighted by samples."""
    min_samples: Count = 800
    """A superclient is complete with this many samples."""
    max_devices: Count = 11
    """A superclient is complete with this many devices."""
    sets: Natural = 0
    """Instead, the exact number of sets of `size` devices (VISIT's tables); 0: as many as needed."""
    size: Natural = 0
    """With `sets`: the number of devices in each set; otherwise 0."""

    @property
    def needs(self) -> Needs:
        """Rows to compare devices; nothing for a random grouping."""
        return "nothing" if self.grouping == "random" else "rows"

    @property
    def weighs(self) -> bool:
        """Whether samples complete a superclient or weight its estimate."""
        return not (self.sets and self.size) or (self.grouping == "greedy" and self.estimate == "weighted-mean")

    @property
    def distributions(self) -> bool:
        """Most distances compare distributions; cosine and euclidean compare any rows."""
        return self.grouping == "greedy" and self.tau in OF_DISTRIBUTIONS

    @property
    def half_sized(self) -> bool:
        """Whether only one of `sets` and `size` is set, which is an error."""
        return bool(self.sets) != bool(self.size)


class IcgArranger(ArrangerPart, frozen=True, tag="icg"):
    """FedGSP's inter-cluster grouping: equal-size clusters by minimum-cost flow, one device of each in every group."""

    needs: ClassVar[Needs] = "rows"
    counted: ClassVar[bool] = True
    sets: Count = 10
    """The number of groups, unless the schedule sets another number."""
    iterations: Count = 10
    """The maximum number of iterations of clusters and centroids."""
    draws: Count = 50
    """The number of random groupings of which the most homogeneous is used."""


class FedCatArranger(ArrangerPart, frozen=True, tag="fedcat"):
    """FedCat's grouping- and count-based selection: one device of each random group."""

    alone: ClassVar[bool] = True
    sets: Count = 10
    """The number of groups (the paper's K)."""
    epsilon: Chance = 0.5
    """The probability, from 0 to 1, of selecting the least visited device."""
    regroup: Count = 1
    """Form new groups every N cycles (lambda)."""
    grouped: bool = True
    """Whether to use groups; without them, devices are drawn at random (the ablation `DC`)."""


class HierClusterArranger(ArrangerPart, frozen=True, tag="hiercluster"):
    """Sets of similar devices: Ward clusters of the devices' rows, set l drawn from cluster l."""

    needs: ClassVar[Needs] = "rows"
    counted: ClassVar[bool] = True
    sets: Count = 2
    """The number of sets and clusters."""
    size: Count = 4
    """The number of devices in each set."""


class CluSampArranger(ArrangerPart, frozen=True, tag="clusamp"):
    """Clustered sampling: one draw from each of `sets` clusters with at most 1 / sets of all data each.

    A device can be drawn twice in a round.
    """

    needs: ClassVar[Needs] = "rows"
    weighs: ClassVar[bool] = True
    once: ClassVar[bool] = False
    alone: ClassVar[bool] = True
    draws_by_samples: ClassVar[bool] = True
    sets: Count = 10
    """The number of clusters and draws."""


class ChainArranger(ArrangerPart, frozen=True, tag="chain"):
    """All devices in one chain, site after site."""

    order: Literal["random", "name"] = "random"
    """The order within a site: `random` for each arrangement, or by `name`."""


class SiteArranger(ArrangerPart, frozen=True, tag="site"):
    """One set for each site, a random share of its devices."""

    fraction: Share = 1.0
    """The share of a site's devices that trains in a round."""


class CustomArranger(Own, frozen=True, tag="own"):
    """A custom arranger."""

    needs: ClassVar[Needs] = "nothing"
    weighs: ClassVar[bool] = False
    distributions: ClassVar[bool] = False
    counted: ClassVar[bool] = True
    alone: ClassVar[bool] = False
    draws_by_samples: ClassVar[bool] = False
    once: bool = True
    """Whether a device is in at most one set of a round; the coordinator rejects an arrangement that breaks this."""


Arranger = (
    SingleArranger | VisitArranger | RandomArranger | FedSeqArranger | IcgArranger | FedCatArranger
    | HierClusterArranger | CluSampArranger | ChainArranger | SiteArranger | CustomArranger
)  # fmt: skip
