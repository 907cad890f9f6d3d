"""From a job file to what its devices need: data, model and compiled graphs, checked. The one place that runs torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from coordinator.aggregators import first_state
from coordinator.closing import handouts
from coordinator.coordinator_records import JobCompiled
from coordinator.job import read_job
from coordinator.job_data import public_data
from sojourn import vectors
from sojourn.blobs import ref_of
from sojourn.classifier import classifier_weights
from sojourn.envelope import pack_blob
from sojourn.errors import JobError
from sojourn.parts import ClassifierEstimator

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coordinator.job import Job
    from sojourn.blobs import BlobStore
    from sojourn.parts import Estimator
    from sojourn.spec import Kit
    from sojourn.wire import Ref

MOST_NUMBERS = 4096
"""As many as `messages.Visited.signature` can carry."""


class PrepareJob(msgspec.Struct, frozen=True, tag="prepare-job"):
    """Compile a job's model and read its data."""

    name: str
    text: str


def prepare(work: PrepareJob, blobs: BlobStore) -> JobCompiled:
    """Read, build, compile, check; everything that came of it is in the blob folder."""
    from coordinator.compiling import compile_kit  # noqa: PLC0415  # torch takes seconds and 280 MB
    from coordinator.models import build  # noqa: PLC0415

    job = read_job(work.text, work.name)
    data = public_data(job)
    module = build(job.model.name, data.input, len(data.classes), job.model.options, job.seed)
    compiled = compile_kit(module, data.input, data.classes, mean=data.mean, std=data.std, seed=job.seed)
    kit, strategy = compiled.kit, job.parts()
    check_classifier(strategy.estimator, kit)
    held, handout = first_vectors(compiled.initial, job, blobs, kit)
    return JobCompiled(
        work.name,
        _keep(blobs, kit),
        held,
        handout,
        _keep(blobs, data.exemplars) if data.exemplars else None,
        _keep(blobs, data.test) if data.test else None,
    )


def first_vectors(
    initial: NDArray[np.float32], job: Job, blobs: BlobStore, kit: Kit
) -> tuple[dict[str, Ref], dict[str, Ref]]:
    """The job's vectors before the first round, and how they travel down: its model, and what its aggregator keeps."""
    strategy = job.parts()
    held = {"model": initial, **first_state(strategy.aggregator, len(initial))}
    exact = {name: vectors.save(blobs, vector, "float32", kit.model) for name, vector in held.items()}
    return exact, handouts(held, exact, strategy, job, blobs, kit)


def check_classifier(estimator: Estimator, kit: Kit) -> None:
    """Whether devices can be told apart by this model's fully connected layers, before they are asked to."""
    if not isinstance(estimator, ClassifierEstimator):
        return
    numbers = len(classifier_weights(kit, np.zeros(kit.model.size, np.float32), estimator.layers))
    if estimator.where == "device" and numbers > MOST_NUMBERS:
        raise JobError(
            f"the classifier of this model has {numbers} numbers, and a device can tell {MOST_NUMBERS}: "
            f'choose estimator.layers = "last" or estimator.where = "server"'
        )


def _keep(blobs: BlobStore, value: object) -> Ref:
    content = pack_blob(value)
    ref = ref_of(content)
    blobs.put(content, ref.digest)
    return ref
