"""What the coordinator makes of all members' models at once, after a round. It runs in `coordinator.finishers`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec

from sojourn.parts.part import BelowOne, Count, Natural, NotNegative, Outcome, Own, Part, Positive, Share


class FinisherPart(Part, frozen=True):
    """What the coordinator knows of a finisher."""

    sends: ClassVar[tuple[str, ...]] = ()
    """The vectors of its state that travel to the devices with the next round."""
    apart: ClassVar[bool] = False
    """Whether it runs in a process of its own: what needs torch does."""
    alone: ClassVar[bool] = True
    """Whether a member must be one device: then tours of several devices are refused."""
    device_half: ClassVar[str | None] = None
    """The name of the objective that it means nothing without."""
    outcome: ClassVar[Outcome] = "one model"
    classes: ClassVar[bool] = False
    """Whether it is for classifiers alone."""
    compares: ClassVar[bool] = False
    """Whether the round says how good the members' mean is, and what they say together."""


class NoFinisher(FinisherPart, frozen=True, tag="none"):
    """The aggregator's model is the result."""


class Dense(FinisherPart, frozen=True, tag="dense"):
    """DENSE: a generator makes images on which a fresh student learns what the members say together."""

    apart: ClassVar[bool] = True
    classes: ClassVar[bool] = True
    compares: ClassVar[bool] = True
    epochs: Natural = 200
    """How often the generator makes images and the student learns from all of them; 0 leaves the student as it was
    drawn."""
    steps: Count = 30
    """Steps of the generator in each epoch."""
    images: Count = 256
    """How many images each epoch adds to the pool; also the student's batch."""
    noise: Count = 256
    """Numbers that the generator makes an image of."""
    generator_lr: Positive = 1e-3
    """Learning rate of the generator and its noise, with Adam."""
    oh: NotNegative = 1.0
    """How much it counts that the members see the class that an image was made for."""
    bn: NotNegative = 1.0
    """How much it counts that images look usual to the members' BatchNorm layers; nothing where there are none."""
    adv: NotNegative = 1.0
    """How much it counts that the student errs where the members agree; 0 makes images that do not depend on it."""
    tau: Positive = 20.0
    """The temperature of what the student learns."""
    lr: Positive = 0.005
    """The student's learning rate."""
    momentum: BelowOne = 0.9
    """The student's momentum; 0 for none."""
    padding: Natural = 4
    """Images are shifted by up to so many pixels, each time they are looked at; 0 for not at all."""
    flip: bool = True
    """Whether half of them are mirrored then: not where left and right differ, as in digits."""
    keep: Literal["last", "best"] = "last"
    """The student of the last epoch, or of that with the most right answers on the exemplars."""
    memory: Positive = 4096.0
    """Megabytes that the members' models and the images may take."""


class EchoServer(FinisherPart, frozen=True, tag="echo"):
    """MA-Echo's server half: W <- W + lam mean((W - w_i)(P_i - I)), w_i <- w_i + lam (W - w_i) P_i, tau times.

    The result is the mean of the moved w_i; a row of the last layer is the mean of those that have its class.
    """

    classes: ClassVar[bool] = True
    compares: ClassVar[bool] = True
    device_half: ClassVar[str | None] = "echo"
    tau: Natural = 60
    """How often all models move; 0 is the mean."""
    lam: Annotated[float, msgspec.Meta(gt=0, lt=2)] = 1.6
    """How far they move each time."""
    norm: bool = False
    """Whether each row of a model's step is first scaled to length 1."""
    memory: Positive = 4096.0
    """Megabytes that one layer of all members may take, with its projections."""


class Vote(FinisherPart, frozen=True, tag="vote"):
    """FedOV's server half: the devices' models vote, and one model learns from their vote on the exemplars.

    A vote is the sum of the models' probabilities of the classes that are known: one that finds a sample unknown has
    little to say.
    """

    apart: ClassVar[bool] = True
    classes: ClassVar[bool] = True
    outcome: ClassVar[Outcome] = "vote"
    device_half: ClassVar[str | None] = "outliers"
    most: Natural = 0
    """How many models vote on a sample, those that find it the least unknown; 0 for all."""
    epochs: Count = 100
    """How often the one model goes through the exemplars."""
    batch: Count = 64
    """Exemplars in a step."""
    lr: Positive = 1e-3
    """Its learning rate, with Adam."""
    memory: Positive = 4096.0
    """Megabytes that the members' models may take."""


class GeneratorServer(FinisherPart, frozen=True, tag="generator"):
    """FedGen's server half: a generator of inputs for the last layer learns from the members', and goes to the devices.

    The round's model is the aggregator's.
    """

    sends: ClassVar[tuple[str, ...]] = ("generator",)
    classes: ClassVar[bool] = True
    device_half: ClassVar[str | None] = "generated"
    steps: Natural = 50
    """Steps of the generator in each round; 0 leaves it as it was drawn."""
    batch: Count = 32
    """Made-up inputs in a step."""
    lr: Positive = 3e-4
    """Its learning rate, with Adam."""
    decay: Share = 0.98
    """By how much that shrinks from round to round."""
    weight_decay: NotNegative = 1e-2
    """How strongly its weights are held near 0; 0 for not at all."""
    alpha: NotNegative = 1.0
    """How much it counts that the members' last layers see the class that an input was made for."""
    eta: NotNegative = 1.0
    """How much it counts that unlike noise gives unlike inputs; 0 for not at all."""


class OwnFinisher(Own, frozen=True, tag="own"):
    """A finisher of one's own."""

    sends: ClassVar[tuple[str, ...]] = ()
    device_half: ClassVar[str | None] = None
    outcome: ClassVar[Outcome] = "one model"
    classes: ClassVar[bool] = False
    compares: ClassVar[bool] = False
    apart: bool = True
    """Whether it runs in a process of its own: what needs torch should."""
    alone: bool = False
    """Whether a member must be one device."""


Finisher = NoFinisher | Dense | EchoServer | Vote | GeneratorServer | OwnFinisher
