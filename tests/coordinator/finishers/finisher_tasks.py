"""Tasks for finishers without a fleet: a job, a kit without graphs, and members' models."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from coordinator.finishers.task import FinishTask, MemberModel
from coordinator.jobs.model import output_of, random_model
from coordinator.jobs.settings import read_job
from sojourn.model.exemplars import Exemplars
from sojourn.protocol.spec import InputSpec, ModelSpec, TensorSpec, ValueRange
from tests.sojourn.protocol.examples import kit_without_graphs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from sojourn.protocol.spec import Kit

    Vector = NDArray[np.float32]

IMAGES = InputSpec((1, 6, 5))
CLASSES = ("a", "b", "c")
JOB = """
name = "job"
strategy = "{strategy}"
seed = {seed}
model = {{ name = "{model}", {options} }}
data = {{ classes = ["a", "b", "c"], input = [1, 6, 5] }}
{more}
"""


def text_of(strategy: str = "dense", seed: int = 1, model: str = "mlp", options: str = "", more: str = "") -> str:
    """Return a job file."""
    options = options or "options = { hidden = [7] }"
    return JOB.format(strategy=strategy, seed=seed, model=model, options=options, more=more)


def kit_of(text: str) -> Kit:
    """Return the job's kit with the fields that a finisher uses."""
    settings = read_job(text, "job")
    module = random_model(settings, IMAGES, output_of(settings, len(CLASSES)))
    trained = [(name, tuple(it.shape)) for name, it in module.named_parameters()]
    state = [(name, tuple(it.shape)) for name, it in module.named_buffers() if name.endswith(("_mean", "_var"))]
    spec = ModelSpec(tuple(TensorSpec(name, shape) for name, shape in (*trained, *state)), len(state))
    kit = kit_without_graphs(spec, IMAGES, CLASSES)
    return msgspec.structs.replace(kit, values=ValueRange(0.0, 16.0))


def member(number: int, vector: Vector, **reported: Any) -> MemberModel:
    """Return a member with this model and these reports."""
    return MemberModel(
        f"dev-{number}", 1.0, lambda: vector, {name: partial(np.copy, it) for name, it in reported.items()}
    )


def task_of(text: str, models: Sequence[Vector] | int = 3, **changes: Any) -> FinishTask:
    """Return a finisher's task with these models, or with this many random ones."""
    kit = kit_of(text)
    if isinstance(models, int):
        models = [drawn(kit, number) for number in range(models)]
    members = [member(number, vector) for number, vector in enumerate(models)]
    mean = np.mean(models, axis=0).astype(np.float32)
    shown = np.random.default_rng(0).random((9, *IMAGES.shape)).astype(np.float32) * 16
    exemplars = Exemplars.of(shown, np.arange(9) % 3)
    plain: dict[str, Any] = {"members": members, "mean": mean, "exemplars": exemplars, "seed": 5}
    return FinishTask(**{**plain, "kit": kit, "job": read_job(text, "job"), **changes})


def drawn(kit: Kit, number: int) -> Vector:
    """Return a random model; its variances are above 0."""
    random = np.random.default_rng(number)
    vector = random.normal(0, 0.3, kit.model.size).astype(np.float32)
    vector[kit.model.trainable_size :] = np.abs(vector[kit.model.trainable_size :]) + 0.5
    return vector
