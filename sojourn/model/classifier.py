"""Which numbers of a model's vector are the weights of its fully connected layers: FedSeq's psi_clf.

FedSeq speaks of "the weights of all, the last two or only the last fully connected layer"; so weights without biases,
as in the authors' code. They stand in the order of the layers, first layer first. Both the server and a device cut them
out here, so that both get the same numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from sojourn.errors import JobError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sojourn.protocol.spec import Kit

Layers = Literal["all", "last-two", "last"]
_TAKEN: dict[Layers, int] = {"all": 0, "last-two": -2, "last": -1}
"""From which layer on they are taken, as Python counts from the end."""


def classifier_slices(kit: Kit, layers: Layers) -> tuple[slice, ...]:
    """Where the weights of these fully connected layers stand in the vector; of one layer, `last-two` is that one."""
    if not kit.linear:
        raise JobError("the model has no fully connected layer (nn.Linear), so it has no classifier to know devices by")
    places, at = {}, 0
    for tensor in kit.model.tensors:
        places[tensor.name] = slice(at, at + tensor.size)
        at += tensor.size
    return tuple(places[name] for name in kit.linear[_TAKEN[layers] :])


def classifier_weights(kit: Kit, vector: NDArray[np.float32], layers: Layers) -> NDArray[np.float32]:
    """The weights of these fully connected layers, one after another."""
    return np.concatenate([vector[place] for place in classifier_slices(kit, layers)])
