"""Prepare a job from its file: read data, build the model, compile and check graphs, and cache kits by recipe."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from coordinator.aggregators.aggregating import first_state
from coordinator.finishers import finishing
from coordinator.jobs.data import PublicData, public_data
from coordinator.jobs.model import EarlierWeights, job_learning, job_model, output_of
from coordinator.jobs.settings import TORCHVISION, JobSettings, read_job
from coordinator.records import JobCompiled
from coordinator.rounds.closing import sent_vectors
from coordinator.rounds.finishing import save_state
from coordinator.rounds.round_messages import within_room
from coordinator.rounds.starting import StartModel, earlier_weights, started
from coordinator.state import CoordinatorState
from sojourn import __version__
from sojourn.errors import InvalidBlob, InvalidMessage, JobError
from sojourn.model import vectors
from sojourn.model.layers import check_output_bias, classifier_weights
from sojourn.model.workload import training_size
from sojourn.parts import (
    ClassifierEstimator,
    Echo,
    Estimator,
    Generated,
    LogitAdjustment,
    Outliers,
    TwoStreamPart,
    name_of,
)
from sojourn.protocol.envelope import pack_blob, unpack_blob
from sojourn.protocol.mandates import Normalisation
from sojourn.protocol.spec import Kit
from sojourn.protocol.task import TaskSpec, asked_by
from sojourn.protocol.wire import Ref
from sojourn.store.blobs import BlobStore, ref_of
from sojourn.store.files import write_atomically

Compiled = tuple[Kit, NDArray[np.float32]]
"""A kit, and the model that it starts from."""

log = logging.getLogger(__name__)

MAX_KITS = 64
"""Maximum number of cached kits; the least recently used one is deleted first."""
_HASH = hashlib.sha256().digest_size


class CachedKit(msgspec.Struct, frozen=True):
    """A kit, and the model that it starts from."""

    kit: Kit
    initial: bytes


class KitCache:
    """A folder of kits. It is optional: a kit that cannot be read or written is compiled."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sojourn" / "kits"

    def find(self, recipe: str) -> tuple[Kit, NDArray[np.float32]] | None:
        """Return the cached kit of a recipe."""
        path = self._folder / recipe
        try:
            data = path.read_bytes()
            path.touch()
        except OSError:
            return None
        if hashlib.sha256(data[_HASH:]).digest() != data[:_HASH]:
            return None
        try:
            found = unpack_blob(data[_HASH:], CachedKit)
        except (InvalidBlob, InvalidMessage):
            return None
        return found.kit, np.frombuffer(found.initial, "<f4").astype(np.float32)

    def keep(self, recipe: str, kit: Kit, initial: NDArray[np.float32]) -> None:
        """Cache the kit of a recipe."""
        data = pack_blob(CachedKit(kit, initial.astype("<f4").tobytes()))
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self._folder / recipe, hashlib.sha256(data).digest() + data, sync=False)
            for old in sorted(self._folder.iterdir(), key=lambda path: path.stat().st_mtime)[:-MAX_KITS]:
                old.unlink(missing_ok=True)
        except OSError as error:
            log.debug("%s is not cached: %s", recipe, error)


MAX_NUMBERS = 4096
"""The maximum that `messages.Visited.signature` can carry."""


class Recipe(msgspec.Struct, frozen=True):
    """The result of a recipe: a kit, and the model that it starts from."""

    kit: Ref
    initial: Ref


class PrepareJob(msgspec.Struct, frozen=True, tag="prepare-job"):
    """Compile a job's model and read its data."""

    name: str
    text: str
    known: dict[str, Recipe] = {}
    """Results of earlier jobs by recipe, since compiling takes seconds and strategies are compared on one model."""
    start: StartModel | None = None
    """The model of an earlier job, if this one starts from it."""


def recipes(durable: CoordinatorState) -> dict[str, Recipe]:
    """Return the results of earlier jobs by recipe."""
    return {
        state.recipe: Recipe(state.kit, state.initial)
        for state in durable.jobs.values()
        if state.recipe and state.kit and state.initial
    }


