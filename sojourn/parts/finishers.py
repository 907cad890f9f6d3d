"""Settings of finishers, which combine all members' models after a round; `coordinator.finishers` implements them."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec

from sojourn.parts.part import BelowOne, Count, Natural, NotNegative, Outcome, Own, Part, Positive, Share


class FinisherPart(Part, frozen=True):
    """The properties of a finisher that the coordinator uses."""

    sends: ClassVar[tuple[str, ...]] = ()
    """The vectors of its state that are sent to devices with the next round."""
    apart: ClassVar[bool] = False
    """Whether it runs in a separate process, as finishers that need torch do."""
    alone: ClassVar[bool] = True
    """Whether a member must be a single device, so that tours of several devices are rejected."""
    device_half: ClassVar[str | None] = None
    """The name of the objective that it requires."""
    outcome: ClassVar[Outcome] = "one model"
    classes: ClassVar[bool] = False
    """Whether it is only for classifiers."""
    compares: ClassVar[bool] = False
    """Whether a round reports the metrics of the members' mean and of their ensemble."""


class NoFinisher(FinisherPart, frozen=True, tag="none"):
    """No finisher: the aggregator's model is the result."""


class Dense(FinisherPart, frozen=True, tag="dense"):
    """DENSE: a generator creates images, and a new student learns the members' ensemble predictions on them."""

    apart: ClassVar[bool] = True
    classes: ClassVar[bool] = True
    compares: ClassVar[bool] = True
    epochs: Natural = 200
    """Epochs in which the generator creates images and the student trains on all of them; 0 leaves the student at its
    random start."""
    steps: Count = 30
    """Steps of the generator in each epoch."""
    images: Count = 256
    """The number of images that each epoch adds to the pool; also the student's batch size."""
    noise: Count = 256
    """The size of the generator's noise input."""
    generator_lr: Positive = 1e-3
    """Learning rate of the generator and its noise, with Adam."""
    oh: NotNegative = 1.0
    """The weight of the loss that the members predict the class of each generated image."""
    bn: NotNegative = 1.0
    """The weight of the loss on the statistics of the members' BatchNorm layers; without effect if there are none."""
    adv: NotNegative = 1.0
    """The weight of the loss that the student disagrees where the members agree; 0: images do not depend on the
    student."""
    tau: Positive = 20.0
    """The temperature of the student's distillation."""
    lr: Positive = 0.005
    """The student's learning rate."""
    momentum: BelowOne = 0.9
    """The student's momentum; 0 for none."""
    padding: Natural = 4
    """Each use of an image shifts it by up to this many pixels; 0 for none."""
    flip: bool = True
    """Whether half of the images are mirrored; disable it where left and right differ, as in digits."""
    keep: Literal["last", "best"] = "last"
    """Which student to keep: that of the `last` epoch, or the `best` one by accuracy on the exemplars."""
    memory: Positive = 4096.0
    """Maximum megabytes for the members' models and the images."""


class EchoServer(FinisherPart, frozen=True, tag="echo"):
    """MA-Echo's server half: W <- W + lam mean((W - w_i)(P_i - I)), w_i <- w_i + lam (W - w_i) P_i, tau times.

    The result is the mean of the moved w_i; a row of the last layer is the mean over the members that have its class.
    """

    classes: ClassVar[bool] = True
    compares: ClassVar[bool] = True
    device_half: ClassVar[str | None] = "echo"
    tau: Natural = 60
    """The number of iterations; 0 is the mean."""
    lam: Annotated[float, msgspec.Meta(gt=0, lt=2)] = 1.6
    """The step size."""
    norm: bool = False
    """Whether each row of a model's step is normalised to length 1."""
    memory: Positive = 4096.0
    """Maximum megabytes for one layer of all members, with its projections."""


class Vote(FinisherPart, frozen=True, tag="vote"):
    """FedOV's server half: the devices' models vote, and one model is distilled from their votes on the exemplars.

    A vote is the sum of the models' probabilities over the known classes: a model for which a sample is unknown
    contributes little.
    """

    apart: ClassVar[bool] = True
    classes: ClassVar[bool] = True
    outcome: ClassVar[Outcome] = "vote"
    device_half: ClassVar[str | None] = "outliers"
    most: Natural = 0
    """The maximum number of models that vote on a sample, those with the lowest probability of the unknown class; 0 for
    all."""
    epochs: Count = 100
    """Epochs of the distilled model on the exemplars."""
    batch: Count = 64
    """Exemplars per step."""
    lr: Positive = 1e-3
    """The learning rate, with Adam."""
    memory: Positive = 4096.0
    """Maximum megabytes for the members' models."""


class GeneratorServer(FinisherPart, frozen=True, tag="generator"):
    """FedGen's server half: trains a generator of inputs for the last layer on the members' models, for the devices.

    The round's model is the aggregator's.
    """

    sends: ClassVar[tuple[str, ...]] = ("generator",)
    classes: ClassVar[bool] = True
    device_half: ClassVar[str | None] = "generated"
    steps: Natural = 50
    """Steps of the generator in each round; 0 leaves it at its random start."""
    batch: Count = 32
    """Generated inputs per step."""
    lr: Positive = 3e-4
    """The learning rate, with Adam."""
    decay: Share = 0.98
    """The factor of the learning rate from round to round."""
    weight_decay: NotNegative = 1e-2
    """The weight decay; 0 for none."""
    alpha: NotNegative = 1.0
    """The weight of the loss that the members' last layers predict the class of each generated input."""
    eta: NotNegative = 1.0
    """The weight of the diversity loss: different noise must give different inputs; 0 for none."""


class OwnFinisher(Own, frozen=True, tag="own"):
    """A custom finisher."""

    sends: ClassVar[tuple[str, ...]] = ()
    device_half: ClassVar[str | None] = None
    outcome: ClassVar[Outcome] = "one model"
    classes: ClassVar[bool] = False
    compares: ClassVar[bool] = False
    apart: bool = True
    """Whether it runs in a separate process, as it should if it needs torch."""
    alone: bool = False
    """Whether a member must be a single device."""


Finisher = NoFinisher | Dense | EchoServer | Vote | GeneratorServer | OwnFinisher
