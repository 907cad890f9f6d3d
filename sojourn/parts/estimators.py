"""What the coordinator asks about devices before it arranges them; rows are made in `hierarchy.arranging.rows`."""

from __future__ import annotations

from typing import ClassVar, Literal

from sojourn.parts.part import Count, Natural, Own, Part, Share, Where


class EstimatorPart(Part, frozen=True):
    """What the coordinator knows of an estimator."""

    by_class: ClassVar[bool] = False
    """Whether what is known of a device is one number for each class."""
    exemplars: ClassVar[bool] = False
    """Whether exemplars are needed."""
    rows: ClassVar[bool] = True
    """Whether it finds out anything about a device's data besides how much there is."""
    sizes: ClassVar[bool] = True
    """Whether it asks how many samples a device has."""
    weights: ClassVar[bool] = False
    """Whether a device is known by a vector of weights."""

    @property
    def from_visits(self) -> bool:
        """Whether it knows a device only by the visits of rounds, and so nothing before the first."""
        return False


class NoEstimator(EstimatorPart, frozen=True, tag="none"):
    """Devices are not asked about their data before they train."""

    rows: ClassVar[bool] = False
    sizes: ClassVar[bool] = False


class SizeEstimator(EstimatorPart, frozen=True, tag="sizes"):
    """How many samples each device has; nothing is trained."""

    rows: ClassVar[bool] = False


class SignatureEstimator(EstimatorPart, frozen=True, tag="signature"):
    """VISIT's signature: mean softmax answers on the exemplars after a few epochs from the same model."""

    by_class: ClassVar[bool] = True
    exemplars: ClassVar[bool] = True
    epochs: Count = 10
    """Epochs that a device trains from the same model, once, before it first takes part."""
    where: Where = "server"
    """Whether it is worked out on the `server` or on the `device`; the result is the same."""


class ConfidenceEstimator(EstimatorPart, frozen=True, tag="confidence"):
    """FedSeq's confidence: the signature made a distribution, by its sum (the authors' code) or a softmax (eq. 3)."""

    by_class: ClassVar[bool] = True
    exemplars: ClassVar[bool] = True
    epochs: Count = 10
    """Epochs that a device trains from the same model, once, before it first takes part."""
    where: Where = "server"
    """Whether it is worked out on the `server` or on the `device`; the result is the same."""
    normalise: Literal["sum", "softmax"] = "sum"
    """By their sum (the authors' code), or a softmax (equation 3)."""


class ClassifierEstimator(EstimatorPart, frozen=True, tag="classifier"):
    """FedSeq's classifier: weights of the fully connected layers after a few epochs, less by a PCA."""

    weights: ClassVar[bool] = True
    epochs: Count = 10
    """Epochs that a device trains from the same model, once, before it first takes part."""
    where: Where = "server"
    """Whether it is worked out on the `server` or on the `device`; the result is the same."""
    layers: Literal["all", "last-two", "last"] = "last"
    """Which of the fully connected layers count."""
    variance: Share = 0.9
    """As few principal components as hold this share of the variance."""


class ClassCountEstimator(EstimatorPart, frozen=True, tag="class-counts"):
    """FedGSP's label histograms: the least private; only devices whose owners share them tell theirs."""

    by_class: ClassVar[bool] = True
    unwilling: Literal["refuse", "leave-out"] = "refuse"
    """What to do about devices that do not share: `refuse` the job, or leave them out of it."""


class UpdateEstimator(EstimatorPart, frozen=True, tag="updates"):
    """The last update w_out - w_in of each device, told by its last visit alone."""

    weights: ClassVar[bool] = True
    epochs: Natural = 1
    """Train so long from the same model before the first round; 0: a device that was not visited yet is a zero."""

    @property
    def from_visits(self) -> bool:
        """With 0 epochs nothing is trained before the first round."""
        return not self.epochs


class OwnEstimator(Own, frozen=True, tag="own"):
    """An estimator of one's own: works out each device's row on the server, from the model it trained."""

    exemplars: ClassVar[bool] = True
    rows: ClassVar[bool] = True
    sizes: ClassVar[bool] = True
    weights: ClassVar[bool] = False
    from_visits: ClassVar[bool] = False
    by_class: bool = False
    """Whether a row is one number for each class."""
    epochs: Count = 10
    """Epochs that a device trains from the same model, once, before it first takes part."""


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