def prepare(
    work: PrepareJob,
    blobs: BlobStore,
    kits: KitCache | None = None,
    compile_apart: Callable[[], Compiled] | None = None,
    notify: Callable[[str], None] = lambda _step: None,
) -> JobCompiled:
    """Read, build, compile and check; all results are in the blob folder.

    kits: the cache of kits. compile_apart: compiles a kit for the cache in another process. notify: receives each
    step as it begins.
    """
    notify("reading the data")
    job = read_job(work.text, work.name)
    data = public_data(job)
    notices = [*data.odd, *(f"skipped in the job's test set and exemplars: {text}" for text in data.skipped)]
    for text in notices:
        log.warning("%s: %s", job.name, text)
    earlier = earlier_weights(job, work.start, blobs) if work.start else None
    recipe = recipe_of(job, data) if earlier is None else ""
    found = _recalled(work.known.get(recipe), blobs) or (kits.find(recipe) if kits and recipe else None)
    kit, initial = found or (compile_apart() if compile_apart and recipe else _compiled(job, data, notify, earlier))
    if kits and recipe and not found:
        kits.keep(recipe, kit, initial)
    # These do not depend on the model: a cached kit may have been made with other data.
    kit = msgspec.structs.replace(kit, values=data.values, task=_task(kit, data), table=data.table)
    check_classifier(job.parts().estimator, kit)
    if isinstance(job.parts().objective, LogitAdjustment) and not kit.task:
        check_output_bias(kit)
    finishing.check_kit(job.parts().finisher, kit)
    if work.start and earlier is None:
        initial, recipe = started(work.start, kit, blobs), ""  # other jobs must not reuse this start by recipe
    held, wire_vectors = first_vectors(initial, job, blobs, kit)
    return JobCompiled(
        work.name,
        _keep(blobs, kit),
        held,
        wire_vectors,
        _keep(blobs, data.exemplars) if data.exemplars else None,
        _keep(blobs, data.test) if data.test else None,
        recipe,
        vectors.save(blobs, initial, "float32", kit.model),
        kit.learns.strata.count,
        within_room(notices, work.name),
        asked_by(kit),
        Normalisation(data.mean, data.std, *(data.scaling or ())),
        training_size(kit),
    )


def recipe_of(job: JobSettings, data: PublicData) -> str:
    """Return all that a compiled kit depends on; empty for a custom model, whose code may have changed."""
    if job.model.custom or job.task.custom_loss:
        return ""
    made_by = [version(each) for each in ("torch", "onnx", "onnxscript")]
    if job.model.name.startswith(TORCHVISION) and find_spec("torchvision"):
        made_by.append(version("torchvision"))
    if job.model.start_file:
        made_by.append(_digest(job.model.start_file))
    model = msgspec.structs.replace(job.model, start=None, source="", licence="")
    settings: list[object] = [model, data.input, data.classes, data.mean, data.std, job.seed, __version__]
    settings += [made_by, _sources()]
    if data.task:
        task = data.task
        settings += [task.kind, task.output, task.target, task.loss, task.window, data.scaling]
    if objective := _second_stream(job):
        settings += [objective]
    settings += _more_graphs(job)
    return hashlib.sha256(msgspec.msgpack.encode(settings)).hexdigest()


def _outliers(job: JobSettings) -> Outliers | None:
    """Return the objective if it adds an output to models."""
    objective = job.parts().objective
    return objective if isinstance(objective, Outliers) else None


def _more_graphs(job: JobSettings) -> list[object]:
    """Return the objective if the kit needs more graphs for it; such a kit is not split."""
    objective = job.parts().objective
    if not isinstance(objective, Echo | Outliers | Generated):
        return []
    if job.model.names_frozen:
        raise JobError(
            f"the objective {name_of(objective)} works on whole models, but this job does not train all tensors: "
            "remove model.trains"
        )
    return [objective if isinstance(objective, Outliers) else name_of(objective)]


def _second_stream(job: JobSettings) -> TwoStreamPart | None:
    """Return the objective if the kit needs a graph for it, with the settings that are written into that graph."""
    objective = job.parts().objective
    return objective.compiled if isinstance(objective, TwoStreamPart) else None


@cache
def _sources() -> bytes:
    """Return a hash of the code that makes kits, so that a change of it invalidates cached kits."""
    return hashlib.sha256(b"".join(file.read_bytes() for file in _source_files())).digest()


