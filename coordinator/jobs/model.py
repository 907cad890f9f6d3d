"""A job's model in torch: built by name, with its start weights, its frozen tensors and its loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from coordinator.jobs.data import PublicData
from coordinator.jobs.settings import JobSettings
from coordinator.jobs.task_data import shaped_scale
from sojourn.errors import ModelError
from sojourn.parts import Outliers
from sojourn.protocol.spec import InputSpec, Kit
from sojourn.protocol.task import Shape, TaskSpec

if TYPE_CHECKING:
    from torch import nn

    from coordinator.compiling.losses import Learning

    Scaling = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True)
class EarlierWeights:
    """The tensors of an earlier job's model by name, trained and frozen; `source` is for display."""

    source: str
    tensors: Mapping[str, NDArray[np.float32]]


def named_tensors(kit: Kit, vector: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
    """Return all tensors of a model by name: those of its vector, and the frozen ones of its kit."""
    frozen = {each.name: np.frombuffer(each.data, "<f4").reshape(each.shape) for each in kit.frozen}
    return {**kit.model.split(vector), **frozen}


def exported_model(kit: Kit, vector: NDArray[np.float32]) -> bytes:
    """Return the model as plain ONNX with a note of its tensor names, so a job can start from it."""
    from coordinator.compiling.prediction_model import bake  # noqa: PLC0415  # onnx takes a while to load
    from coordinator.models.exported_file import with_names  # noqa: PLC0415

    return with_names(bake(kit, vector), named_tensors(kit, vector))


def job_model(
    job: JobSettings,
    input: InputSpec,  # noqa: A002
    output: int | Shape,
    earlier: EarlierWeights | None = None,
) -> nn.Module:
    """Return the model at the start of the first round; `earlier` are the weights of the job it starts from, if any."""
    import torch  # noqa: PLC0415  # takes seconds and 280 MB

    from coordinator.models.start_weights import StartWeights, load_weights  # noqa: PLC0415
    from coordinator.models.weights_file import read_weights  # noqa: PLC0415

    start = None
    if job.model.start_file:
        start = read_weights(job.model.start_file)
    elif earlier is not None:
        tensors = {name: torch.from_numpy(values.copy()) for name, values in earlier.tensors.items()}
        start = StartWeights(tensors, earlier.source, buffers=False)
    if start is None:
        return random_model(job, input, output)
    module, larger = _plain_model(job, input, output), random_model(job, input, output)
    if set(start.tensors) & (set(larger.state_dict()) - set(module.state_dict())):
        module = larger  # the weights are of a job with the same additional layers
        load_weights(module, start, job.model.new_head)
        return module
    load_weights(module, start, job.model.new_head)
    return _enlarged(job, module, input)


def random_model(job: JobSettings, input: InputSpec, output: int | Shape) -> nn.Module:  # noqa: A002
    """Return the model with random weights, for callers that load others."""
    return _enlarged(job, _plain_model(job, input, output), input)


def _enlarged(job: JobSettings, module: nn.Module, input: InputSpec) -> nn.Module:  # noqa: A002
    """Return the model with the layers that the job's objective adds."""
    from coordinator.compiling.extra_layers import enlarged  # noqa: PLC0415  # see above

    return enlarged(module, job.parts().objective, input, job.seed)


def _plain_model(job: JobSettings, input: InputSpec, output: int | Shape) -> nn.Module:  # noqa: A002
    """Build the model by its name, with random weights."""
    from coordinator.models import build  # noqa: PLC0415  # see above
    from coordinator.models.start_weights import freeze  # noqa: PLC0415

    module = build(job.model.name, input, output, job.model.options, job.seed, job.model.path)
    freeze(module, job.model.trains)
    return module


def output_of(job: JobSettings, output: int | Shape) -> int | Shape:
    """Return the outputs of a job's model: one more than the classes if it has an output for unknown samples."""
    if not isinstance(job.parts().objective, Outliers):
        return output
    return output + 1 if isinstance(output, int) else (output[0] + 1,)


def put_vector(module: nn.Module, kit: Kit, vector: NDArray[np.float32]) -> None:
    """Copy the vector's tensors, and the frozen ones of the kit, into the job's module."""
    import torch  # noqa: PLC0415  # see above

    places = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    tensors = named_tensors(kit, vector)
    here = {name: tuple(place.shape) for name, place in places.items() if name in tensors}
    there = {name: tensor.shape for name, tensor in tensors.items()}
    trained = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    if here != there or not trained <= tensors.keys():
        raise ModelError("the model's code has other tensors than when the job was compiled: restore the old code")
    with torch.no_grad():
        for name, values in tensors.items():
            places[name].copy_(torch.from_numpy(values.copy()))


def vector_in(module: nn.Module, kit: Kit) -> NDArray[np.float32]:
    """Return the vector of a job's module."""
    places = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    numbers = [places[tensor.name].detach().cpu().numpy().ravel() for tensor in kit.model.tensors]
    return np.concatenate(numbers).astype(np.float32)


def job_learning(job: JobSettings, data: PublicData) -> Learning | None:
    """Return the loss of the job's model in torch; None for a plain classification."""
    return None if data.task is None else learning_in(job, data.task, data.scaling)


def learning_in(job: JobSettings, task: TaskSpec, scaling: Scaling | None) -> Learning:
    """Return the loss of a task, given the mean and deviation of its targets."""
    from coordinator.compiling.custom_losses import CustomLoss, load_loss  # noqa: PLC0415
    from coordinator.compiling.losses import learning_of  # noqa: PLC0415  # see above

    mean, std = (shaped_scale(each, task.output) for each in scaling) if scaling else (None, None)
    if not job.task.custom_loss:
        return learning_of(task, mean, std)
    from coordinator.models.torchvision_models import make_torchvision_importable  # noqa: PLC0415

    name = task.loss
    make_torchvision_importable()
    loss = CustomLoss(load_loss(name, job.model.path), name)
    return learning_of(task, mean, std, loss=loss, loss_name=name, features=job.task.features)
