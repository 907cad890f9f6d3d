"""Where in a classifier's vector the bias of its answers stands: one number for each class, added at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sojourn.errors import ModelError
from sojourn.model.graphs import Graphs, probe_vector

if TYPE_CHECKING:
    from sojourn.protocol.spec import Kit

TOLERANCE = 1e-3


def output_bias(kit: Kit) -> slice | None:
    """The last trained tensor with one number for each class; None where there is none.

    That it is added to the answers, and to nothing else, is a matter of the graph: `check_output_bias`.
    """
    found, at = None, 0
    for tensor, size in zip(kit.model.tensors, kit.model.learnt_sizes, strict=False):
        if tensor.shape == (len(kit.classes),):
            found = slice(at, at + size)
        at += size
    return found


def check_output_bias(kit: Kit) -> None:
    """Whether answers move by as much as their bias does, and each for itself; ModelError where they do not."""
    place = output_bias(kit)
    if place is None:
        raise ModelError(
            "the objective logit-adjustment moves the bias of the model's answers, and no trained tensor of this model "
            f"has one number for each of the {len(kit.classes)} classes: end it with a linear layer that has a bias, "
            'or set objective.name = "sgd"'
        )
    graphs, probe = Graphs(kit), kit.probe
    x = graphs.features(np.frombuffer(probe.x, kit.input.dtype).reshape(len(probe.y), *kit.input.shape))
    vector = probe_vector(kit.model.sizes, probe.spread, kit.model.state)
    shift = np.linspace(-1.0, 2.0, len(kit.classes)).astype(np.float32)
    moved = vector.copy()
    moved[place] += shift
    apart = np.abs(graphs.outputs(moved, x) - graphs.outputs(vector, x) - shift).max()
    if not apart <= TOLERANCE * max(1.0, float(np.abs(graphs.outputs(vector, x)).max())):
        raise ModelError(
            "the objective logit-adjustment moves the bias of the model's answers, and this model does not end with a "
            "layer whose bias is added to its answers as it is: let it answer with plain logits, or set "
            'objective.name = "sgd"'
        )
