"""A device's own shares of the classes, as a shift of its model's answers; nobody else learns them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edge_agent.training.handover import companions_of
from edge_agent.training.objectives import SHIFT
from edge_agent.training.reasons import Unsupported
from sojourn.model.output_bias import output_bias
from sojourn.parts import LogitAdjustment

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edge_agent.training.descent import Prepared
    from sojourn.parts import Objective
    from sojourn.protocol.messages import Visit
    from sojourn.store.blobs import BlobStore


def received_by(visit: Visit, blobs: BlobStore, prepared: Prepared) -> dict[str, NDArray[np.float32]]:
    """What an objective is given besides the model: what came with the visit, and what the device adds of its own."""
    return companions_of(visit, blobs, prepared.kit) | shift_of(visit.task.objective, prepared)


def shift_of(objective: Objective, prepared: Prepared) -> dict[str, NDArray[np.float32]]:
    """The vector that a logit adjustment adds to the model; none for other objectives and for tasks without classes."""
    kit = prepared.kit
    if not isinstance(objective, LogitAdjustment) or kit.task:
        return {}
    place = output_bias(kit)
    if place is None:
        raise Unsupported("the objective 'logit-adjustment' needs a model whose answers have a bias")
    counts = np.bincount(prepared.samples.y.astype(np.int64), minlength=len(kit.classes)) + objective.smoothing
    shift = np.zeros(kit.model.size, np.float32)
    shift[place] = objective.tau * np.log(counts / counts.sum())
    return {SHIFT: shift}
