"""What torch itself answers with a job's model: the module is built anew and never passes through the compiler."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from coordinator.compiling.learning import classifying
from coordinator.compiling.preprocessing import normalised
from coordinator.compiling.samples import like
from coordinator.jobs.data import normalisation
from coordinator.jobs.model import named_tensors, unstarted_model
from sojourn.errors import ModelError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import nn

    from coordinator.jobs.settings import JobSettings
    from sojourn.model.exemplars import Exemplars
    from sojourn.protocol.spec import Kit

BATCH = 256


class TorchReference:
    """A job's model in torch, in eval mode, with the weights of a vector."""

    def __init__(self, job: JobSettings, kit: Kit, vector: NDArray[np.float32], shown: Exemplars | None) -> None:
        self._job, self._kit, self._shown = job, kit, shown
        own = unstarted_model(job, kit.input, len(kit.classes))
        self._module = normalised(own, kit.input, *self._normalisation()).eval()
        _load(own, kit, vector)

    def logits(self, x: NDArray[np.generic]) -> NDArray[np.float32]:
        """The module's answers for raw rows."""
        rows = torch.from_numpy(np.array(x))
        with torch.inference_mode():
            parts = [self._module(rows[at : at + BATCH]) for at in range(0, len(rows), BATCH)]
        answers: NDArray[np.float32] = torch.cat(parts).numpy()
        return answers

    def made_up(self, rows: int) -> NDArray[np.generic]:
        """Rows that look like the job's input, for a job that has no samples."""
        mean, std = self._normalisation()
        drawn = like(self._kit.input, self._module, classifying(len(self._kit.classes)), (), mean, std)
        return drawn.batch(rows, self._job.seed).x

    def _normalisation(self) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
        """As it was when the job was compiled; the files that it was taken from may be gone."""
        data = self._job.data
        if data.mean or data.std:
            return data.mean, data.std
        return normalisation(self._shown.packed()[0] if self._shown else None, self._kit.input)


def _load(module: nn.Module, kit: Kit, vector: NDArray[np.float32]) -> None:
    """Put the vector's tensors, and the frozen ones of the kit, in their places."""
    places = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    tensors = named_tensors(kit, vector)
    here = {name: tuple(place.shape) for name, place in places.items() if name in tensors}
    there = {name: tensor.shape for name, tensor in tensors.items()}
    trained = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    if here != there or not trained <= tensors.keys():
        raise ModelError("the model's code has other tensors than when the job was compiled: bring the old code back")
    with torch.no_grad():
        for name, values in tensors.items():
            places[name].copy_(torch.from_numpy(values.copy()))
