"""A job's models in torch, for finishers that train: built, filled and read back, on a GPU if there is one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import torch
from torch import nn

from coordinator.compiling.normalisation import normalised
from coordinator.finishers.task import FinishTask, Vector
from coordinator.jobs.model import output_of, put_vector, random_model, vector_in
from coordinator.models.building import SEED_RANGE


class TorchModels:
    """Makes modules from a job's vectors, which map raw samples to logits."""

    def __init__(self, task: FinishTask, place: torch.device) -> None:
        self._kit, self._job, self._place = task.kit, task.job, place
        known = task.normalisation
        self._mean, self._std = (known.mean, known.std) if known else (None, None)

    def filled(self, vector: Vector) -> nn.Module:
        """Return the module with these weights, in eval mode and frozen."""
        module = self._module(self._job.seed, vector)
        return module.requires_grad_(requires_grad=False).eval()

    def fresh(self, seed: int) -> nn.Module:
        """Return a new random model; tensors that the job does not train are the same as in all others."""
        return self._module(seed)

    def vector(self, module: nn.Module) -> Vector:
        """Return the weights of one of these modules."""
        return vector_in(module.get_submodule("module"), self._kit)

    def _module(self, seed: int, vector: Vector | None = None) -> nn.Module:
        drawn = msgspec.structs.replace(self._job, seed=seed)
        model = random_model(drawn, self._kit.input, output_of(self._job, len(self._kit.classes)))
        put_vector(model, self._kit, vector_in(model, self._kit) if vector is None else vector)
        return normalised(model, self._kit.input, self._mean, self._std).to(self._place)


@contextmanager
def repeatable(seed: int) -> Iterator[torch.device]:
    """Run torch on a GPU if there is one, or on one thread; restore its random state afterwards."""
    place = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    threads, exact = torch.get_num_threads(), torch.backends.cudnn.deterministic
    with torch.random.fork_rng(devices=[place] if place.type == "cuda" else []):
        torch.manual_seed(seed % SEED_RANGE)
        torch.set_num_threads(1)
        torch.backends.cudnn.deterministic = True
        try:
            yield place
        finally:
            torch.set_num_threads(threads)
            torch.backends.cudnn.deterministic = exact
