"""A job's model in torch: built by its name, with what it starts from, what it does not train, and what it learns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coordinator.jobs.task_data import shaped_scale
from sojourn.errors import ModelError
from sojourn.parts import Outliers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray
    from torch import nn

    from coordinator.compiling.learning import Learning
    from coordinator.jobs.data import PublicData
    from coordinator.jobs.settings import JobSettings
    from sojourn.protocol.spec import InputSpec, Kit, Shape
    from sojourn.protocol.task import TaskSpec

    Scaling = tuple[tuple[float, ...], tuple[float, ...]]


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
    output: int | Shape,
    earlier: EarlierWeights | None = None,
) -> nn.Module:
    """The model as the job's first round finds it; `earlier` are the weights of the job that it starts from, if any."""
    import torch  # noqa: PLC0415  # takes seconds and 280 MB

    from coordinator.models.start_weights import StartWeights, put_in  # noqa: PLC0415
    from coordinator.models.weights_file import read_weights  # noqa: PLC0415

    start = None
    if job.model.start_file:
        start = read_weights(job.model.start_file)
    elif earlier is not None:
        tensors = {name: torch.from_numpy(values.copy()) for name, values in earlier.tensors.items()}
        start = StartWeights(tensors, earlier.source, buffers=False)
    if start is None:
        return unstarted_model(job, input, output)
    module, larger = _plain_model(job, input, output), unstarted_model(job, input, output)
    if set(start.tensors) & (set(larger.state_dict()) - set(module.state_dict())):
        module = larger  # of a job that enlarged it as this one does
        put_in(module, start, job.model.new_head)
        return module
    put_in(module, start, job.model.new_head)
    return _enlarged(job, module, input)


def unstarted_model(job: JobSettings, input: InputSpec, output: int | Shape) -> nn.Module:  # noqa: A002
    """The same model with random weights, for whoever has others to put in."""
    return _enlarged(job, _plain_model(job, input, output), input)


def _enlarged(job: JobSettings, module: nn.Module, input: InputSpec) -> nn.Module:  # noqa: A002
    """The model with what the job's objective adds to it."""
    from coordinator.compiling.enlarging import enlarged  # noqa: PLC0415  # see above

    return enlarged(module, job.parts().objective, input, job.seed)


def _plain_model(job: JobSettings, input: InputSpec, output: int | Shape) -> nn.Module:  # noqa: A002
    """The model as its name says, with random weights."""
    from coordinator.models import build  # noqa: PLC0415  # see above
    from coordinator.models.freezing import freeze  # noqa: PLC0415

    module = build(job.model.name, input, output, job.model.options, job.seed, job.model.path)
    freeze(module, job.model.trains)
    return module


def answers_of(job: JobSettings, output: int | Shape) -> int | Shape:
    """How many numbers a job's model answers: one more than there are classes where it may say that it knows none."""
    if not isinstance(job.parts().objective, Outliers):
        return output
    return output + 1 if isinstance(output, int) else (output[0] + 1,)


def put_vector(module: nn.Module, kit: Kit, vector: NDArray[np.float32]) -> None:
    """Put the vector's tensors, and the frozen ones of the kit, in their places in the job's module."""
    import torch  # noqa: PLC0415  # see above

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


def vector_in(module: nn.Module, kit: Kit) -> NDArray[np.float32]:
    """The vector that a job's module holds."""
    places = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    numbers = [places[tensor.name].detach().cpu().numpy().ravel() for tensor in kit.model.tensors]
    return np.concatenate(numbers).astype(np.float32)


def job_learning(job: JobSettings, data: PublicData) -> Learning | None:
    """What the job's model is trained for, in torch; None where it is simply one class of several."""
    return None if data.task is None else learning_in(job, data.task, data.scaling)


def learning_in(job: JobSettings, task: TaskSpec, scaling: Scaling | None) -> Learning:
    """The same of a task with the mean and deviation of targets."""
    from coordinator.compiling.learning import learning_of  # noqa: PLC0415  # see above
    from coordinator.compiling.own_losses import OwnLoss, own_loss  # noqa: PLC0415

    mean, std = (shaped_scale(each, task.output) for each in scaling) if scaling else (None, None)
    if not job.task.own_loss:
        return learning_of(task, mean, std)
    from coordinator.models.torchvision_import import make_torchvision_importable  # noqa: PLC0415

    name = task.loss
    make_torchvision_importable()
    loss = OwnLoss(own_loss(name, job.model.path), name)
    return learning_of(task, mean, std, loss=loss, own=name, features=job.task.features)
