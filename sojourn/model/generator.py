"""FedGen's generator as a vector: where its numbers stand, and what it makes of noise and classes, in numpy alone.

concat(noise, one-hot) -> linear -> BatchNorm -> ReLU -> linear, which gives an input of the model's last layer. After
its weights and running statistics stand which classes any device has: 1 or 0 for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from sojourn.errors import ModelError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sojourn.parts.generated import Generated
    from sojourn.protocol.spec import Kit

    Array = NDArray[np.floating]

EPSILON = 1e-5
"""Of the BatchNorm layer."""
TRAINED = ("first", "first_bias", "scale", "shift", "last", "last_bias")
"""What is trained of a generator; running statistics and classes are not."""


@dataclass(frozen=True)
class LastLayer:
    """Where a model's vector has the weights of its last layer, and its bias; classes x inputs."""

    weight: slice
    bias: slice | None
    classes: int
    inputs: int

    def logits(self, vector: Array, z: Array) -> Array:
        """What the layer answers to these inputs."""
        answers = z @ vector[self.weight].reshape(self.classes, self.inputs).T
        return answers + vector[self.bias] if self.bias else answers


def last_layer(kit: Kit) -> LastLayer:
    """The last layer of a kit's model; ModelError where it has none that makes the answers."""
    name, at, found = (kit.linear or ("",))[-1], 0, {}
    for tensor in kit.model.tensors:
        size = prod(tensor.shape)
        found[tensor.name] = slice(at, at + size), tensor.shape
        at += size
    place, shape = found.get(name, (slice(0), ()))
    if len(shape) != 2 or shape[0] != len(kit.classes):
        raise ModelError("the model has no linear layer that makes its answers, for which inputs could be made")
    bias, _ = found.get(name.removesuffix("weight") + "bias", (None, ()))
    return LastLayer(place, bias, *shape)


@dataclass(frozen=True)
class GeneratorLayout:
    """The sizes of a generator, and where in its vector each of its parts stands."""

    noise: int
    hidden: int
    classes: int
    latent: int

    @classmethod
    def of(cls, settings: Generated, kit: Kit) -> GeneratorLayout:
        """The generator for a kit's model."""
        return cls(settings.noise, settings.hidden, len(kit.classes), last_layer(kit).inputs)

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Its parts in order."""
        inner = (self.hidden,)
        return {
            "first": (self.hidden, self.noise + self.classes), "first_bias": inner, "scale": inner, "shift": inner,
            "last": (self.latent, self.hidden), "last_bias": (self.latent,), "mean": inner, "variance": inner,
            "there": (self.classes,),
        }  # fmt: skip

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return sum(map(prod, self.shapes.values()))

    def split(self, vector: Array) -> dict[str, Array]:
        """The parts of a vector by name, in its own memory."""
        found, at = {}, 0
        for name, shape in self.shapes.items():
            found[name] = vector[at : at + prod(shape)].reshape(shape)
            at += prod(shape)
        return found

    def given(self, noise: Array, classes: NDArray[np.int64]) -> Array:
        """What the first layer takes."""
        return np.concatenate([noise, np.eye(self.classes, dtype=noise.dtype)[classes]], axis=1)

    def make(self, vector: Array, noise: Array, classes: NDArray[np.int64]) -> Array:
        """Inputs of the model's last layer for these classes, with the generator's running statistics."""
        it = self.split(vector)
        inner = self.given(noise, classes) @ it["first"].T + it["first_bias"]
        scale = it["scale"] / np.sqrt(np.maximum(it["variance"], 0) + EPSILON)
        inner = np.maximum((inner - it["mean"]) * scale + it["shift"], 0)
        made: Array = inner @ it["last"].T + it["last_bias"]
        return made
