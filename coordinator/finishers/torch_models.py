"""A job's models in torch, for finishers that train: built, filled and read back, on a GPU where there is one."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
import torch

from coordinator.compiling.preprocessing import normalised
from coordinator.jobs.model import answers_of, put_vector, unstarted_model, vector_in
from coordinator.models.building import SEED_RANGE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from coordinator.finishers.task import FinishTask, Vector


class TorchModels:
    """Makes modules of a job's vectors: each takes raw samples and answers with logits."""

    def __init__(self, task: FinishTask, place: torch.device) -> None:
        self._kit, self._job, self._place = task.kit, task.job, place
        known = task.normalisation
        self._mean, self._std = (known.mean, known.std) if known else (None, None)

    def filled(self, vector: Vector) -> nn.Module:
        """The module with these weights, in eval mode; nothing in it is trained any more."""
        module = self._module(self._job.seed, vector)
        return module.requires_grad_(requires_grad=False).eval()

    def fresh(self, seed: int) -> nn.Module:
        """A new random model; what the job does not train is as it is in all others."""
        return self._module(seed)

    def vector(self, module: nn.Module) -> Vector:
        """The weights of one of these modules."""
        return vector_in(module.get_submodule("module"), self._kit)

    def _module(self, seed: int, vector: Vector | None = None) -> nn.Module:
        drawn = msgspec.structs.replace(self._job, seed=seed)
        own = unstarted_model(drawn, self._kit.input, answers_of(self._job, len(self._kit.classes)))
        put_vector(own, self._kit, vector_in(own, self._kit) if vector is None else vector)
        return normalised(own, self._kit.input, self._mean, self._std).to(self._place)


@contextmanager
def repeatable(seed: int) -> Iterator[torch.device]:
    """Torch on a GPU if there is one, else on one thread; its own randomness is as it was before, afterwards."""
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
