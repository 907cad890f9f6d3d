"""A job's model in torch: built by its name, with the weights that it starts from, and with what it does not train."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray
    from torch import nn

    from coordinator.jobs.settings import JobSettings
    from sojourn.protocol.spec import InputSpec, Kit


@dataclass(frozen=True)
class EarlierWeights:
    """The tensors of an earlier job's model by name, the trained and the frozen; `source` is for people."""

    source: str
    tensors: Mapping[str, NDArray[np.float32]]


def named_tensors(kit: Kit, vector: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
    """All tensors of a model by name: those of its vector, and those that its kit says are frozen."""
    frozen = {each.name: np.frombuffer(each.data, "<f4").reshape(each.shape) for each in kit.frozen}
    return {**kit.model.split(vector), **frozen}


def exported_model(kit: Kit, vector: NDArray[np.float32]) -> bytes:
    """The model as plain ONNX for anyone, with a note of what its tensors are called: a job can start from it."""
    from coordinator.compiling.baking import bake  # noqa: PLC0415  # onnx takes a while to load
    from coordinator.models.exported_file import with_names  # noqa: PLC0415

    return with_names(bake(kit, vector), named_tensors(kit, vector))


def job_model(
    job: JobSettings,
    input: InputSpec,  # noqa: A002
    classes: int,
    earlier: EarlierWeights | None = None,
) -> nn.Module:
    """The model as the job's first round finds it; `earlier` are the weights of the job that it starts from, if any."""
    import torch  # noqa: PLC0415  # takes seconds and 280 MB

    from coordinator.models.start_weights import StartWeights, put_in  # noqa: PLC0415
    from coordinator.models.weights_file import read_weights  # noqa: PLC0415

    module = unstarted_model(job, input, classes)
    if job.model.start_file:
        put_in(module, read_weights(job.model.start_file), job.model.new_head)
    elif earlier is not None:
        tensors = {name: torch.from_numpy(values.copy()) for name, values in earlier.tensors.items()}
        put_in(module, StartWeights(tensors, earlier.source, buffers=False), job.model.new_head)
    return module


def unstarted_model(job: JobSettings, input: InputSpec, classes: int) -> nn.Module:  # noqa: A002
    """The same model with random weights, for whoever has others to put in."""
    from coordinator.models import build  # noqa: PLC0415  # see above
    from coordinator.models.freezing import freeze  # noqa: PLC0415

    module = build(job.model.name, input, classes, job.model.options, job.seed, job.model.path)
    freeze(module, job.model.trains)
    return module
