"""FedGen's generator in numpy: the layout of its vector, and its forward pass.

concat(noise, one-hot) -> linear -> BatchNorm -> ReLU -> linear, which yields an input of the model's last layer. The
vector ends with a flag for each class: 1 if any device has it, otherwise 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray

from sojourn.errors import ModelError
from sojourn.parts.objectives import Generated
from sojourn.protocol.spec import Kit

Array = NDArray[np.floating]

EPSILON = 1e-5
"""The epsilon of the BatchNorm layer."""
TRAINED = ("first", "first_bias", "scale", "shift", "last", "last_bias")
"""The trained parts of a generator; running statistics and class flags are not trained."""


@dataclass(frozen=True)
class LastLayer:
    """The slices of a model's vector with the last layer's weights (classes x inputs) and bias."""

    weight: slice
    bias: slice | None
    classes: int
    inputs: int

    def logits(self, vector: Array, z: Array) -> Array:
        """Return the layer's outputs for these inputs."""
        answers = z @ vector[self.weight].reshape(self.classes, self.inputs).T
        return answers + vector[self.bias] if self.bias else answers


def last_layer(kit: Kit) -> LastLayer:
    """Return the last layer of a kit's model; raise ModelError if it is not linear with one output for each class."""
    name, placed = (kit.linear or ("",))[-1], zip(kit.model.tensors, kit.model.places, strict=True)
    found = {tensor.name: (place, tensor.shape) for tensor, place in placed}
    place, shape = found.get(name, (slice(0), ()))
    if len(shape) != 2 or shape[0] != len(kit.classes):
        raise ModelError("the model does not end with a linear layer, so the generator cannot generate inputs for it")
    bias, _ = found.get(name.removesuffix("weight") + "bias", (None, ()))
    return LastLayer(place, bias, *shape)


@dataclass(frozen=True)
class GeneratorLayout:
    """The sizes of a generator, and the layout of its vector."""

    noise: int
    hidden: int
    classes: int
    latent: int

    @classmethod
    def of(cls, settings: Generated, kit: Kit) -> GeneratorLayout:
        """Return the generator layout for a kit's model."""
        return cls(settings.noise, settings.hidden, len(kit.classes), last_layer(kit).inputs)

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of its parts, in order."""
        inner = (self.hidden,)
        return {
            "first": (self.hidden, self.noise + self.classes), "first_bias": inner, "scale": inner, "shift": inner,
            "last": (self.latent, self.hidden), "last_bias": (self.latent,), "mean": inner, "variance": inner,
            "there": (self.classes,),
        }  # fmt: skip

    @property
    def size(self) -> int:
        """The length of its vector."""
        return sum(map(prod, self.shapes.values()))

    def split(self, vector: Array) -> dict[str, Array]:
        """Return the parts of a vector by name, as views."""
        found, at = {}, 0
        for name, shape in self.shapes.items():
            found[name] = vector[at : at + prod(shape)].reshape(shape)
            at += prod(shape)
        return found

    def layer_input(self, noise: Array, classes: NDArray[np.int64]) -> Array:
        """Return the input of the first layer."""
        return np.concatenate([noise, np.eye(self.classes, dtype=noise.dtype)[classes]], axis=1)

    def make(self, vector: Array, noise: Array, classes: NDArray[np.int64]) -> Array:
        """Generate inputs of the model's last layer for these classes, with the generator's running statistics."""
        it = self.split(vector)
        inner = self.layer_input(noise, classes) @ it["first"].T + it["first_bias"]
        scale = it["scale"] / np.sqrt(np.maximum(it["variance"], 0) + EPSILON)
        inner = np.maximum((inner - it["mean"]) * scale + it["shift"], 0)
        made: Array = inner @ it["last"].T + it["last_bias"]
        return made
