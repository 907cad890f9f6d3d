"""A job's model in torch as the reference: the module is built again and not compiled."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from coordinator.compiling.losses import ForwardPass, Learning, classifying, watched
from coordinator.compiling.normalisation import normalised
from coordinator.compiling.probes import like
from coordinator.jobs.data import normalisation
from coordinator.jobs.model import learning_in, output_of, put_vector, random_model
from coordinator.jobs.settings import JobSettings
from coordinator.jobs.task_data import scales_in, unpacked
from sojourn.model.exemplars import Exemplars
from sojourn.model.predictions import BatchOutput
from sojourn.protocol.spec import Kit

Numbers = tuple[float, ...] | None

BATCH = 256


class TorchReference:
    """A job's model in torch, in eval mode, with the weights of a vector."""

    def __init__(self, job: JobSettings, kit: Kit, vector: NDArray[np.float32], exemplars: Exemplars | None) -> None:
        self._job, self._kit = job, kit
        self._mean, self._std, self._learning = _as_compiled(job, kit, exemplars)
        output = kit.learns.output if kit.task else output_of(job, len(kit.classes))
        model = random_model(job, kit.input, output)
        self._module = normalised(model, kit.input, self._mean, self._std).eval()
        put_vector(model, kit, vector)

    def answer(self, x: NDArray[np.generic]) -> BatchOutput:
        """Return the module's predictions for raw rows, and their scores if the rows are their own targets."""
        rows = torch.from_numpy(np.array(x))
        with torch.inference_mode():
            parts = [self._run(rows[at : at + BATCH]) for at in range(0, len(rows), BATCH)]
        outputs, scores = (torch.cat(each).numpy() for each in zip(*parts, strict=True))
        return BatchOutput(outputs, scores if self._kit.learns.kind == "reconstruction" else None)

    def generated_rows(self, rows: int) -> NDArray[np.generic]:
        """Generate rows like the job's input, for a job without samples."""
        drawn = like(self._kit.input, self._module, self._learning, (), self._mean, self._std)
        return drawn.batch(rows, self._job.seed).x

    def _run(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        learning = self._learning
        with watched(self._module, learning.features) as seen:
            passed = ForwardPass(self._module(x), seen)
        if learning.task.kind != "reconstruction":
            return learning.predictions(passed.outputs), torch.zeros(0)
        # A served model is its own reference model, as when it is tested.
        reference_models: dict[str, ForwardPass] = dict.fromkeys(learning.task.reference_models, passed)
        return learning.predictions(passed.outputs), learning.losses(passed, x, x, reference_models)


def _as_compiled(job: JobSettings, kit: Kit, exemplars: Exemplars | None) -> tuple[Numbers, Numbers, Learning]:
    """Return the normalisation of samples, and the loss, as they were when the job was compiled.

    Both are computed from the stored exemplars, because the original files may be gone.
    """
    data = job.data
    if kit.task:
        samples = unpacked(exemplars, kit.task) if exemplars else None
        mean, std, scaling = scales_in(kit.task, data, samples, kit.input)
        return mean, std, learning_in(job, kit.task, scaling)
    mean, std = data.mean, data.std
    if not (mean or std):
        mean, std = normalisation(exemplars.packed()[0] if exemplars else None, kit.input)
    return mean, std, classifying(len(kit.classes), unknown=kit.outliers is not None)
