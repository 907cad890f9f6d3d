"""From a job file to what its devices need: data, model and compiled graphs, checked. The one place that runs torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from coordinator.coordinator_records import JobCompiled
from coordinator.job import read_job
from coordinator.job_data import public_data
from coordinator.rounds import handed_out
from sojourn import vectors
from sojourn.blobs import ref_of
from sojourn.envelope import pack_blob

if TYPE_CHECKING:
    from sojourn.blobs import BlobStore
    from sojourn.wire import Ref


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
    kit = compiled.kit
    model = vectors.save(blobs, compiled.initial, "float32", kit.model)
    return JobCompiled(
        work.name,
        _keep(blobs, kit),
        model,
        handed_out(compiled.initial, job, model, blobs, kit),
        _keep(blobs, data.exemplars) if data.exemplars else None,
        _keep(blobs, data.test) if data.test else None,
    )


def _keep(blobs: BlobStore, value: object) -> Ref:
    content = pack_blob(value)
    ref = ref_of(content)
    blobs.put(content, ref.digest)
    return ref