def _source_files() -> list[Path]:
    package = Path(__file__).parents[1]
    return sorted((*(package / "compiling").glob("*.py"), *(package / "models").glob("*.py")))


def _digest(name: str) -> str:
    """Return the digest of a weights file, which identifies its content."""
    try:
        with Path(name).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise JobError(f"model.start: {name} cannot be read on this machine: {error.strerror or error}") from error


def _compiled(
    job: JobSettings, data: PublicData, notify: Callable[[str], None], earlier: EarlierWeights | None = None
) -> Compiled:
    notify("loading torch")
    from coordinator.compiling import compile_kit  # noqa: PLC0415  # torch takes seconds and 280 MB
    from coordinator.compiling.frozen_parts import with_shared_weights  # noqa: PLC0415

    module = job_model(job, data.input, output_of(job, data.output), earlier)
    learning = job_learning(job, data)
    compiled = compile_kit(
        module,
        data.input,
        data.classes,
        mean=data.mean,
        std=data.std,
        seed=job.seed,
        batch=job.parts().training.batch,
        batchnorm=job.model.batchnorm,
        whole=job.model.trunk == "whole" or bool(_more_graphs(job)),
        learning=learning,
        objective=_second_stream(job),
        taps=isinstance(job.parts().objective, Echo),
        outliers=_outliers(job),
        soft=isinstance(job.parts().objective, Generated),
        report=notify,
    )
    kit = with_shared_weights(compiled.kit, module) if job.model.names_frozen else compiled.kit
    if learning and learning.loss_name and data.exemplars:
        from coordinator.compiling.custom_losses import blind_loss  # noqa: PLC0415  # see above

        task = msgspec.structs.replace(learning.task, blind=blind_loss(learning, data.exemplars))
        kit = msgspec.structs.replace(kit, task=task)
    return kit, compiled.initial


def compiled_here(job: JobSettings, data: PublicData, notify: Callable[[str], None]) -> Kit:
    """Compile a job in this process, without the cache."""
    return _compiled(job, data, notify)[0]


def _task(kit: Kit, data: PublicData) -> TaskSpec | None:
    """Return the task with the strata of the job's data; torch found what a custom loss makes of it."""
    if data.task is None or not kit.task:
        return data.task
    return msgspec.structs.replace(data.task, blind=kit.task.blind) if ":" in data.task.loss else data.task


def _recalled(known: Recipe | None, blobs: BlobStore) -> Compiled | None:
    """Return what an earlier job compiled, if it is still available."""
    if known is None or not (blobs.has(known.kit.digest) and blobs.has(known.initial.digest)):
        return None
    try:
        kit = unpack_blob(blobs.read(known.kit.digest), Kit)
        return kit, vectors.load(blobs, known.initial, kit.model)
    except (InvalidBlob, InvalidMessage):
        return None


def first_vectors(
    initial: NDArray[np.float32], job: JobSettings, blobs: BlobStore, kit: Kit
) -> tuple[dict[str, Ref], dict[str, Ref]]:
    """Return the job's vectors before the first round (its model and its parts' state), exact and as sent."""
    strategy = job.parts()
    held = {"model": initial, **first_state(strategy.aggregator, len(initial))}
    exact = {name: vectors.save(blobs, vector, "float32", kit.model) for name, vector in held.items()}
    exact |= save_state(finishing.first_state(strategy, kit, job.seed), strategy.finisher, blobs)
    return exact, sent_vectors(held, exact, strategy, job, blobs, kit)


def check_classifier(estimator: Estimator, kit: Kit) -> None:
    """Raise JobError if this model's fully connected layers cannot describe a device."""
    if not isinstance(estimator, ClassifierEstimator):
        return
    numbers = len(classifier_weights(kit, np.zeros(kit.model.size, np.float32), estimator.layers))
    if estimator.where == "device" and numbers > MAX_NUMBERS:
        raise JobError(
            f"the classifier of this model has {numbers} numbers, but a device can report {MAX_NUMBERS}: "
            f'choose estimator.layers = "last" or estimator.where = "server"'
        )


def _keep(blobs: BlobStore, value: object) -> Ref:
    content = pack_blob(value)
    ref = ref_of(content)
    blobs.put(content, ref.digest)
    return ref
